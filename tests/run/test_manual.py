"""A person who starts a part of a job reads its essence; its events and the result stay in the run's folder."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest

from velodrome.clusters.launcher import Exit
from velodrome.clusters.plan import make_plan
from velodrome.events import PREFIX, to_line
from velodrome.job.job import Job
from velodrome.job.resolve import resolve
from velodrome.run.manual import Part, finish, main, take

pytestmark = pytest.mark.unit


def part(folder: Path, **fields: Any) -> Part:
    plan = make_plan("run", resolve(Job(**fields)))
    return Part(plan, plan.processes[0], folder)


def line(kind: str, **fields: Any) -> str:
    return PREFIX + to_line({"time": 1.0, "role": "worker", "rank": 0, "kind": kind, **fields})


def counts(correct: int, total: int, loss: float) -> dict[str, Any]:
    return {"correct": correct, "total": total, "loss_sum": loss}


@pytest.mark.parametrize(("model", "dataset", "printed"), [
    ("lstm-small", "ptb", ["epoch 1: train perplexity 200.00, validation perplexity 150.00",
                           "test perplexity 150.00 (1,000 words)"]),
    ("dense-128", "digits",
     ["epoch 1: train accuracy 0.5000, validation accuracy 0.2500", "test accuracy 0.2500 (250 of 1,000)"]),
])
def test_epochs_and_the_result_are_printed_in_the_terms_of_the_task(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], model: str, dataset: str, printed: list[str]
) -> None:
    mine = part(tmp_path, model=model, dataset=dataset)
    right = 0 if model == "lstm-small" else 1
    train = counts(500 * right, 1000, 1000 * math.log(200))
    other = counts(250 * right, 1000, 1000 * math.log(150))
    pace = {"seconds": 1.0, "examples": 1000, "warmup": {"steps": 0, "examples": 0, "seconds": 0.0}}
    lines = [
        line("epoch", epoch=1, seconds=1.0, evaluate_seconds=1.0, steps=1, train=train, validation=other),
        line("result", test=other, history=[], parameters=1, steps=1, pace=pace),
    ]
    for one in lines:
        take(mine, one)
    assert capfd.readouterr().err.splitlines() == [f"worker 0: {words}" for words in printed]
    assert mine.events_file.read_text() == "".join(f"{one}\n" for one in lines)


def test_what_is_no_event_is_printed_as_it_is_and_not_kept(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    mine = part(tmp_path)
    take(mine, "a framework's own line")
    assert capfd.readouterr().err == "a framework's own line\n"
    assert not mine.events_file.exists()


def test_a_chief_that_was_killed_leaves_a_result_with_the_signal(tmp_path: Path) -> None:
    finish(part(tmp_path), "failed", Exit.from_returncode(-9))
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["status"], result["error"]["message"]) == (
        "failed",
        "worker 0 on 127.0.0.1 was ended by SIGKILL: it was killed from outside, or the system ran out of memory",
    )


@pytest.mark.parametrize("jump", [-3600.0, 3600.0])
def test_a_clock_that_is_set_during_a_part_does_not_change_its_total(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    real = time.time
    mine = part(tmp_path)
    take(mine, line("phase", phase="connect", state="begin").replace('"time":1.0', f'"time":{real() - 5}'))
    monkeypatch.setattr(time, "time", lambda: real() + jump)
    finish(mine, "finished", Exit.from_returncode(0))
    assert 5 <= json.loads((tmp_path / "result.json").read_text())["seconds"]["total"] < 60


def test_a_run_that_is_there_is_never_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "result.json").write_text("{}")
    mine = part(tmp_path)
    monkeypatch.setenv("VELODROME_JOB", mine.plan.job.model_dump_json())
    monkeypatch.setenv("VELODROME_WORLD", json.dumps([vars(member) for member in mine.plan.members]))
    assert main(["--run", "run", "--role", "worker", "--rank", "0", "--folder", str(tmp_path)]) == 2
    assert "holds a run already, and none is ever overwritten" in capfd.readouterr().err


def test_the_error_of_the_chief_is_its_own(tmp_path: Path) -> None:
    mine = part(tmp_path, strategy="ddp", workers=2)
    own = line("error", cause="user", message="ValueError: odd")
    other = line("error", cause="peer", message="lost another worker").replace('"rank":0', '"rank":1')
    (tmp_path / "events-worker-0.jsonl").write_text(own)
    (tmp_path / "events-worker-1.jsonl").write_text(other)
    finish(mine, "failed", Exit.from_returncode(1))
    assert json.loads((tmp_path / "result.json").read_text())["error"]["message"].endswith(": ValueError: odd")
