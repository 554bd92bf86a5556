"""Stragglers are found, named with their factor, and move no verdict."""

from __future__ import annotations

import pytest

from synthetic_races import repeated
from typed_judge import compare
from velodrome.judge.plausibility import straggler_note, stragglers
from verdict_questions import answer as verdict

pytestmark = pytest.mark.unit

SINGLE = [100, 102, 99, 101, 98, 100.5]
DDP = [150, 151, 148, 153, 149, 152]


def test_a_run_far_from_the_others_is_named_with_its_factor() -> None:
    slow = [*DDP[:3], DDP[3] / 3, *DDP[4:]]
    rows = compare([*repeated(SINGLE, strategy="single"), *repeated(slow, workers=2)])
    found = stragglers(rows)
    assert [(one.name, one.repetition) for one in found] == [("torch/ddp with 2 workers", 4)]
    assert found[0].factor == pytest.approx(1 / 3, rel=0.05)
    assert straggler_note(rows).startswith(
        "1 of 12 runs was a straggler (8 %): torch/ddp with 2 workers in repetition 4 (3.0 times slower)."
    )


def test_one_straggler_takes_no_win_away() -> None:
    slow = [*DDP[:3], DDP[3] / 3, *DDP[4:]]
    answer = verdict([*repeated(SINGLE, strategy="single"), *repeated(slow, workers=2)])
    assert answer.best == "torch/ddp with 2 workers"


def test_ordinary_noise_has_no_stragglers() -> None:
    rows = compare([*repeated(SINGLE, strategy="single"), *repeated(DDP, workers=2)])
    assert straggler_note(rows) == ""
    assert straggler_note(compare(repeated([100, 101, 10], workers=2))) == "", "nothing to compare it with"
