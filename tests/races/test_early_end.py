"""Runs of a race to a target that are ended early: which, when, and how a race continues after that.

Jobs do not train here: each reports the epochs of a known pace, and is ended by what listens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from racing import here
from synthetic_races import result, typed
from typed_judge import compare
from velodrome.events import make_event
from velodrome.job.job import Job
from velodrome.job.names import expand
from velodrome.job.race import Race, parse_race
from velodrome.job.result import Result
from velodrome.job.values import Target
from velodrome.judge.attempts import limits
from velodrome.judge.budget import Ending
from velodrome.judge.criteria import criteria_of
from velodrome.races import runs as race_runs
from velodrome.races.folder import RaceFolder, shuffled
from velodrome.races.request import SILENT
from velodrome.races.runs import RaceRuns
from velodrome.races.until_sure import UntilSure
from velodrome.run.state import RunState
from velodrome.run.supervisor import Listener, Stop, never

pytestmark = pytest.mark.unit
GOAL = "accuracy>=0.9"
EPOCHS = 20


def learned(job: Job, pace: float, epochs: int | None) -> list[dict[str, Any]]:
    """The history of a run that reaches the target after so many epochs, or never."""
    last = EPOCHS if epochs is None else epochs
    return [{"epoch": epoch, "seconds": pace * (1 + 0.01 * (job.seed % 3)), "evaluate_seconds": 0.1,
             "validation_accuracy": 0.95 if epoch == epochs else 0.5} for epoch in range(1, last + 1)]


@dataclass
class Machine:
    """Reports the epochs of a job: `paces` has seconds per epoch and the epoch that reaches the target, by workers."""

    paces: dict[int, tuple[float, int | None]]
    whole: list[str] = field(default_factory=list)
    ended: dict[str, int] = field(default_factory=dict)

    def execute(
        self, job: Job, *, store: Any, name: str, listener: Listener, stop: Stop = never, **_: Any
    ) -> Result:
        history = learned(job, *self.paces[job.workers])
        made = result(job.strategy, job.workers, 1000.0, seed=job.seed, run=name, target=GOAL)
        made |= {"history": history, "reached_target": self.paces[job.workers][1] is not None}
        state = RunState()
        for entry in history:
            right = round(1000 * entry["validation_accuracy"])
            counts = {"total": 1000, "correct": right, "loss_sum": 1.0}
            event = make_event("epoch", role="worker", rank=0, epoch=entry["epoch"], seconds=entry["seconds"],
                               evaluate_seconds=0.1, steps=1, train=counts, validation=counts)
            state.add(event)
            listener(state, event)
            if (failure := stop(state)) is not None:
                done = entry["epoch"]
                self.ended[name] = done
                made |= {"status": "interrupted", "test": None, "history": history[:done], "error": failure.as_json()}
                break
        else:
            self.whole.append(name)
        run = store.create(name, job)
        finished = typed(made)
        run.finish(finished)
        run.close()
        return finished


def raced(runs: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch, **fields: Any) -> Ending:
    monkeypatch.setattr(race_runs, "execute", machine.execute)
    race: Race = parse_race({
        "job": {"dataset": "digits", "engine": "torch", "target": GOAL, "epochs": EPOCHS},
        "vary": {"entry": [{"strategy": "single"}, *({"strategy": "ddp", "workers": count} for count in (2, 3))]},
        "until_sure": True, "baseline": False, "max_repeat": 5, **fields,
    })
    folder = RaceFolder(runs, "first")
    entries = shuffled(expand(race.model_copy(update={"repeat": race.most})))
    folder.begin(race)
    loop = UntilSure(folder, race, entries, {}, criteria_of(race, [GOAL]))
    with folder.held():
        return loop.run(RaceRuns(folder, SILENT, here()), SILENT)


def test_a_run_is_ended_when_it_trained_twice_as_long_as_the_best_takes(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine({1: (1.0, 3), 2: (1.0, 15), 3: (1.0, None)})
    ending = raced(runs, machine, monkeypatch)
    assert ending.sure
    assert [task.survivors for task in ending.tasks] == [("torch/single with 1 worker",)]
    first = [name for name in machine.whole if name.endswith("-1")]
    assert len(first) == 3, "in the first repetition nobody knows what the best takes"
    assert set(machine.ended.values()) <= {6, 7}
    assert len(machine.ended) == 4, "the two slow ones in the second and third repetition"
    assert {drop.after for drop in ending.dropped} == {3}
    assert any("did not reach accuracy>=0.9 in any of its 3 runs" in drop.why for drop in ending.dropped)


def test_nothing_is_ended_before_the_grace_epochs(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine({1: (1.0, 3), 2: (1.0, 15), 3: (1.0, 4)})
    raced(runs, machine, monkeypatch, grace=12)
    assert set(machine.ended.values()) == {12}


def test_a_race_that_continues_does_not_repeat_what_was_ended(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine({1: (1.0, 3), 2: (1.0, 15), 3: (1.0, 3)})
    first = raced(runs, machine, monkeypatch, max_repeat=3)
    ran = len(machine.whole) + len(machine.ended)
    again = Machine(machine.paces)
    second = raced(runs, again, monkeypatch, max_repeat=3)
    assert (first.repetitions, ran, again.whole, again.ended) == (3, 9, [], {})
    assert first.tasks == second.tasks


def test_one_that_was_fast_in_any_run_and_one_that_is_within_twice_the_best_have_no_limit() -> None:
    def history(pace: float) -> dict[str, Any]:
        return {"history": learned(Job(dataset="digits"), pace, 3)}

    made = [result("single", 1, seed=seed, run=f"a{seed}", **history(1.0)) for seed in (1, 2)]
    made += [result("ddp", 2, seed=seed, run=f"b{seed}", **history(1.8)) for seed in (1, 2)]
    made += [result("ddp", 3, seed=seed, run=f"c{seed}", **history(4.0 if seed == 1 else 1.0)) for seed in (1, 2)]
    made += [result("ddp", 4, seed=seed, run=f"d{seed}", **history(4.0)) for seed in (1, 2)]
    found = limits(compare(made, Target.parse(GOAL)), Target.parse(GOAL))
    assert [limit.runs for limit in found] == [frozenset({"d1", "d2"})]
    assert found[0].best == "torch/single with 1 worker"
    assert "ended early: 9.0 s of training without accuracy>=0.9" in found[0].reason(9.0)
