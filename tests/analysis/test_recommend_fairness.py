"""What verdicts say about crashes, updates of different size, and differences that no clock can tell."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest

from synthetic_races import repeated, result
from velodrome.analysis.compare import compare, crashed_always
from velodrome.analysis.objective import OBJECTIVES
from velodrome.analysis.recommend import Recommendation, recommend, verdict
from velodrome.spec.job import Target

pytestmark = pytest.mark.unit

TARGET = "accuracy>=0.9"
SINGLE = repeated([100, 101, 99], strategy="single")
TWO = repeated([190, 192, 188], workers=2)
TWO_CRASHES = [result("ddp", 2, status="failed", seed=seed) for seed in (4, 5)]


def judged(results: list[dict[str, Any]], objective: str = "throughput") -> Recommendation:
    failed = sum(made["status"] != "finished" for made in results)
    rows = compare(results, Target.parse(TARGET))
    return recommend(rows, objective, TARGET if objective == "time-to-accuracy" else None, failed=failed,
                     crashed=crashed_always(results))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_crashes_of_any_configuration_are_named_whatever_the_objective(objective: str) -> None:
    answer = judged([*SINGLE, *TWO, *TWO_CRASHES], objective)
    assert "torch/ddp with 2 workers crashed in 2 of 5 runs" in answer.why
    assert "left out" not in answer.why, "they are counted once"
    counts = json.loads(json.dumps(answer.as_json()))["configurations"]["torch/ddp with 2 workers"]
    reached = {"reached": 3} if objective == "time-to-accuracy" else {}
    assert counts == {"runs": 3, "failed": 2, "crashed": 2, "update_size": 64} | reached


def test_the_first_line_says_that_the_winner_crashed() -> None:
    answer = judged([*SINGLE, *TWO, *TWO_CRASHES])
    assert answer.verdict == ("use torch/ddp with 2 workers: the fastest of 2 configurations; torch/ddp with 2 workers "
                              "crashed in 2 of 5 runs.")
    assert verdict(compare([*SINGLE, *TWO, *TWO_CRASHES])) == f"Verdict: {answer.verdict}"
    loser = judged([*SINGLE, *repeated([50, 51, 49], workers=2), *TWO_CRASHES])
    assert "crashed" not in loser.verdict
    assert "crashed in 2 of 5 runs" in loser.why


def test_a_configuration_that_always_crashed_is_named_and_counted() -> None:
    broken = repeated([1, 1, 1], workers=4, status="failed")
    answer = judged([*SINGLE, *TWO, *broken])
    assert "(torch/ddp with 4 workers crashed in all of 3 runs.)" in answer.why
    assert answer.configurations["torch/ddp with 4 workers"] == {"runs": 0, "failed": 3, "crashed": 3}
    nothing = judged(broken)
    assert (nothing.decision, nothing.why) == ("nothing", "(torch/ddp with 4 workers crashed in all of 3 runs.)")


def test_updates_of_different_size_are_labelled() -> None:
    larger = repeated([190, 192, 188], workers=2, batch_scope="per-worker", batch_of_step=128)
    assert judged([*SINGLE, *larger]).verdict == (
        "use torch/ddp with 2 workers: the fastest of 2 configurations (128-example updates against 64 of torch/single "
        "with 1 worker)."
    )
    level = repeated([100.5, 101.4, 99.6], workers=2, batch_scope="per-worker", batch_of_step=128)
    assert judged([*SINGLE, *level]).verdict == (
        "do not distribute this: use torch/single with 1 worker; it is level with torch/ddp with 2 workers (64-example "
        "updates against 128)."
    )
    opened = repeated([100, 130, 70], workers=2, batch_scope="per-worker", batch_of_step=128)
    assert judged([*SINGLE, *opened]).verdict.endswith(
        "not beyond doubt; 64-example updates against 128 of torch/ddp with 2 workers)."
    )
    assert "updates" not in judged([*SINGLE, *TWO]).verdict
    batches = [*SINGLE, *repeated([150, 151, 149], strategy="single", batch_size=128)]
    assert "updates" not in judged(batches).verdict, "the names have the sizes"


def test_undistributed_configurations_are_compared_with_each_other() -> None:
    slower = repeated([60, 61, 59], strategy="single", engine="tensorflow")
    answer = judged([*SINGLE, *slower, *repeated([50, 51, 49], workers=2)])
    assert answer.best == "torch/single with 1 worker"
    assert (answer.decision, answer.distribute) == ("do-not-distribute", False)
    alike = repeated([101, 99, 100], strategy="single", engine="tensorflow")
    either = judged([*repeated([100, 120, 90], strategy="single"), *alike, *repeated([5, 5.1, 4.9], workers=2)])
    assert either.distribute is False
    assert "which of torch/single with 1 worker and tensorflow/single with 1 worker is best is open" in either.verdict
    batches = judged([*SINGLE, *repeated([60, 61, 59], strategy="single", batch_size=128)])
    assert (batches.decision, batches.best) == ("use", "torch/single with 1 worker, batch 64")


def test_a_difference_below_the_resolution_of_clocks_is_level_however_constant() -> None:
    same = judged([*repeated([100.0] * 5, strategy="single"), *repeated([100.05] * 5, workers=2)])
    assert (same.decision, same.best, same.distribute) == ("level", "torch/single with 1 worker", False)
    assert "times better" not in same.why
    equal = judged([*repeated([100.0] * 5, strategy="single"), *repeated([100.0] * 5, workers=2)])
    assert equal.decision == "level"
    clear = judged([*repeated([100.0] * 5, strategy="single"), *repeated([150.0] * 5, workers=2)])
    assert clear.decision == "use"


def _races() -> list[list[dict[str, Any]]]:
    kinds = [
        {"strategy": "single"}, {"workers": 1}, {"workers": 2}, {"strategy": "allreduce", "workers": 2},
        {"strategy": "single", "engine": "tensorflow"},
        {"strategy": "parameter-server", "engine": "tensorflow", "servers": 1, "workers": 2},
    ]
    rates = ([100, 101, 99], [100, 130, 90], [99.9, 100.9, 98.9], [60])
    return [
        [made for kind, found in zip(chosen, itertools.islice(itertools.cycle(rates), start, None), strict=False)
         for made in repeated(found, **kind)]
        for size in (1, 2, 3) for chosen in itertools.combinations(kinds, size) for start in range(4)
    ]


def test_no_configuration_is_advised_to_race_itself() -> None:
    for results in _races():
        answer = judged(results)
        assert answer.best != answer.rival
        names = {row.name for row in compare(results)}
        assert len(names) == len(compare(results))
        said = re.search(r"use (.+?) \((.+?) leads\b", answer.verdict)
        assert "level with " + str(answer.best) not in answer.verdict
        if answer.decision == "alone":
            assert answer.rival is None
            assert ("single run" in answer.next) == ("/single" not in str(answer.best))
        if said and "not beyond doubt" in answer.verdict:
            assert said[1] != said[2], "a doubtful lead over itself"
        if answer.settle is not None:
            assert len(answer.settle.seconds) >= 2
