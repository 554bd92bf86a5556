"""A race that runs until it is sure: who is dropped when, what ends it, and that it resumes where it stopped.

Jobs do not train here: each writes a result of a known speed, on a clock that runs with the jobs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from racing import Noted, here, run_race
from synthetic_races import beside, result, typed
from typed_judge import judge
from velodrome.job.job import Job
from velodrome.job.names import expand
from velodrome.job.race import Entry, Race, parse_race
from velodrome.job.result import Result
from velodrome.judge.budget import Ending
from velodrome.judge.criteria import Criteria, criteria_of
from velodrome.judge.judge import Dropped
from velodrome.judge.measures import foreign_cores
from velodrome.judge.phrases import as_option
from velodrome.races import limits
from velodrome.races import runs as race_runs
from velodrome.races.folder import RaceFolder, shuffled
from velodrome.races.jobs import stored_ending
from velodrome.races.request import SILENT, RaceObserver
from velodrome.races.runs import RaceRuns
from velodrome.races.until_sure import UntilSure
from velodrome.reporting.document import make_report
from velodrome.reporting.load import load_race
from velodrome.run.attempt import JobFailed
from velodrome.run.processes import Failure

ENTRIES = [{"strategy": "single"}, {"strategy": "ddp", "workers": 2}, {"strategy": "ddp", "workers": 3},
           {"strategy": "allreduce", "workers": 2}]
SECONDS = 10.0


@dataclass
class Machine:
    """Trains nothing: a job of so many workers has the rate that `speed` gives, with 2 % noise."""

    speed: Callable[[Job], float]
    #: Called before each job; what it returns is changed in the result. None is a crash.
    disturb: Callable[[str, int], dict[str, Any] | None] = lambda name, attempt: {}
    now: float = 0.0
    ran: list[str] = field(default_factory=list)

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1_800_000_000.0 + self.now

    def execute(self, job: Job, *, store: Any, name: str, **_: Any) -> Result:
        attempt = self.ran.count(name) + 1
        noise = 1 + 0.02 * random.Random(f"{name} {attempt}").uniform(-1, 1)
        made = result(job.strategy, job.workers, self.speed(job) * noise, batch_size=job.batch_size, seed=job.seed,
                      started=self.time(), ended=self.time() + SECONDS)
        self.ran.append(name)
        change = self.disturb(name, attempt)
        self.now += SECONDS
        run = store.create(name, job)
        if change is None:
            made = {**made, "status": "failed", "test": None, "error": {"message": "boom", "cause": "engine"}}
        else:
            made = {**made, **change}
        finished = typed({**made, "run": name})
        run.finish(finished)
        run.close()
        if change is None:
            raise JobFailed(Failure("boom"), finished)
        return finished


class Heard(RaceObserver):
    def __init__(self) -> None:
        self.drops: list[Dropped] = []
        self.notes: list[str] = []

    def dropped(self, drop: Dropped) -> None:
        self.drops.append(drop)

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(lambda job: {1: 1000.0, 2: 2000.0, 3: 900.0}[job.workers])
    monkeypatch.setattr(race_runs, "execute", made.execute)
    monkeypatch.setattr(limits, "time", made)
    return made


def asked(**fields: Any) -> Race:
    return parse_race({"job": {"dataset": "digits", "engine": "torch"}, "vary": {"entry": ENTRIES},
                       "until_sure": True, **fields})


def run(runs: Path, race: Race, seconds: float = SECONDS, promise: dict[str, float] | None = None) -> tuple[
    Ending, Heard
]:
    """Run a race whose jobs are expected to take so long, and to be so fast, by the beginning of their names."""
    folder = RaceFolder(runs, "first")
    entries = shuffled(expand(race.model_copy(update={"repeat": race.most})))
    folder.begin(race)
    heard = Heard()
    expected = dict.fromkeys((entry.name for entry in entries), seconds)
    found = {entry.name: rate for entry in entries for name, rate in (promise or {}).items() if name in entry.name}
    loop = UntilSure(folder, race, entries, expected, criteria_of(race, [None]), found)
    with folder.held():
        made = RaceRuns(folder, heard, here())
        return loop.run(made, heard), heard


def runs_of(machine: Machine, part: str) -> int:
    return sum(part in name for name in machine.ran)


def test_configurations_that_are_out_run_no_more_and_it_ends_when_it_is_sure(runs: Path, machine: Machine) -> None:
    machine.speed = lambda job: {"single": 1000.0, "allreduce": 1500.0, "ddp": 2000.0 if job.workers == 2 else 800.0}[
        job.strategy]
    ending, heard = run(runs, asked())
    assert ending.sure
    assert [task.survivors for task in ending.tasks] == [("torch/ddp with 2 workers",)]
    assert {drop.name for drop in heard.drops} == {
        "torch/single with 1 worker", "torch/ddp with 3 workers", "torch/allreduce with 2 workers"}
    assert list(ending.dropped) == heard.drops
    first = heard.drops[0]
    assert first.beaten_by is not None
    assert first.lead is not None
    assert first.lead.low is not None
    least = math.floor(100 * first.lead.low) / 100  # rounded up it would not be true
    assert f"{first.lead.estimate:.2f}× slower than {first.beaten_by} (at least {least:.2f}×)" in str(first)
    assert str(first).startswith(f"dropped after {first.after} repetitions: {first.name}, ")
    # Each ran until its repetition and no longer.
    for drop in heard.drops:
        assert len(drop.runs) == drop.after
    assert len(machine.ran) == sum(len(drop.runs) for drop in heard.drops) + ending.repetitions


def test_the_report_lists_what_was_dropped_and_saved(runs: Path, machine: Machine) -> None:
    ending, _ = run(runs, asked())
    report = make_report(load_race(runs, "first"))
    table = next(table for table in report.tables if table.name == "dropped")
    assert [row[0].text for row in table.rows] == [drop.name for drop in ending.dropped]
    assert [row[1].text for row in table.rows] == [str(drop.after) for drop in ending.dropped]
    grid = 4 * ending.repetitions
    saved = f"{len(machine.ran)} of the {grid} runs of the full grid"
    assert any(saved in note for note in report.notes) == (len(machine.ran) < grid)
    assert not any("not started yet" in note for note in report.notes)


def test_configurations_that_are_surely_level_end_it_too(runs: Path, machine: Machine) -> None:
    machine.speed = lambda job: 2000.0 if job.strategy != "single" else 100.0
    ending, _ = run(runs, asked(tolerance="20%"))
    assert ending.sure
    assert ending.tasks[0].outcome == "level"
    assert len(ending.tasks[0].survivors) == 3


def test_it_ends_open_after_the_most_repetitions(runs: Path, machine: Machine) -> None:
    machine.speed = lambda job: 1000.0
    ending, heard = run(runs, asked(max_repeat=3, tolerance="0.1%"))
    assert (ending.stopped, ending.repetitions, len(machine.ran)) == ("max-repeat", 3, 12)
    assert heard.drops == []


def test_an_interrupted_race_resumes_and_decides_the_same(runs: Path, machine: Machine, tmp_path: Path) -> None:
    whole, _ = run(tmp_path / "other", asked())
    everything = list(machine.ran)
    machine.ran.clear()

    def interrupt(name: str, attempt: int) -> dict[str, Any]:
        if len(machine.ran) == 14:
            raise KeyboardInterrupt
        return {}

    machine.disturb = interrupt
    with pytest.raises(KeyboardInterrupt):
        run(runs, asked())
    del machine.ran[-1]  # it was not finished
    machine.disturb = lambda name, attempt: {}
    resumed, heard = run(runs, asked())
    assert machine.ran == everything
    assert resumed == whole
    assert tuple(heard.drops) == whole.dropped
    again, _ = run(runs, asked())
    assert machine.ran == everything
    assert again == whole


def test_no_run_starts_that_would_end_after_the_budget(runs: Path, machine: Machine) -> None:
    ending, _ = run(runs, asked(budget="95s", tolerance="0.1%"))
    assert (ending.stopped, len(machine.ran), machine.now) == ("budget", 9, 90.0)
    assert "raise --budget to continue" in ending.sentence
    # The time of earlier sessions counts; more of it completes the repetition.
    again, _ = run(runs, asked(budget="95s", tolerance="0.1%"))
    assert (again.stopped, len(machine.ran)) == ("budget", 9)
    run(runs, asked(budget="2m", tolerance="0.1%"))
    assert len(machine.ran) == 12
    assert len({name.rpartition("-")[2] for name in machine.ran}) == 3


def test_every_configuration_runs_at_least_as_often_as_repeat_says(runs: Path, machine: Machine) -> None:
    ending, _ = run(runs, asked(repeat=6))
    assert len(machine.ran) == 4 * 6
    assert ending.sure
    assert min(drop.after for drop in ending.dropped) < 6


def test_a_race_with_fixed_repetitions_continues_until_it_is_sure(runs: Path, machine: Machine) -> None:
    fixed = asked(until_sure=False, repeat=2)
    folder = RaceFolder(runs, "first")
    folder.begin(fixed)
    run_race(folder, shuffled(expand(fixed)))
    assert len(machine.ran) == 8
    ending, _ = run(runs, folder.stamped(asked()))
    assert ending.sure
    assert len(machine.ran) == len(set(machine.ran))


def test_a_crashed_job_is_tried_once_more_at_the_end_of_its_block(runs: Path, machine: Machine) -> None:
    machine.disturb = lambda name, attempt: None if name.startswith("torch-ddp-2w") and attempt == 1 else {}
    ending, _ = run(runs, asked())
    assert ending.sure
    name = "torch-ddp-2w-128b-1"
    assert machine.ran[:5].index(name) < 4
    assert machine.ran[4] == name
    assert (runs / "first" / f"{name}.attempt-1").is_dir()
    assert [task.survivors for task in ending.tasks] == [("torch/ddp with 2 workers",)] or ending.tasks[0].outcome


def test_a_block_is_judged_without_a_job_that_crashed_twice(runs: Path, machine: Machine) -> None:
    machine.disturb = lambda name, attempt: None if name == "torch-ddp-2w-128b-2" else {}
    ending, _ = run(runs, asked())
    assert ending.sure
    assert machine.ran.count("torch-ddp-2w-128b-2") == 2
    before = list(machine.ran)
    run(runs, asked())
    assert machine.ran == before


def test_a_configuration_that_never_finishes_is_dropped(runs: Path, machine: Machine) -> None:
    machine.disturb = lambda name, attempt: None if "ddp-3w" in name else {}
    ending, heard = run(runs, asked())
    assert str(heard.drops[0]) == "dropped after 1 repetition: torch/ddp with 3 workers, did not finish in 2 of 2 runs"
    assert runs_of(machine, "ddp-3w") == 2
    assert ending.sure
    report = make_report(load_race(runs, "first"))
    table = next(table for table in report.tables if table.name == "dropped")
    assert table.rows[0][4].text == "did not finish in 2 of 2 runs"


def test_a_race_in_which_everything_crashes_ends(runs: Path, machine: Machine) -> None:
    machine.disturb = lambda name, attempt: None
    ending, _ = run(runs, asked())
    assert (ending.stopped, len(machine.ran)) == ("hopeless", 8)


def fixed(runs: Path, repeat: int = 2) -> tuple[RaceFolder, list[Entry]]:
    race = asked(until_sure=False, repeat=repeat)
    folder = RaceFolder(runs, "first")
    folder.begin(race)
    return folder, shuffled(expand(race))


def loaded(used: float) -> dict[str, Any]:
    return {"hosts": beside({}, used)["hosts"]}


def test_a_run_that_other_programs_disturbed_is_repeated_at_the_end_of_its_block(
    runs: Path, machine: Machine
) -> None:
    folder, entries = fixed(runs)
    busy = entries[1].name
    machine.disturb = lambda name, attempt: loaded(1.0) if (name, attempt) == (busy, 1) else loaded(0.0)
    results = run_race(folder, entries)
    assert machine.ran[4] == busy
    assert machine.ran.count(busy) == 2
    assert len(machine.ran) == 9
    assert all(foreign_cores(result) == 0.0 for result in results)
    record = load_race(runs, "first")
    assert (record.repeated, record.aside, len(record.results)) == ((busy,), 0, 8)
    assert any(f"disturbed less counts: {busy}." in note for note in make_report(record).notes)
    assert [again.as_json() for again in run_race(folder, entries)] == [result.as_json() for result in results]
    assert len(machine.ran) == 9


@pytest.mark.parametrize(("first", "second", "kept"), [(0.6, 1.2, 0.6), (1.2, 0.6, 0.6)])
def test_of_two_disturbed_attempts_the_less_disturbed_counts(
    runs: Path, machine: Machine, first: float, second: float, kept: float
) -> None:
    folder, entries = fixed(runs, 1)
    busy = entries[0].name
    machine.disturb = lambda name, attempt: loaded((first, second)[attempt - 1] if name == busy else 0.0)
    results = run_race(folder, entries)
    assert foreign_cores(results[0]) == kept
    stored = next(run for run in load_race(runs, "first").results if run.run == busy)
    assert foreign_cores(stored) == kept


def test_a_machine_that_is_always_busy_repeats_only_a_few_runs(runs: Path, machine: Machine) -> None:
    folder, entries = fixed(runs, 3)
    noted = Noted()
    machine.disturb = lambda name, attempt: loaded(1.0)
    with folder.held():
        made = RaceRuns(folder, noted, here())
        race_runs.run_blocks(made, entries)
    assert len(machine.ran) == 12 + 2
    assert noted.notes[-1] == "other programs keep this machine busy: disturbed runs are no longer repeated"


@pytest.mark.parametrize("killed", [False, True], ids=["Ctrl-C", "kill -9"])
def test_a_run_whose_repetition_is_interrupted_still_counts(runs: Path, machine: Machine, killed: bool) -> None:
    folder, entries = fixed(runs, 1)
    busy = entries[0].name

    def disturb(name: str, attempt: int) -> dict[str, Any]:
        if attempt == 2:
            raise KeyboardInterrupt
        return loaded(1.0 if name == busy else 0.0)

    machine.disturb = disturb
    with pytest.raises(KeyboardInterrupt):
        run_race(folder, entries)
    assert load_race(runs, "first").aside == 0
    if killed:
        # A controller that is killed leaves the finished attempt archived, beside a run without a result or none.
        (folder.path / busy).rename(folder.path / f"{busy}.attempt-1")
        folder.store.create(busy, entries[0].job).close()
    machine.disturb = lambda name, attempt: loaded(0.0)
    results = run_race(folder, entries)
    assert [result.status for result in results] == ["finished"] * 4
    assert foreign_cores(results[0]) == 1.0
    assert machine.ran.count(busy) == 2


def test_a_stored_race_is_judged_by_what_it_was_asked_for(runs: Path, machine: Machine) -> None:
    machine.speed = lambda job: 2000.0 if job.strategy != "single" else 100.0
    run(runs, asked(tolerance="20%", objective="throughput"))
    record = load_race(runs, "first")
    assert record.criteria().chosen == "throughput"
    assert record.criteria("accuracy").chosen == "accuracy"
    assert record.criteria(None, "accuracy>=0.9").chosen == "time-to-accuracy"
    own, requested = record.criteria().tolerances, record.criteria(tolerance="3%").tolerances
    assert (own.tolerance, requested.tolerance) == (0.2, 0.03)
    assert make_report(record).answers[0].recommendation.decision == "level"


def test_what_never_ran_within_the_budget_is_named(runs: Path, machine: Machine) -> None:
    ending, _ = run(runs, asked(budget="35s"))
    assert (ending.stopped, len(machine.ran), len(ending.not_run)) == ("budget", 3, 1)
    assert f"before {ending.not_run[0]} ran; raise --budget to continue" in ending.sentence


PROMISE = {"single": 1.0, "ddp-2w": 3.0, "ddp-3w": 2.0, "allreduce": 4.0}


def test_a_budget_leaves_out_the_least_promising_so_that_the_others_run_three_times(
    runs: Path, machine: Machine
) -> None:
    ending, heard = run(runs, asked(budget="95s", tolerance="0.1%"), promise=PROMISE)
    assert ending.not_run == ("torch/ddp with 3 workers",)
    assert {name: runs_of(machine, name) for name in PROMISE} == {"single": 3, "ddp-2w": 3, "ddp-3w": 0, "allreduce": 3}
    assert ending.sentence == (
        "Stopped by the budget in repetition 4 before torch/ddp with 3 workers ran; raise --budget to continue.")
    assert not [drop for drop in heard.drops if "3 workers" in drop.name]


def test_baselines_stay_however_slow_they_seem(runs: Path, machine: Machine) -> None:
    run(runs, asked(budget="65s"), promise={**PROMISE, "single": 0.1})
    assert {name: runs_of(machine, name) for name in PROMISE} == {"single": 3, "ddp-2w": 0, "ddp-3w": 0, "allreduce": 3}


def test_when_runs_take_longer_than_expected_the_slowest_are_left_out_after_the_first_repetition(
    runs: Path, machine: Machine
) -> None:
    """Expected were 3 s: four jobs three times would have taken 36 s."""
    machine.speed = lambda job: {1: 1000.0, 2: 2000.0 if job.strategy == "ddp" else 1500.0, 3: 900.0}[job.workers]
    ending, heard = run(runs, asked(budget="100s"), seconds=3.0, promise={**PROMISE, "ddp-3w": 9.0})
    assert {name: runs_of(machine, name) for name in PROMISE} == {"single": 3, "ddp-2w": 3, "ddp-3w": 1, "allreduce": 3}
    note = next(note for note in heard.notes if note.startswith("left out by the budget"))
    assert note == ("left out by the budget after 1 of 3 repetitions: torch/ddp with 3 workers; "
                    f"--budget {as_option(120.0)} includes all")
    assert ending.left_out == ("torch/ddp with 3 workers",)
    assert ending.as_json()["left_out"] == ["torch/ddp with 3 workers"]
    assert "3 workers" not in " ".join(drop.name for drop in ending.dropped)
    # The stored race is judged alike: what was left out is compared with nothing, and not beaten.
    record = load_race(runs, "first")
    assert len(record.results) == 9
    report = make_report(record)
    assert any("without torch/ddp with 3 workers" in note for note in report.notes)
    larger, _ = run(runs, asked(budget="200s"), seconds=3.0)
    assert runs_of(machine, "ddp-3w") >= 3
    assert larger.left_out == ()
    assert len(load_race(runs, "first").results) == len(machine.ran)


def test_a_race_is_sure_among_those_for_which_the_budget_has_room(runs: Path, machine: Machine) -> None:
    machine.speed = lambda job: {1: 1000.0, 2: 5000.0 if job.strategy == "ddp" else 1500.0, 3: 900.0}[job.workers]
    ending, _ = run(runs, asked(budget="119s"), promise=PROMISE)
    assert ending.sure
    assert ending.sentence == (f"Settled after {ending.repetitions} repetitions without torch/ddp with 3 workers, "
                               f"which the budget left out; raise --budget to include them.")
    folder = RaceFolder(runs, "first")
    race = asked(budget="119s")
    entries = expand(race.model_copy(update={"repeat": race.most}))
    stored = UntilSure(folder, race, entries, {}, criteria_of(race, [None]))
    assert stored.as_stored().sentence == ending.sentence


@pytest.mark.quick("*-35s", "3.0-95s", "*-145s", "3.0-10m")
@pytest.mark.parametrize("budget", ["15s", "35s", "55s", "75s", "95s", "125s", "145s", "165s", "185s", "10m"])
@pytest.mark.parametrize("seconds", [3.0, SECONDS])
def test_the_report_says_what_the_end_of_the_race_said(
    runs: Path, machine: Machine, budget: str, seconds: float
) -> None:
    """From the second repetition on each run takes twice as long, so that more is left out than the plan knew."""
    def slower(name: str, attempt: int) -> dict[str, Any]:
        machine.now += 0.0 if name.endswith("-1") else SECONDS
        return {}

    machine.disturb = slower
    race = asked(budget=budget, tolerance="0.1%", max_repeat=5)
    ending, _ = run(runs, race, seconds=seconds, promise=PROMISE)
    assert stored_ending(runs / "first", race) == ending
    [note] = [note for note in make_report(load_race(runs, "first")).notes if note.startswith(ending.sentence)]
    counts = {name: sum(ran.startswith(name) for ran in machine.ran)
              for name in ("torch-single-1w", "torch-ddp-2w", "torch-ddp-3w", "torch-allreduce-2w")}
    assert len(ending.not_run) == sum(count == 0 for count in counts.values())
    assert len(ending.left_out) < 4 - len(ending.not_run), note
    if ending.stopped == "budget" and ending.repetitions <= 3 and seconds == SECONDS:
        behind = sum(0 < count < max(counts.values()) for count in counts.values())
        assert len(ending.left_out) == behind, (note, counts)


def test_a_race_that_left_out_what_cannot_run_is_sure_without_it(runs: Path, machine: Machine) -> None:
    machine.speed = lambda job: {1: 1000.0, 2: 5000.0 if job.strategy == "ddp" else 1500.0, 3: 900.0}[job.workers]
    race = asked()
    entries = [entry for entry in shuffled(expand(race.model_copy(update={"repeat": race.most})))
               if entry.job.workers < 3]
    folder = RaceFolder(runs, "first")
    folder.begin(race)
    loop = UntilSure(folder, race, entries, {}, criteria_of(race, [None]))
    with folder.held():
        ending = loop.run(RaceRuns(folder, SILENT, here()), SILENT)
    assert (ending.stopped, ending.not_run, ending.left_out) == ("sure", (), ())
    assert stored_ending(runs / "first", race) == ending


def test_a_budget_that_settles_nothing_runs_the_most_promising_first_and_says_what_would_do(
    runs: Path, machine: Machine
) -> None:
    ending, _ = run(runs, asked(budget="35s"), promise=PROMISE)
    assert [name.rpartition("-128b")[0] for name in machine.ran] == [
        "torch-single-1w", "torch-allreduce-2w", "torch-ddp-2w"]
    assert "there is no verdict before repetition 3" in ending.sentence
    assert f"--budget {as_option(70.0)} would let two configurations reach it" in ending.sentence


def test_a_race_that_becomes_too_slow_for_its_budget_says_so_before_the_second_repetition(
    runs: Path, machine: Machine
) -> None:
    _, heard = run(runs, asked(budget="55s"), seconds=2.0)
    assert [note for note in heard.notes if "the budget ends before repetition 3" in note] == [
        f"the budget ends before repetition 3, the first after which there is a verdict: --budget {as_option(80.0)} is "
        "enough for two configurations"]


def test_disturbed_runs_are_not_repeated_out_of_the_budget_of_the_first_repetitions(
    runs: Path, machine: Machine
) -> None:
    """All runs are disturbed; four configurations three times take the whole budget."""
    machine.disturb = lambda name, attempt: loaded(1.0)
    ending, heard = run(runs, asked(budget="125s", tolerance="0.1%"))
    assert (len(machine.ran), len(set(machine.ran)), ending.repetitions) == (12, 12, 4)
    assert sum("does not run again: the rest of the budget is needed" in note for note in heard.notes) == 1


def test_repeats_take_a_fifth_of_a_budget_at_most(runs: Path, machine: Machine) -> None:
    machine.disturb = lambda name, attempt: loaded(1.0 if attempt == 1 else 0.0)
    run(runs, asked(budget="200s", tolerance="0.1%", max_repeat=3))
    assert len(machine.ran) == 12 + 4


def test_a_race_of_fixed_repetitions_obeys_its_budget_too(runs: Path, machine: Machine) -> None:
    machine.disturb = lambda name, attempt: loaded(1.0 if attempt == 1 else 0.0)
    race = asked(until_sure=False, repeat=3, budget="95s")
    folder = RaceFolder(runs, "first")
    entries = shuffled(expand(race))
    folder.begin(race)
    limited = limits.Budget(folder, race.budget, entries, dict.fromkeys((entry.name for entry in entries), SECONDS))
    with folder.held():
        race_runs.run_blocks(RaceRuns(folder, SILENT, here()), entries, limited)
    assert machine.ran == [entry.name for entry in entries][:9]
    assert limited.exceeded


def to_target(strategy: str, accuracy: float, runs: int, epochs: int = 4) -> list[dict[str, Any]]:
    rate = 1000.0 if strategy == "single" else 2000.0
    return [result(strategy, 1 if strategy == "single" else 2, rate * (1 + 0.01 * (seed % 3)), accuracy, seed=seed,
                   epochs=epochs, target="accuracy>=0.9") for seed in range(1, runs + 1)]


@pytest.mark.parametrize(("repeats", "grace", "out"), [
    (4, None, False), (6, None, True), (6, 4, True), (6, 5, False),
])
def test_missing_the_target_drops_a_configuration_only_after_enough_runs_and_the_grace(
    repeats: int, grace: int | None, out: bool
) -> None:
    """With half of the time per run, four misses may be bad luck; after six it cannot be the faster way any more."""
    results = [*to_target("single", 0.95, repeats), *to_target("ddp", 0.5, repeats)]
    [task] = judge(results, Criteria(target="accuracy>=0.9", grace=grace)).tasks
    assert [drop.name for drop in task.dropped] == (["torch/ddp with 2 workers"] if out else [])
    assert task.decided == out
    if out:
        assert task.dropped[0].why == f"did not reach accuracy>=0.9 in any of its {repeats} runs"


def test_a_race_in_which_nothing_reaches_the_target_ends() -> None:
    results = [*to_target("single", 0.5, 3), *to_target("ddp", 0.5, 3)]
    [task] = judge(results, Criteria(target="accuracy>=0.9")).tasks
    assert (task.hopeless, task.decided, task.outcome) == (True, True, "open")


def test_one_that_is_dropped_for_its_accuracy_is_dropped_with_the_numbers() -> None:
    results = [result(strategy, 2, rate * (1 + 0.01 * (seed % 3)), accuracy, seed=seed)
               for strategy, rate, accuracy in (("allreduce", 1000.0, 0.95), ("ddp", 2000.0, 0.9))
               for seed in range(1, 5)]
    [task] = judge(results).tasks
    assert [drop.name for drop in task.dropped] == ["torch/ddp with 2 workers"]
    assert str(task.dropped[0]).startswith(
        "dropped after 4 repetitions: torch/ddp with 2 workers, accuracy 5.0 points lower than torch/allreduce with 2 "
        "workers ("
    )
