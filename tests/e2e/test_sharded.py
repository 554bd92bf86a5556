"""Training from shards as a user types it: every policy, several real processes, both engines."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("no_strays", "warm")]

TEST = 359


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> str:
    """Digits in three files: two workers have unequal shares of them."""
    from velodrome.data import catalogue
    from velodrome.data.shards.write import write_shards
    from velodrome.data.storage.store import open_store

    folder: Path = tmp_path_factory.mktemp("shards") / "digits"
    splits = catalogue.load("digits", seed=1, validation=0.1)
    about = catalogue.describe("digits", validation=0.1)
    write_shards(splits, about, open_store(str(folder)), shards=3, encoding="raw", seed=1, validation=0.1)
    return f"shards:{folder}"


def train(velodrome, runs, shards, engine, strategy, policy, *more):
    return velodrome(
        "train", "--dataset", shards, "--engine", engine, "--strategy", strategy, "--workers", 2, "--sharding", policy,
        "--epochs", 2, "--batch-size", 64, "--runs", runs, "--json", *more,
    )


@pytest.mark.parametrize(
    ("engine", "strategy", "policy"),
    [
        pytest.param("torch", "ddp", "file", marks=pytest.mark.slow),
        pytest.param("torch", "allreduce", "auto", marks=pytest.mark.slow),
        ("torch", "allreduce", "off"),
        ("tensorflow", "multi-worker-mirrored", "file"),
        pytest.param("tensorflow", "parameter-server", "file", marks=pytest.mark.slow),
        pytest.param("tensorflow", "parameter-server", "off", marks=pytest.mark.slow),
    ],
)
def test_shards_train_to_their_end_and_every_example_counts(velodrome, runs, shards, engine, strategy, policy):
    if find_spec(engine) is None:
        pytest.skip(f"{engine} is not installed")
    done = train(velodrome, runs, shards, engine, strategy, policy)
    assert done.code == 0, done.text
    result = done.json()
    assert result["test"]["total"] == TEST
    assert result["test"]["accuracy"] > 0.7
    assert sum(map(sum, result["confusion"])) == TEST
    if policy == "file" and strategy != "parameter-server":
        assert "leave a worker without examples" in done.err


def test_with_data_sharding_shards_train_as_the_data_set_itself(velodrome, runs, shards):
    sharded = train(velodrome, runs, shards, "torch", "ddp", "data").json()
    plain = train(velodrome, runs, "digits", "torch", "ddp", "auto").json()
    numbers = {name: value for name, value in plain["test"].items() if not isinstance(value, str)}
    assert {name: sharded["test"][name] for name in numbers} == pytest.approx(numbers, rel=1e-6)
    assert sharded["test"]["answers"] == plain["test"]["answers"]


@pytest.mark.slow
def test_the_groups_of_a_mesh_read_the_files_of_as_many_workers(velodrome, runs, shards):
    alone = train(velodrome, runs, shards, "torch", "ddp", "file").json()
    done = train(velodrome, runs, shards, "torch", "tensor", "file", "--workers", 4, "--mesh", "data=2,tensor=2")
    assert done.code == 0, done.text
    assert done.json()["test"]["loss"] == pytest.approx(alone["test"]["loss"], rel=1e-4)
    assert done.json()["test"]["correct"] == alone["test"]["correct"]


def test_too_few_files_are_refused_before_anything_starts(velodrome, runs, shards):
    done = velodrome("train", "--dataset", shards, "--strategy", "ddp", "--workers", 4, "--sharding", "file",
                     "--runs", runs)  # fmt: skip
    assert done.code == 2
    assert "4 workers need at least 4 files" in done.err
    assert "has 3" in done.err
    assert not list(runs.glob("*"))


def test_a_text_and_a_model_of_images_are_refused_before_anything_starts(velodrome, runs, tmp_path):
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "one.txt").write_text("to be or not to be that is the question\n" * 60)
    text = f"text:{tmp_path / 'books'}"
    for words, reason in (
        (("--dataset", text), "is text, but model 'dense-128' takes images"),
        (("--dataset", "digits", "--model", "lstm-small"), "reads text, and 'digits' is images"),
        (("--dataset", text, "--model", "lstm-small", "--batch-size", 500), "choose a smaller batch"),
        (("--dataset", text, "--model", "lstm-small", "--sharding", "off"), "a text is divided by its rows"),
    ):
        done = velodrome("train", *words, "--runs", runs)
        assert done.code == 2, done.text
        assert reason in done.err


def test_a_text_of_ones_own_trains_and_its_summary_speaks_of_perplexity(velodrome, runs, tmp_path):
    (tmp_path / "books").mkdir()
    for number in range(3):
        lines = "to be or not to be that is the question\nwhether tis nobler in the mind\n" * 40
        (tmp_path / "books" / f"{number}.txt").write_text(lines)
    done = velodrome(
        "train", "--dataset", f"text:{tmp_path / 'books'}", "--model", "lstm-small", "--strategy", "allreduce",
        "--workers", 2, "--batch-size", 4, "--unroll", 5, "--epochs", 2, "--runs", runs,
    )
    assert done.code == 0, done.text
    assert "test perplexity" in done.out
    assert "validation perplexity" in done.err
    assert "words are left out" in done.err
