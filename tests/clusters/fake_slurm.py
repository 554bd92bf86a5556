"""Commands of Slurm that answer as a test wants, and note how they were called."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from velodrome.job.job import Job
from velodrome.job.resolve import resolve
from velodrome.run.store import OpenRun, Store

_NAMES = ("sbatch", "scancel", "scontrol", "sinfo")
DOWN = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
FORGOTTEN = "slurm_load_jobs error: Invalid job id specified"
DDP = resolve(Job.model_validate({"engine": "torch", "strategy": "ddp", "workers": 2}))


@dataclass
class FakeSlurm:
    """A folder of commands that comes first in PATH; job 7 is the only one."""

    folder: Path

    def __post_init__(self) -> None:
        self.folder.mkdir()
        for name in _NAMES:
            self.answers(name, 'echo "error: not faked: $*" >&2; exit 1')
        self.answers("sbatch", f'for script in "$@"; do :; done; echo "$script" > {self.folder}/script; echo 7')
        self.answers("scancel", f"echo CANCELLED > {self.folder}/state")
        self.answers("scontrol", f'''
            case "$*" in
                *hostnames*) printf 'n1\\nn2\\n' ;;
                *) state=$(cat {self.folder}/state)
                   if [ -s {self.folder}/error ]; then cat {self.folder}/error >&2; exit 1; fi
                   script=$(cat {self.folder}/script)
                   echo "JobId=7 JobState=$state Reason=Resources NodeList=n[1-2] Command=$script WorkDir=/" ;;
            esac''')
        self.job("RUNNING")
        self.script("/shared folder/.velodrome-slurm/x/job.sh")

    def answers(self, name: str, script: str) -> None:
        """Let a command run this script."""
        path = self.folder / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >> {self.folder}/calls\n{script}\n')
        path.chmod(0o755)

    def job(self, state: str = "RUNNING", error: str = "") -> None:
        """Let the job be in that state, and the controller answer with that error, if any."""
        (self.folder / "state").write_text(state + "\n")
        (self.folder / "error").write_text(error)

    def script(self, path: str) -> None:
        """Let the job be that of this script."""
        (self.folder / "script").write_text(path)

    def calls(self, name: str) -> list[str]:
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if line.split()[0] == name]

    def use(self, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
        monkeypatch.setenv("PATH", f"{self.folder}:{os.environ['PATH']}")
        return self


def run_in_a_job(store: Store, shared: Path, **fields: Any) -> tuple[OpenRun, Path]:
    """A run that is open, with a record of job 7, and the folder of its mail."""
    mail = shared / ".velodrome-slurm" / "x"
    mail.mkdir(parents=True)
    run = store.create("a", DDP)
    about = {"job": 7, "mail": str(mail), "session": "x", "nodes": ["n1", "n2"], **fields}
    (run.path / "slurm.json").write_text(json.dumps(about))
    return run, mail
