"""What people read of counts: accuracy, or the perplexity of a language model."""

from __future__ import annotations

import math
from typing import Any

import pytest

from velodrome.tasks.quality import in_words, value_of

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
