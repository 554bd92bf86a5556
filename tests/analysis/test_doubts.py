"""Reasons to doubt a race: other programs, and workers that seem to do the work of more than their number."""

from __future__ import annotations

from typing import Any

import pytest

from synthetic_races import beside, repeated, result
from velodrome.analysis.compare import compare
from velodrome.analysis.doubts import is_too_good, late_note, too_good
from velodrome.analysis.recommend import recommend
from velodrome.analysis.statistics import Ratio

pytestmark = pytest.mark.unit

SINGLE = repeated([100, 101, 99], strategy="single")


def test_an_ordinary_race_gives_no_reason_for_doubt() -> None:
    assert too_good(compare([*SINGLE, *repeated([190, 192, 188], workers=2)])) == []
    assert too_good([]) == []


def test_runs_beside_other_programs_are_one() -> None:
    loaded = [beside(made, 0.9) for made in repeated([50, 52, 48], workers=2)]
    found = recommend(compare([*SINGLE, *loaded]))
    assert found.doubts == ("other programs used 0.9 of 2 cores during 3 of 6 runs, which may have changed the answer",)
    assert found.caveats[0] == f"O{found.doubts[0][1:]}."
    assert "for now" in found.verdict


def test_what_other_programs_may_have_slowed_is_no_excess_of_a_rival() -> None:
    slowed = [beside(made, 0.5) for made in SINGLE]
    assert too_good(compare([*SINGLE, *repeated([300, 310, 290], workers=2)]))
    assert not too_good(compare([*slowed, *repeated([300, 310, 290], workers=2)]))


def test_an_efficiency_above_one_hundred_per_cent_is_suspect() -> None:
    (reason,) = too_good(compare([*SINGLE, *repeated([500, 510, 490], workers=2)]))
    assert reason.startswith("torch/ddp with 2 workers is 5.0 times as fast as its engine's single run, an efficiency "
                             "of 250 %: more than 100 % is suspect")
    (alone,) = too_good(compare([*repeated([100, 101, 99]), *repeated([500, 510, 490], workers=2)]))
    assert "as fast as its own run with one worker" in alone


@pytest.mark.parametrize(
    ("place", "suspect"),
    [
        pytest.param(Ratio(1.3, 1.1, 1.5), True, id="beyond noise"),
        pytest.param(Ratio(1.3, 0.9, 1.8), False, id="within noise"),
        pytest.param(Ratio(1.02, 1.01, 1.03), False, id="too little to matter"),
        pytest.param(Ratio(1.1), False, id="one run that may be noise"),
        pytest.param(Ratio(2.5), True, id="one run that can hardly be noise"),
        pytest.param(Ratio(0.9, 0.8, 0.95), False, id="below"),
    ],
)
def test_only_an_efficiency_beyond_noise_is_suspect(place: Ratio, suspect: bool) -> None:
    assert is_too_good(place) is suspect


def test_one_worker_may_be_faster_than_single() -> None:
    assert too_good(compare([*SINGLE, result(rate=200)])) == []


def _at(hours: list[float], runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [run | {"started": 3600 * hour} for hour, run in zip(hours, runs, strict=True)]


def test_a_configuration_that_ran_after_the_others_is_a_reason_for_doubt() -> None:
    others = _at([1, 2, 3], SINGLE)
    for hours, late in (([1.5, 2.5, 3.5], 0), ([1.5, 9, 3.5], 1), ([8, 9, 10], 2)):
        found = recommend(compare([*others, *_at(hours, repeated([190, 192, 188], workers=2))]))
        assert found.reliable == (late < 2), hours
    assert found.doubts == ("2 of 3 runs of torch/ddp with 2 workers ran after later repetitions of others had begun, "
                            "so machine drift biases these runs",)
    assert found.verdict == "use torch/ddp with 2 workers for now: distributing pays off."
    assert "--until-sure" in found.next
    assert late_note(compare(others)) == late_note([]) == ""
