"""What people read of counts: accuracy, or the perplexity of a language model, also where they started it by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from velodrome.spec.job import Job
from velodrome.tasks.quality import in_words, value_of
from velodrome.worker.by_hand import ByHand

pytestmark = pytest.mark.unit


def counts(correct: int, total: int, loss: float | None) -> dict[str, Any]:
    return {"correct": correct, "total": total, "loss_sum": loss}


def test_images_have_an_accuracy_and_texts_a_perplexity() -> None:
    assert in_words(counts(3, 4, 1.0), text=False) == "accuracy 0.7500"
    assert in_words(counts(0, 10, 10 * math.log(117.2)), text=True) == "perplexity 117.20"
    assert value_of(counts(0, 10, 10 * math.log(117.2)), text=True) == pytest.approx(117.2)


@pytest.mark.parametrize("loss", [None, math.nan, math.inf])
def test_what_is_not_finite_is_called_so(loss: float | None) -> None:
    assert in_words(counts(0, 10, loss), text=True) == "perplexity not finite"
    assert value_of(counts(0, 10, loss), text=True) is None


def test_nothing_counted_is_nothing_said() -> None:
    assert (in_words(counts(0, 0, 0.0), text=True), value_of(counts(0, 0, 0.0), text=False)) == ("", None)


@pytest.mark.parametrize(("model", "said"), [
    ("lstm-small", ["epoch 1: train perplexity 200.00, validation perplexity 150.00",
                    "test perplexity 150.00 (1,000 words)"]),
    ("dense-128", ["epoch 1: train accuracy 0.5000, validation accuracy 0.2500", "test accuracy 0.2500 (250 of 1000)"]),
])
def test_a_person_who_started_it_by_hand_reads_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], model: str, said: list[str]
) -> None:
    monkeypatch.setenv("VELODROME_JOB", Job(model=model).model_dump_json())
    events = ByHand(tmp_path / "run", "worker", 0)
    right = 0 if model == "lstm-small" else 1
    train = counts(500 * right, 1000, 1000 * math.log(200))
    other = counts(250 * right, 1000, 1000 * math.log(150))
    events.emit("epoch", epoch=1, train=train, validation=other)
    events.emit("result", test=other)
    assert capfd.readouterr().err.splitlines() == [f"worker 0: {line}" for line in said]
