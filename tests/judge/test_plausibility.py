"""Reasons to doubt a race: other programs, and workers that seem to do the work of more than their number."""

from __future__ import annotations

import io
from typing import Any

import pytest

from synthetic_races import beside, repeated, result
from typed_judge import compare
from velodrome.cli.output import SafeConsole
from velodrome.cli.race_output import print_comparison
from velodrome.judge.measures import Ratio
from velodrome.judge.plausibility import implausible, is_too_good, late_note, suspects
from verdict_questions import answer as verdict

pytestmark = pytest.mark.unit

SINGLE = repeated([100, 101, 99], strategy="single")


def test_an_ordinary_race_gives_no_reason_for_doubt() -> None:
    assert implausible(compare([*SINGLE, *repeated([190, 192, 188], workers=2)])) == []
    assert implausible([]) == []


def test_runs_beside_other_programs_are_one() -> None:
    loaded = [beside(made, 0.9) for made in repeated([50, 52, 48], workers=2)]
    found = verdict([*SINGLE, *loaded])
    [reason] = found.unreliable
    assert reason == "other programs used 0.9 of 2 cores during 3 of 6 runs, which may have changed the answer"
    assert found.caveats[0] == f"O{found.unreliable[0][1:]}."
    assert "for now" in found.verdict


def test_what_other_programs_may_have_slowed_is_no_excess_of_a_rival() -> None:
    slowed = [beside(made, 0.5) for made in SINGLE]
    assert implausible(compare([*SINGLE, *repeated([300, 310, 290], workers=2)]))
    assert not implausible(compare([*slowed, *repeated([300, 310, 290], workers=2)]))


def test_an_efficiency_above_one_hundred_per_cent_is_suspect() -> None:
    (reason,) = implausible(compare([*SINGLE, *repeated([500, 510, 490], workers=2)]))
    assert reason.startswith("torch/ddp with 2 workers is 5.0 times as fast as its engine's single run, an efficiency "
                             "of 250 %: more than 100 % is suspect")
    (alone,) = implausible(compare([*repeated([100, 101, 99]), *repeated([500, 510, 490], workers=2)]))
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
    assert implausible(compare([*SINGLE, result(rate=200)])) == []


def _at(hours: list[float], runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [run | {"started": 3600 * hour} for hour, run in zip(hours, runs, strict=True)]


def test_a_configuration_that_ran_after_the_others_is_a_reason_for_doubt() -> None:
    others = _at([1, 2, 3], SINGLE)
    for hours, late in (([1.5, 2.5, 3.5], 0), ([1.5, 9, 3.5], 1), ([8, 9, 10], 2)):
        found = verdict([*others, *_at(hours, repeated([190, 192, 188], workers=2))])
        assert found.reliable == (late < 2), hours
    assert found.unreliable == (
        "2 of 3 runs of torch/ddp with 2 workers ran after later repetitions of others had begun, so machine drift "
        "biases these runs",)
    assert found.verdict == "use torch/ddp with 2 workers for now: distributing pays off."
    assert found.next == "add repetitions: `velodrome race --name RACE --repeat 6`.", "--until-sure would run nothing"
    assert late_note(compare(others)) == late_note([]) == ""


def _of_script(workers: int, rate: float, batch: float, arguments: str = "--batch-size 64") -> dict[str, Any]:
    made = result("script", workers, rate=rate, script="train.py", script_args=arguments)
    made["job"] = {"script": "train.py", "script_args": arguments, "workers": workers, "engine": "torch",
                   "strategy": "script", "dataset": "script", "model": "train.py"}
    made["throughput"] = {"examples_per_second": rate, "batches_per_second": rate / batch, "warmup_steps": 0}
    return made


def test_a_script_whose_steps_grow_with_its_workers_is_another_training() -> None:
    runs = [_of_script(1, 1000.0, 63.5), _of_script(2, 7630.0, 126.0)]
    rows = compare(runs)
    (doubt,) = implausible(rows)
    assert doubt == (
        "torch/script with 2 workers trains on 126 examples a step, and with 1 worker it is 64: that is not the same "
        "training, so accuracy and speed do not compare; keep the global batch by an argument such as --batch-size "
        "{64/workers}")
    assert suspects(rows) == {"torch/script with 2 workers": "not the same training"}
    answer = verdict(runs)
    assert not answer.reliable
    assert "keeps the global batch" in answer.next


def test_the_table_marks_the_scaling_of_another_training() -> None:
    console = SafeConsole(width=200, record=True, file=io.StringIO())
    rows = compare([_of_script(1, 1000.0, 63.5), _of_script(2, 7630.0, 126.0)])
    print_comparison(console, rows, "velodrome report made")
    _, scaled = console.export_text().split("7.63")
    assert "not the same training" in scaled


def test_a_script_that_keeps_its_batch_is_only_suspect_where_it_scales_too_well() -> None:
    kept = "--batch-size {64/workers}"
    assert implausible(compare([_of_script(1, 1000.0, 64.0, kept), _of_script(2, 1900.0, 63.0, kept)])) == []
    rows = compare([_of_script(1, 1000.0, 64.0, kept), _of_script(2, 7630.0, 63.0, kept)])
    (doubt,) = implausible(rows)
    assert "an efficiency of 381 %: more than 100 % is suspect, either its batch is another one" in doubt
    assert suspects(rows) == {"torch/script with 2 workers": "implausible"}


def test_scripts_without_examples_give_no_doubt_about_their_batch() -> None:
    runs = [_of_script(workers, 1000.0, 64.0) for workers in (1, 2)]
    for run in runs:
        run["throughput"] = {"examples_per_second": None, "batches_per_second": None, "warmup_steps": 0}
    assert implausible(compare(runs)) == []
