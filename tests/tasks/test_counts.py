"""Counts add up exactly, whatever names a task gives its own, and travel over ranks as one vector."""

from __future__ import annotations

import pytest

from velodrome.tasks.base import Counts

pytestmark = pytest.mark.unit

NAMES = ("correct", "squares")


def test_counts_add_up_exactly_and_travel_as_numbers() -> None:
    total = Counts(10, 1.5, {"correct": 3}) + Counts(7, 2.0, {"correct": 4})
    assert total == Counts(17, 3.5, {"correct": 7})
    assert Counts.of(total.vector(["correct"]), ["correct"]) == total


def test_a_rank_that_counted_nothing_sends_as_many_numbers_as_the_others() -> None:
    nothing, something = Counts(), Counts(2, 1.0, {"correct": 1, "squares": 0.25})
    assert nothing.vector(NAMES).shape == something.vector(NAMES).shape
    assert Counts.of(nothing.vector(NAMES) + something.vector(NAMES), NAMES) == something
    assert nothing + something == something + nothing == something


def test_events_carry_a_flat_form_in_the_order_of_the_task() -> None:
    fields = Counts(2, 1.0, {"squares": 0.25, "correct": 1}).fields(NAMES)
    assert list(fields.items()) == [("correct", 1), ("squares", 0.25), ("total", 2), ("loss_sum", 1.0)]
