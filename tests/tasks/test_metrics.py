"""What people read of counts: accuracy, or the perplexity of a language model."""

from __future__ import annotations

import math
from typing import Any

import pytest

from velodrome.tasks.supervised import Classification, MultiLabel
from velodrome.tasks.text import LanguageModel

pytestmark = pytest.mark.unit

IMAGES, TEXT = Classification(), LanguageModel()


def counts(correct: int, total: int, loss: float | None) -> dict[str, Any]:
    return {"correct": correct, "total": total, "loss_sum": loss}


def test_images_have_an_accuracy_and_texts_a_perplexity() -> None:
    assert IMAGES.in_words(counts(3, 4, 1.0)) == "accuracy 0.7500"
    assert TEXT.in_words(counts(0, 10, 10 * math.log(117.2))) == "perplexity 117.20"
    assert TEXT.measure(counts(0, 10, 10 * math.log(117.2)))["perplexity"] == pytest.approx(117.2)
    assert IMAGES.measure(counts(3, 4, 1.0)) == {"accuracy": 0.75, "loss": 0.25}


@pytest.mark.parametrize("loss", [None, math.nan, math.inf])
def test_what_is_not_finite_is_called_so(loss: float | None) -> None:
    assert TEXT.in_words(counts(0, 10, loss)) == "perplexity not finite"
    assert TEXT.measure(counts(0, 10, loss)) == {"perplexity": None, "loss": None}
    assert IMAGES.measure(counts(5, 10, loss)) == {"accuracy": 0.5, "loss": None}


def test_nothing_counted_is_nothing_said() -> None:
    nothing = counts(0, 0, 0.0)
    assert (TEXT.in_words(nothing), IMAGES.measured(nothing)) == ("", {"accuracy": None, "loss": None})
    assert (TEXT.summary(nothing), IMAGES.summary(None)) == (None, None)


def test_a_huge_loss_has_a_perplexity_that_a_float_holds() -> None:
    assert math.isfinite(TEXT.measure(counts(0, 1, 1e6))["perplexity"] or math.inf)


def test_results_of_language_models_keep_the_names_that_earlier_readers_expect() -> None:
    seen = counts(0, 10, 20.0)
    assert TEXT.summary(seen) == {
        "perplexity": pytest.approx(math.exp(2)), "accuracy": None, "correct": None, "loss": 2.0, "total": 10,
    }
    assert TEXT.history(train=seen, validation=counts(0, 0, 0.0)) == {
        "train_perplexity": pytest.approx(math.exp(2)), "validation_perplexity": None, "train_loss": 2.0,
        "validation_loss": None, "train_accuracy": None, "validation_accuracy": None,
    }


def test_history_and_summary_of_classification() -> None:
    seen = counts(3, 4, 1.0)
    assert IMAGES.summary(seen) == {"accuracy": 0.75, "loss": 0.25, "correct": 3, "total": 4}
    entry = IMAGES.history(train=seen, validation=seen)
    assert list(entry) == ["train_accuracy", "validation_accuracy", "train_loss", "validation_loss"]
    assert IMAGES.recorded(entry, "validation") == {"accuracy": 0.75, "loss": 0.25}


def test_a_checkpoint_of_an_earlier_version_still_tells_its_perplexity() -> None:
    entry = {"epoch": 3, "validation_accuracy": 0.0, "validation_loss": 2.0}
    assert TEXT.recorded(entry, "validation") == {"perplexity": pytest.approx(math.exp(2)), "loss": 2.0}


@pytest.mark.parametrize("correct", [None, "5", [], math.nan, 10**400])
@pytest.mark.parametrize("task", [Classification(), MultiLabel()])
def test_counts_of_a_damaged_event_have_no_metrics(task: Classification, correct: Any) -> None:
    whole: dict[str, Any] = dict.fromkeys(task.counted, 5) | {"total": 10, "loss_sum": 1.0}
    assert task.measured(whole)["accuracy"] == 0.5
    for counts in ({**whole, "correct": correct}, {name: whole[name] for name in whole if name != "correct"}):
        assert set(task.measured(counts).values()) == {None}
        assert task.history(train=counts, validation=whole)["train_accuracy"] is None
        assert task.in_words(counts) == ""
        assert task.summary(counts) is None
