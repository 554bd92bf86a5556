"""Verdicts by what a success costs, for made-up races in which some runs miss the target or crash."""

from __future__ import annotations

from typing import Any

import pytest

from synthetic_races import EXAMPLES, repeated, result
from typed_judge import compare
from velodrome.job.values import Target
from velodrome.judge.candidates import ask
from velodrome.judge.criteria import Criteria, Price
from velodrome.judge.verdict import Recommendation
from velodrome.reporting.tables import pairwise_table
from verdict_questions import answer as verdict

pytestmark = pytest.mark.unit

GOAL = "accuracy>=0.94"
NOISE = (1.0, 1.01, 0.99, 1.005, 0.995)
SINGLE = repeated([100 * part for part in NOISE], strategy="single")


def judged(results: list[dict[str, Any]], objective: str = "time-to-accuracy", target: str | None = GOAL,
           **more: Any) -> Recommendation:
    return verdict(results, objective, target, **more)


def test_one_unlucky_run_of_five_does_not_exclude_the_fastest_and_is_mentioned() -> None:
    fast = repeated([800 * part for part in NOISE], [0.95, 0.95, 0.90, 0.95, 0.95], workers=2)
    answer = judged([*SINGLE, *fast])
    assert answer.best == "torch/ddp with 2 workers"
    spent = sum(4 * EXAMPLES / (800 * part) for part in NOISE)
    assert (f"{spent / 4:.2f} s of training per success (reached accuracy>=0.94 in 4 of 5 runs) against 48.00 s"
            in answer.why)


def test_an_unlucky_run_counts_against_a_close_lead() -> None:
    close = repeated([110 * part for part in NOISE], [0.95, 0.95, 0.95, 0.95, 0.90], workers=2)
    answer = judged([*SINGLE, *close])
    assert (answer.decision, answer.distribute) == ("open", None)
    assert answer.verdict == "use torch/single with 1 worker for now: nothing else was clearly faster."


def test_a_configuration_that_never_reached_the_target_is_set_aside_with_its_count() -> None:
    never = repeated([800 * part for part in NOISE], accuracy=0.90, workers=2)
    answer = judged([*SINGLE, *never, *repeated([200 * part for part in NOISE], strategy="allreduce", workers=2)])
    assert answer.best == "torch/allreduce with 2 workers"
    assert ("1 of 3 configurations set aside: torch/ddp with 2 workers reached accuracy>=0.94 in 0 of 5 runs."
            in answer.caveats)


def test_the_only_one_that_reached_the_target_is_not_advised_to_race_those_that_did_not() -> None:
    answer = judged([*SINGLE, *repeated([800 * part for part in NOISE], accuracy=0.90, workers=2)])
    assert answer.decision == "alone"
    assert answer.verdict == "use torch/single with 1 worker: no other reached accuracy>=0.94."
    assert answer.next.startswith("train the others for more epochs")


def test_the_pairwise_table_shows_how_often_the_target_was_reached() -> None:
    fast = repeated([800 * part for part in NOISE], [0.95, 0.95, 0.90, 0.95, 0.95], workers=2)
    question = ask(compare([*SINGLE, *fast], Target.parse(GOAL)), Criteria("time-to-accuracy", GOAL))
    table = pairwise_table(question, "torch/single with 1 worker")
    assert table is not None
    assert (table.rows[0][1].text, table.rows[0][1].detail) == (
        "7.50 s of training per success", "reached accuracy>=0.94 in 4 of 5 runs"
    )


def test_cost_pays_for_runs_that_crashed_and_for_those_that_missed() -> None:
    crash = result("ddp", 2, status="failed", seed=6, seconds={"startup": 2.0, "train": 0.0, "total": 500.0})
    runs = [*SINGLE, *repeated([800 * part for part in NOISE], workers=2), crash]
    answer = judged(runs, "cost", None, price=Price(3600.0))
    assert "per success (finished in 5 of 6 runs)" in answer.why
    assert answer.best == "torch/single with 1 worker"
    assert judged(runs[:-1], "cost", None).best == "torch/ddp with 2 workers"
    missed = repeated([800 * part for part in NOISE], [0.95, 0.95, 0.90, 0.95, 0.95], workers=2)
    why = judged([*SINGLE, *missed], "cost").why
    assert "instance-seconds per success (reached accuracy>=0.94 in 4 of 5 runs)" in why
