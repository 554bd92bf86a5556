"""Jobs that take turns: what their rates are, and that nobody runs while another one does."""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _benchmarks_importable(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))


def test_only_the_time_of_its_own_turns_counts():
    from turns import Turns

    turns = Turns()
    for began, ended in ((10.0, 11.0), (13.0, 14.0), (20.0, 22.0)):
        turns.add(began, ended)
    assert [turns.before(moment) for moment in (9.0, 10.5, 12.0, 13.25, 30.0)] == [0.0, 0.5, 1.0, 1.25, 4.0]


def test_progress_is_that_of_the_process_which_reports_most_over_all_epochs():
    from turns import Report, read_events

    read = read_events()

    def line(moment, rank, epoch, examples, kind="progress"):
        fields = {"kind": kind, "time": moment, "role": "worker", "rank": rank, "epoch": epoch, "examples": examples}
        return json.dumps(fields).encode() + b"\n"

    assert read(line(1.0, 0, 1, 100)) == Report(1.0, 100.0)
    assert read(line(1.1, 1, 1, 50)) is None
    assert read(line(1.2, 0, 1, 0, kind="epoch")) is None
    assert read(line(2.0, 0, 2, 30)) == Report(2.0, 130.0)


def test_workers_that_count_their_own_examples_are_added_up():
    from turns import Report, read_events

    read = read_events(summed=True)

    def line(moment, rank, epoch, examples):
        fields = {"kind": "progress", "time": moment, "role": "worker", "rank": rank, "epoch": epoch}
        return json.dumps({**fields, "examples": examples}).encode() + b"\n"

    assert read(line(1.0, 0, 1, 100)) == Report(1.0, 100.0)
    assert read(line(1.1, 1, 1, 50)) == Report(1.1, 150.0)
    assert read(line(2.0, 1, 2, 30)) == Report(2.0, 180.0)


#: Counts steps of so many seconds of CPU time, and writes those done.
STEPS = """
import sys, time
path, seconds = sys.argv[1], float(sys.argv[2])
with open(path, "w", buffering=1) as file:
    for step in range(100_000):
        file.write(f"{time.time():.4f} {step}\\n")
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass
"""


@pytest.mark.integration
def test_jobs_run_one_at_a_time_and_their_rates_are_of_their_own_turns(tmp_path):
    from turns import Trial, rates, read_steps, running

    trials = [
        Trial(name, [sys.executable, "-c", STEPS, str(tmp_path / name), seconds], {}, tmp_path / name, read_steps(8))
        for name, seconds in (("one", "0.01"), ("two", "0.02"))
    ]
    with running(trials, 60) as jobs:
        before = [job.look() for job in jobs]
        time.sleep(0.5)
        assert [job.look() for job in jobs] == before, "a stopped job does not go on"
        found = rates(jobs, counts=3, turns=2, seconds=0.25, order=random.Random(1))
    assert [len(values) for values in found.values()] == [3, 3]
    # No more than 8 examples in 10 or 20 ms, however busy the machine is. A rate over all time would be half of that
    # at most.
    assert all(0 < value < 1.15 * 800 for value in found["one"])
    assert all(0 < value < 1.15 * 400 for value in found["two"])


@pytest.mark.integration
def test_a_job_that_does_not_train_is_named(tmp_path):
    from running import RunError
    from turns import Trial, read_steps, running

    ended = Trial("early", [sys.executable, "-c", "raise SystemExit(3)"], {}, tmp_path / "x", read_steps(1))
    with pytest.raises(RunError, match="early ended with exit code 3"), running([ended], 60):
        pass
    silent = Trial("late", [sys.executable, "-c", "import time; time.sleep(60)"], {}, tmp_path / "x", read_steps(1))
    with pytest.raises(RunError, match="no training within 1 s: late"), running([silent], 1):
        pass
