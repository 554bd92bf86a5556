"""Processes whose forward passes wait for one another make as many in an evaluation, also those without rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from velodrome.catalog.models import Lstm  # noqa: E402
from velodrome.engines.torch.feed import Replica, TextFeed  # noqa: E402
from velodrome.engines.torch.objectives import ObjectiveModule, Tally  # noqa: E402
from velodrome.engines.torch.task_objectives import LanguageObjective  # noqa: E402
from velodrome.models.torch_zoo import LanguageModel  # noqa: E402
from velodrome.tasks.schedule import EVALUATION_ROWS  # noqa: E402

TEXT = np.random.default_rng(1).integers(0, 7, 500).astype(np.int32)


def evaluated(rank: int, size: int, *, together: bool) -> tuple[Any, int]:
    """The counts of one process, and how often it called the model."""
    torch.manual_seed(1)
    model = LanguageModel(7, Lstm(units=4, layers=1))
    calls: list[Any] = []
    model.register_forward_pre_hook(lambda *_: calls.append(1))
    objective = LanguageObjective(model)
    module, tally = ObjectiveModule(model, objective).eval(), Tally(objective, "test")
    feed = TextFeed(SimpleNamespace(test=TEXT), 5, objective, Replica(rank, size, torch.device("cpu"), together))
    with torch.no_grad():
        for batch in feed.evaluation("test"):
            tally.add(module(batch.inputs, batch.targets), batch)
    return tally.counts(()), len(calls)


def test_every_process_makes_as_many_passes_where_they_wait_for_one_another() -> None:
    size = EVALUATION_ROWS + 2
    alone, passes = evaluated(0, 1, together=False)
    shares = [evaluated(rank, size, together=True) for rank in range(size)]
    assert {calls for _, calls in shares} == {passes}
    assert [counts.total for counts, _ in shares[EVALUATION_ROWS:]] == [0, 0]
    assert sum(counts.total for counts, _ in shares) == alone.total == len(TEXT) - 1
    assert sum(counts.loss_sum for counts, _ in shares) == pytest.approx(alone.loss_sum)


def test_a_process_without_rows_computes_nothing_where_none_waits_for_it() -> None:
    counts, calls = evaluated(EVALUATION_ROWS, EVALUATION_ROWS + 1, together=False)
    assert (counts.total, counts.loss_sum, calls) == (0, 0.0, 0)
