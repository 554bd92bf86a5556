"""What verdicts say about crashes, updates of different size, and differences that no clock can tell."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest

from synthetic_races import repeated, result
from typed_judge import compare, judge
from velodrome.judge.criteria import OBJECTIVES, Criteria
from velodrome.judge.judge import Failure
from velodrome.judge.verdict import Recommendation

pytestmark = pytest.mark.unit

TARGET = "accuracy>=0.9"
SINGLE = repeated([100, 101, 99], strategy="single")
TWO = repeated([190, 192, 188], workers=2)
TWO_CRASHES = [result("ddp", 2, status="failed", seed=seed) for seed in (4, 5)]


def judged(results: list[dict[str, Any]], objective: str = "throughput") -> Recommendation:
    failures = [Failure(made["run"], made["status"], "") for made in results if made["status"] != "finished"]
    return judge(results, Criteria(objective, race_target=TARGET), failures).answers[""]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_crashes_of_any_configuration_are_named_whatever_the_objective(objective: str) -> None:
    answer = judged([*SINGLE, *TWO, *TWO_CRASHES], objective)
    assert "torch/ddp with 2 workers crashed in 2 of 5 runs." in answer.caveats
    assert "left out" not in " ".join(answer.caveats), "they are counted once"
    counts = json.loads(json.dumps(answer.as_json()))["configurations"]["torch/ddp with 2 workers"]
    reached = {"reached": 3} if objective == "time-to-accuracy" else {}
    assert counts == {"runs": 3, "failed": 2, "crashed": 2, "update_size": 64} | reached


def test_the_first_line_says_that_the_winner_crashed() -> None:
    answer = judged([*SINGLE, *TWO, *TWO_CRASHES])
    assert answer.verdict == "use torch/ddp with 2 workers: distributing pays off; it crashed in 2 of 5 runs."
    loser = judged([*SINGLE, *repeated([50, 51, 49], workers=2), *TWO_CRASHES])
    assert "crashed" not in loser.verdict
    assert "torch/ddp with 2 workers crashed in 2 of 5 runs." in loser.caveats


def test_a_configuration_that_always_crashed_is_named_and_counted() -> None:
    broken = repeated([1, 1, 1], workers=4, status="failed")
    answer = judged([*SINGLE, *TWO, *broken])
    assert answer.caveats == ("torch/ddp with 4 workers crashed in all of 3 runs.",)
    assert answer.configurations["torch/ddp with 4 workers"] == {"runs": 0, "failed": 3, "crashed": 3}
    nothing = judged(broken)
    assert (nothing.decision, nothing.caveats) == ("nothing", answer.caveats)


def test_updates_of_different_size_are_labelled() -> None:
    larger = repeated([190, 192, 188], workers=2, batch_scope="per-worker", batch_of_step=128)
    assert judged([*SINGLE, *larger]).caveats == (
        "torch/ddp with 2 workers updates the weights after 128 examples, torch/single with 1 worker after 64: this "
        "is not the same training.",
    )
    level = repeated([100.5, 101.4, 99.6], workers=2, batch_scope="per-worker", batch_of_step=128)
    opened = repeated([100, 130, 70], workers=2, batch_scope="per-worker", batch_of_step=128)
    for other in (level, opened):
        assert judged([*SINGLE, *other]).caveats == (
            "torch/single with 1 worker updates the weights after 64 examples, torch/ddp with 2 workers after 128: "
            "this is not the same training.",
        )
    assert judged([*SINGLE, *TWO]).caveats == ()
    batches = [*SINGLE, *repeated([150, 151, 149], strategy="single", batch_size=128)]
    assert judged(batches).caveats == (), "the names have the sizes"


def test_undistributed_configurations_are_compared_with_each_other() -> None:
    slower = repeated([60, 61, 59], strategy="single", engine="tensorflow")
    answer = judged([*SINGLE, *slower, *repeated([50, 51, 49], workers=2)])
    assert answer.best == "torch/single with 1 worker"
    assert (answer.decision, answer.distribute) == ("do-not-distribute", False)
    alike = repeated([101, 99, 100], strategy="single", engine="tensorflow")
    either = judged([*repeated([100, 120, 90], strategy="single"), *alike, *repeated([5, 5.1, 4.9], workers=2)])
    assert either.distribute is False
    assert either.decision == "open"
    assert {either.best, either.rival} == {"torch/single with 1 worker", "tensorflow/single with 1 worker"}
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
        said = re.search(r"use (.+?) for now: (.+?) was ", answer.verdict)
        if answer.decision == "alone":
            assert answer.rival is None
            assert ("single run" in answer.next) == ("/single" not in str(answer.best))
        assert said is None or said[1] != said[2], "a doubtful lead over itself"
        if answer.needed is not None:
            assert len(answer.needed.seconds) >= 2
