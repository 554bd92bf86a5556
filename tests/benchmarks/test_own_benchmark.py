"""The benchmark of users' models: what it claims, and that all sides of a comparison train the same network."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def _benchmarks_importable(monkeypatch):
    for folder in (FOLDER, FOLDER / "peers", FOLDER / "own"):
        monkeypatch.syspath_prepend(str(folder))


def test_every_claim_compares_two_entries_that_can_be_measured():
    from own import judge
    from own_entries import CELLS, ENTRIES

    rates = {(entry.cell, entry.name): [100.0, 101.0] for entry in ENTRIES}
    verdicts = judge(rates)
    assert all(verdict.estimate is not None for verdict in verdicts)
    assert {verdict.bar for verdict in verdicts} == {0.97, 0.95, 1.0}
    # Two networks under six strategies, each with a model and with a task; two networks against two bare loops, and
    # against the peers of each engine and of both.
    assert len(verdicts) == 2 * 6 * 2 + 2 * 2 + 2 * 3
    assert {entry.cell for entry in ENTRIES} == set(CELLS)


def test_a_claim_is_judged_against_the_fastest_peer_and_only_where_measured():
    from entries import Cell
    from own import judge

    cell = Cell("gpt-mini", 2)
    rates = {
        (cell, "velodrome torch ddp"): [100.0, 100.0], (cell, "velodrome torch allreduce"): [120.0, 120.0],
        (cell, "peer torch accelerate"): [110.0, 110.0], (cell, "peer torch lightning fabric"): [115.0, None],
    }
    (torch, both) = [verdict for verdict in judge(rates) if verdict.estimate is not None]
    assert torch.against == both.against == "peer torch lightning fabric"
    assert "velodrome torch allreduce" in torch.claim
    assert (torch.holds, torch.estimate.repetitions) == (True, 1)


@pytest.mark.parametrize("name", ["resnet20", "gpt-mini"])
def test_bare_loops_and_peers_train_networks_of_the_zoos_size(name):
    torch_model = pytest.importorskip("torch_model", exc_type=ImportError)
    from velodrome.models import torch_zoo

    mine = torch_zoo.build_text(name, 10_002, 64) if name == "gpt-mini" else torch_zoo.build(name, (1, 28, 28), 10)
    theirs = torch_model.build(name)
    shapes = [sorted(tuple(value.shape) for value in model.parameters()) for model in (mine, theirs)]
    assert shapes[0] == shapes[1]
    keras = pytest.importorskip("keras", exc_type=ImportError)
    import keras_model

    trained = keras_model.build(keras, name).trainable_variables
    assert sum(math.prod(value.shape) for value in trained) == sum(value.numel() for value in mine.parameters())


def test_the_users_networks_are_those_of_the_zoo():
    own_torch = pytest.importorskip("own_torch", exc_type=ImportError)
    from velodrome.models import torch_zoo

    for name in ("dense-300-100", "lenet5"):
        mine = getattr(own_torch, name.replace("-", "_"))((1, 28, 28), 10)
        zoo = torch_zoo.build(name, (1, 28, 28), 10)
        assert [value.shape for value in mine.parameters()] == [value.shape for value in zoo.parameters()]
