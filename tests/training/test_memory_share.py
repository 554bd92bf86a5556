"""Workers of one host divide its memory: each training process passes their number to the data package."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from velodrome.catalog.world import Member, worlds
from velodrome.data import base
from velodrome.job.job import Job
from velodrome.training import __main__ as main
from velodrome.training.context import Emitter
from velodrome.variables import JOB, WORLD

pytestmark = pytest.mark.unit


def test_a_training_process_takes_its_share_of_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    members = [Member("worker", rank, host, 0) for rank, host in enumerate("aab")]
    monkeypatch.setenv(JOB, Job(strategy="ddp", workers=3).model_dump_json())
    monkeypatch.setenv(WORLD, worlds(members)[2].to_json())
    monkeypatch.setenv("VELODROME_MEASURE", "0")
    monkeypatch.setattr(base, "_workers_on_host", 1)
    monkeypatch.setattr(base.machine, "process_memory", lambda: 1000)
    budgets: list[int] = []

    def engine(module: str) -> Any:
        return SimpleNamespace(train=lambda context: budgets.append(base.memory_budget(0.5)))

    monkeypatch.setattr(main, "import_module", engine)
    monkeypatch.setattr(main, "claim_cores", lambda slot, slots, threads: 1)
    monkeypatch.setattr(main, "limit_threads", lambda threads: None)
    options = main.parse_options(["--run", "a", "--role", "worker", "--rank", "2", "--folder", str(tmp_path)])
    with open(os.devnull, "wb") as sink:  # noqa: PTH123
        main.work(options, Emitter(os.dup(sink.fileno()), "worker", 2))
    assert budgets == [250]  # two workers share host a, and all of a job decide alike
