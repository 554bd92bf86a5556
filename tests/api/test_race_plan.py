"""What a race says before it starts: how long it will take and from what that is known, and what its budget settles."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import racing
from synthetic_races import result, typed
from velodrome.cli.race_output import plan_text
from velodrome.clusters import preflight
from velodrome.errors import BadRequest
from velodrome.job.job import Job
from velodrome.job.resolve import resolve
from velodrome.judge.phrases import in_words
from velodrome.machine import describe_machine
from velodrome.races.plan import PlannedRace
from velodrome.races.request import merge
from velodrome.run.store import Store

#: As long as a run of four epochs takes that `stored` writes: start-up, training, evaluations, and what comes after.
TOTAL, STARTUP = 12.0, 2.0


@pytest.fixture(autouse=True)
def _roomy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "available_memory", lambda: 2**50)


def stored(runs: Path, name: str = "earlier", *, machine: dict[str, Any] | None = None, **fields: Any) -> Job:
    """A run of four epochs as `velodrome train` leaves it, of 8.0 s of training and 0.25 s for each evaluation."""
    job = resolve(Job(**{"engine": "torch", "model": "dense-128", "epochs": 4, **fields}))
    made = result(job.strategy, job.workers, 1294 * job.epochs / 8.0, engine="torch", batch_size=job.batch_size,
                  epochs=job.epochs, machine=machine or describe_machine())
    made["history"] = [{**entry, "evaluate_seconds": 0.25} for entry in made["history"]]
    made["seconds"] = {"startup": STARTUP, "train": 8.0, "evaluate": 0.25 * job.epochs, "total": TOTAL}
    run = Store(runs).create(name, job)
    run.finish(typed({**made, "run": name}))
    run.close()
    return job


def planned(runs: Path, vary: dict[str, Any], job: dict[str, Any] | None = None, **fields: Any) -> PlannedRace:
    asked = merge(None, {"engine": "torch", "model": "dense-128", "epochs": 4, **(job or {})}, vary,
                  {"baseline": False, **fields})
    return racing.planned(asked, "race", runs)


@pytest.mark.unit
def test_runs_of_the_same_job_say_how_long_it_takes_whoever_ran_them(runs: Path) -> None:
    stored(runs)
    plan = planned(runs, {"seed": [7]})
    [seconds] = plan.seconds.values()
    assert seconds == pytest.approx(TOTAL, rel=0.02)
    assert "about 12 s (from 1 earlier run)" in plan_text(plan)
    assert plan.as_json()["basis"] == "from 1 earlier run"


@pytest.mark.unit
def test_longer_and_shorter_jobs_are_scaled_without_their_start(runs: Path) -> None:
    stored(runs)
    # What was neither training nor evaluation, 1.0 s, belongs to the four epochs, which were saved, and the end alike.
    end = (TOTAL - STARTUP - 8.0 - 4 * 0.25) / 5
    for epochs in (1, 4, 40):
        [seconds] = planned(runs, {"epochs": [epochs]}).seconds.values()
        assert seconds == pytest.approx(STARTUP + end + epochs * (2.25 + end), rel=0.02)
    [seconds] = planned(runs, {"steps": [5]}, {"epochs": 4}).seconds.values()
    assert seconds == pytest.approx(STARTUP + end + 2.0 * 5 * 128 / 1294 + 0.25 + end, rel=0.02)


@pytest.mark.unit
def test_runs_of_another_machine_or_model_say_nothing(runs: Path) -> None:
    stored(runs, machine={**describe_machine(), "processor": "an abacus"})
    stored(runs, "other", model="linear")
    plan = planned(runs, {"seed": [7]}, {"epochs": 4000})
    assert plan.basis == "rough guess"
    text = plan_text(plan)
    assert ("(rough guess, which may be several times too high or too low; --measure trains each model for a second)"
            in text)
    least, most = plan.bounds
    [seconds] = plan.seconds.values()
    assert least < seconds < most
    assert f": 1 job, {in_words(least)} to {in_words(most)} (" in text, "a guess that is off by five is no number"


@pytest.mark.unit
def test_runs_with_other_workers_are_better_than_a_guess(runs: Path) -> None:
    stored(runs)
    plan = planned(runs, {"strategy": ["ddp"], "workers": [1, 2]})
    assert plan.basis == "from 1 earlier run of this model with other workers, batch or strategy"
    assert all(4.0 < seconds < 25.0 for seconds in plan.seconds.values())


def limited(runs: Path, budget: str | None, job: dict[str, Any] | None = None, **fields: Any) -> PlannedRace:
    """Two strategies with one and two workers that take 12 s each."""
    for number, words in enumerate(({}, {"strategy": "ddp"}, {"strategy": "ddp", "workers": 2},
                                    {"strategy": "zero1", "workers": 2})):
        if not (runs / f"run-{number}").exists():
            stored(runs, f"run-{number}", **words)
    entries = [{"strategy": "single"}, {"strategy": "ddp"}, {"strategy": "ddp", "workers": 2},
               {"strategy": "zero1", "workers": 2}]
    return planned(runs, {"entry": entries}, job, budget=budget, **fields)


@pytest.mark.unit
@pytest.mark.parametrize(("budget", "left_out", "said"), [
    ("10m", 0, "the budget of 10 min is enough for 3 repetitions of all 4 configurations (about 3 min), as many "
     "as a verdict needs"),
    ("2m", 1, "left out by the budget of 2 min, so that the others run 3 times, as a verdict needs: "),
    ("1m", 0, "the budget of 60 s is too small for a verdict: it needs 3 repetitions, which take about 72 s for two "
     "configurations (--budget 80s); as many jobs as fit will run, the most promising first"),
])
def test_a_race_says_before_it_starts_what_its_budget_settles(
    runs: Path, budget: str, left_out: int, said: str
) -> None:
    plan = limited(runs, budget, until_sure=True)
    assert plan.affordable is not None
    assert len(plan.affordable.left_out) == left_out
    assert any(note.startswith(said) for note in plan.notes), plan.notes
    assert said in plan_text(plan)
    if left_out:
        assert any(note.endswith("; --budget 3m includes all 4 configurations") for note in plan.notes)


@pytest.mark.unit
@pytest.mark.parametrize(("budget", "job", "shorter"), [
    ("10m", {"epochs": 400}, True), (None, {"epochs": 400}, True), ("10m", {"epochs": 4}, False),
    (None, {"epochs": 4}, False), ("10m", {"epochs": 400, "target": "accuracy>=0.9"}, False),
    ("10m", {"epochs": 400, "steps": 900}, False),
])
def test_a_race_of_long_trainings_says_how_to_learn_sooner_which_one_is_fastest(
    runs: Path, budget: str | None, job: dict[str, Any], shorter: bool
) -> None:
    plan = limited(runs, budget, job=job, until_sure=True)
    found = [note for note in plan.notes if "--steps" in note]
    assert bool(found) == shorter, plan.notes
    for note in found:
        match = re.match("which one is fastest shows sooner: with --steps ([0-9]+) --objective throughput, 3 "
                         "repetitions of all 4 configurations take about [0-9.]+ (s|min)", note)
        assert match, note
        short = limited(runs, budget, job=job | {"steps": int(match[1])}, until_sure=True)
        assert in_words(3 * sum(one.seconds for one in short.estimates.values())) in note
        assert not any("--steps" in note for note in short.notes)
        assert note in plan_text(plan)


@pytest.mark.unit
def test_a_budget_leaves_out_nothing_that_was_measured_for_what_is_only_guessed(runs: Path) -> None:
    """Trainings of a quarter of an hour with PyTorch, which ran here before; TensorFlow is guessed to take seconds."""
    stored(runs)
    stored(runs, "other", strategy="ddp", workers=2)
    entries = [{"engine": engine, "strategy": strategy, "workers": workers}
               for engine, others in (("torch", "ddp"), ("tensorflow", "mirrored"))
               for strategy, workers in (("single", 1), (others, 2))]

    def kept(budget: str) -> tuple[PlannedRace, set[str]]:
        plan = planned(runs, {"entry": entries}, {"epochs": 400}, until_sure=True, budget=budget)
        assert plan.affordable is not None
        jobs = {entry.configuration: entry.job for entry in plan.entries}
        return plan, {f"{jobs[key].engine}/{jobs[key].strategy}" for key in plan.affordable.kept}

    plan, everything = kept("10m")
    assert sum(estimate.measured for estimate in plan.estimates.values()) == 2
    assert len(everything) == 4
    [note] = [note for note in plan.notes if "the budget of 10 min" in note]
    assert "is too small for a verdict" in note
    plan, some = kept("1h")
    assert some == {"torch/single", "tensorflow/single"}
    [note] = [note for note in plan.notes if note.startswith("left out by the budget of ")]
    assert "torch/ddp with 2 workers and tensorflow/mirrored with 2 workers; --budget " in note
    assert kept("10h")[1] == everything


@pytest.mark.unit
def test_a_budget_counts_without_until_sure_too(runs: Path) -> None:
    plan = limited(runs, "2m", until_sure=False, repeat=3)
    assert any("the budget of 2 min is too small for all jobs, which take about 3 min" in note
               for note in plan.notes)
    assert limited(runs, "10m", until_sure=False, repeat=3).notes == (
        "the budget of 10 min is enough for all jobs (about 3 min)",)
    assert limited(runs, "10m", until_sure=False).notes == (
        "the budget of 10 min is enough for all jobs (about 48 s); a verdict needs 3 repetitions: add "
        "--until-sure, or --repeat 3",)


def test_a_budget_says_what_is_left_of_it_where_the_first_repetitions_are_stored(runs: Path) -> None:
    plan = limited(runs, "10m", until_sure=True, repeat=3)
    for entry in plan.entries:
        if entry.repetition <= 3:
            stored(plan.folder.path, entry.name, **entry.job.model_dump(exclude_unset=True))
    [note] = limited(runs, "10m", until_sure=True, repeat=3).notes
    assert re.fullmatch(r"the budget of 10 min leaves \d+ min for further repetitions", note)


def test_a_budget_is_named_as_it_was_given(runs: Path) -> None:
    assert "the budget of 90 s, " in " ".join(limited(runs, "90s", until_sure=True).notes)
    assert not limited(runs, None, until_sure=False, repeat=3).notes


@pytest.mark.unit
@pytest.mark.parametrize("text", ["20", "1.5", " 90 "])
def test_a_budget_on_the_command_line_has_a_unit(velodrome, runs: Path, text: str) -> None:
    with pytest.raises(BadRequest, match=f"--budget '{text}' has no unit: write minutes as {text.strip()}m, "):
        merge(None, {}, {}, {"budget": text})
    done = velodrome("race", "--vary", "workers=1,2", "--until-sure", "--budget", text, "--runs", runs)
    assert (done.code, "has no unit" in done.err) == (2, True)
    assert not runs.exists()
    # From Python, and in a file, a number is seconds.
    assert merge(None, {}, {}, {"budget": 90}).budget == 90.0


SCRIPT = """
import time, velodrome
velodrome.log(step=0)
for step in range(1_000_000):
    time.sleep(0.02)
    velodrome.log(step=step + 1, examples=8, loss=1.0)
"""


@pytest.mark.unit
def test_how_long_a_script_takes_that_never_ran_is_unknown(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    asked = merge(None, {"engine": "torch", "script": "train.py"}, {"workers": [1, 2]}, {})
    text = plan_text(racing.planned(asked, "race", runs))
    assert (": 2 jobs, for an unknown time (the script has not run here with these arguments; --measure runs it "
            "briefly)") in text
    limit = {"until_sure": True, "budget": "10m"}
    plan = racing.planned(merge(asked, None, None, limit), "race", runs)
    assert plan.affordable is None, "nothing is left out for a time that nobody knows"
    assert "(60 jobs, for an unknown time, budget 10 min, the script has not run here" in plan_text(plan)
    assert "how many repetitions fit into the budget of 10 min is known after the first one" in plan.notes


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_a_script_that_never_ran_is_tried_if_asked_for(
    velodrome, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_strays
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ("race", "--script", "train.py", "--engine", "torch", "--vary", "workers=1,2", "--runs", runs, "--dry-run",
             "--json", "--measure")
    done = velodrome(*words, "--script-args", "--steps 50000")
    assert done.code == 0, done.text
    assert "trying train.py with 2 workers …" in done.err
    expected = [job["seconds"] for job in done.json()["jobs"]]
    # 50,000 steps of 0.02 s each, and a little more.
    assert all(1000 < seconds < 2000 for seconds in expected), expected
    assert not runs.exists()
    done = velodrome(*words)
    assert "train.py with 1 worker: its total work is unknown; report it with velodrome.log(total_epochs=…)" in done.err


@pytest.mark.integration
@pytest.mark.timeout(600)
def test_what_never_ran_is_measured_if_asked_for_and_nothing_is_stored(velodrome, runs: Path, no_strays) -> None:
    words = ("race", "--dataset", "digits", "--model", "dense-128", "--engine", "torch", "--vary", "strategy=ddp",
             "--vary", "workers=2", "--epochs", 1000, "--runs", runs, "--dry-run", "--json")
    done = velodrome(*words, "--measure")
    assert done.code == 0, done.text
    assert done.json()["basis"] == "measured for 1 s"
    assert "measuring how fast torch is here" in done.err
    assert not runs.exists()
    assert velodrome(*words, "--no-measure").json()["basis"] == "rough guess"
    # By default, since a guess of so many epochs may be wrong by many minutes.
    assert velodrome(*words).json()["basis"] == "measured for 1 s"
    assert velodrome(*words, "--epochs", 1).json()["basis"] == "rough guess"
