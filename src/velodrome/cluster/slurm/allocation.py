"""One job of Slurm as long as it lives: its agents' mail, its state, and that it does not outlive its run."""

from __future__ import annotations

import secrets
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from velodrome import files
from velodrome.cluster.launcher import AllocationEnded
from velodrome.cluster.remote import bootstrap
from velodrome.cluster.slurm import commands
from velodrome.cluster.slurm.options import SlurmOptions
from velodrome.cluster.slurm.script import Step, agent_script, batch_script, sbatch_options
from velodrome.errors import VelodromeError

#: Below the shared folder.
MAIL = ".velodrome-slurm"
_STATE_SECONDS = 2.0
_CANCEL_SECONDS = 30.0


@dataclass(frozen=True)
class JobRecord:
    """What another command needs to find a job again; stored with the run."""

    job: int
    mail: str
    session: str
    nodes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "nodes": list(self.nodes)}


class SlurmJob:
    """A job that was submitted."""

    def __init__(self, number: int, mail: Path, session: str, nodes: Sequence[str] = ()) -> None:
        self.number, self.mail, self.session, self.nodes = number, mail, session, list(nodes)
        self._state = commands.JobState("PENDING")
        self._released = threading.Event()
        self._asking = threading.Lock()
        self._watcher = threading.Thread(target=self._watch, name=f"velodrome-slurm-{number}", daemon=True)
        self._watcher.start()

    @property
    def record(self) -> JobRecord:
        return JobRecord(self.number, str(self.mail), self.session, tuple(self.nodes))

    def _watch(self) -> None:
        while not self._released.is_set():
            self.refresh()
            self._released.wait(_STATE_SECONDS)

    def refresh(self) -> commands.JobState:
        """Ask Slurm now."""
        with self._asking:
            self._state = commands.state_of(self.number)
        return self._state

    @property
    def state(self) -> commands.JobState:
        """As Slurm reported it a moment ago."""
        return self._state

    def end(self) -> str | None:
        """Why the job is over, None while it is not."""
        return f"Slurm job {self.number} ended: {self._state}" if self._state.is_over else None

    def raise_if_interrupted(self, *, now: bool = False) -> None:
        """`AllocationEnded` if Slurm took the nodes away."""
        state = self.refresh() if now else self._state
        if state.was_interrupted and not self._released.is_set():
            raise AllocationEnded(
                f"Slurm job {self.number} on {', '.join(self.nodes) or 'no node'} ended: {state}; `velodrome resume` "
                "submits the run again, from its newest checkpoint"
            )

    def wait_until_running(self, seconds: float, log: Path) -> None:
        """Return when Slurm has given the job its nodes."""
        deadline = time.monotonic() + seconds
        while True:
            state = self.refresh()
            if state.name == "RUNNING" and state.nodes:
                self.nodes = commands.node_names(state.nodes)
                return
            if state.is_over:
                self.raise_if_interrupted()
                raise VelodromeError(f"Slurm job {self.number} ended before it ran: {state}{_last_line(log)}")
            if time.monotonic() > deadline:
                raise VelodromeError(
                    f"Slurm job {self.number} has waited in the queue for {seconds:g} s ({state.reason}); raise "
                    "queue_timeout, or ask for less"
                )
            time.sleep(0.5)

    def release(self) -> None:
        """End the job, and wait until Slurm has; its mail is removed."""
        if self._released.is_set():
            return
        self._released.set()
        commands.cancel(self.number)
        deadline = time.monotonic() + _CANCEL_SECONDS
        while not self.refresh().is_over and time.monotonic() < deadline:
            time.sleep(0.2)
        shutil.rmtree(self.mail, ignore_errors=True)
        with_others = self.mail.parent
        if with_others.name == MAIL and with_others.is_dir() and not any(with_others.iterdir()):
            shutil.rmtree(with_others, ignore_errors=True)

    def abandon(self) -> None:
        """Look after it no more."""
        self._released.set()


def submit(options: SlurmOptions, nodes: int, steps: Sequence[Step], name: str) -> SlurmJob:
    """Submit a job whose steps are the agents of its nodes."""
    session = secrets.token_hex(8)
    mail = Path(options.shared_dir or ".").resolve() / MAIL / session
    mail.mkdir(parents=True)
    python = options.python or sys.executable
    files.write_text(mail / "agent", bootstrap.source().decode())
    files.write_text(mail / "agent.sh", agent_script(options, mail, python, session))
    files.write_text(mail / "job.sh", batch_script(steps, options, mail))
    try:
        number = commands.submit(sbatch_options(options, nodes, name, mail / "job.log"), str(mail / "job.sh"))
    except BaseException:
        shutil.rmtree(mail, ignore_errors=True)
        raise
    return SlurmJob(number, mail, session)


def _last_line(log: Path) -> str:
    try:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        return ""
    return f" ({lines[-1].strip()[:300]})" if lines else ""
