"""One job of Slurm as long as it lives: its state, the files through which its agents talk to the controller, the
record by which another command finds it again, and that it does not outlive its run.
"""

from __future__ import annotations

import json
import secrets
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from velodrome import files
from velodrome.clusters.interrupts import rollback
from velodrome.clusters.launcher import AllocationEnded, Notice
from velodrome.clusters.remote.allocated import HostJob, StillQueued
from velodrome.clusters.remote.channels import agent_source
from velodrome.clusters.slurm import RECORD, SlurmOptions, commands
from velodrome.clusters.slurm.commands import Step, agent_script, batch_script, sbatch_options
from velodrome.errors import BadRequest, VelodromeError
from velodrome.job.job import reason_of

#: Below the shared folder: the folders of the jobs' mail, each named as the session of its job.
MAIL = ".velodrome-slurm"
_LARGEST = 16 << 20
#: The script of a job, in the folder of its mail.
_SCRIPT = "job.sh"


class HostRecord(BaseModel):
    """What was prepared on a node."""

    code: str
    python: str


class JobRecord(BaseModel):
    """A job that was submitted and, from `token` on, the processes that were started in it."""

    model_config = ConfigDict(frozen=True)

    job: int = Field(gt=0)
    mail: str
    session: str
    nodes: list[str] = Field(default_factory=list)
    options: SlurmOptions = Field(default_factory=lambda: SlurmOptions.model_validate({}))
    token: str | None = None
    started: float | None = None
    hosts: dict[str, HostRecord] = Field(default_factory=dict)
    facts: dict[str, Any] = Field(default_factory=dict)

    def state(self) -> commands.JobState | None:
        """The state of the job; None if it is over, whatever Slurm still knows of it, or if the job of that number is
        another one: who sent a run must not choose which job is ended."""
        if not Path(self.mail).is_dir():  # without it, its agents end
            return None
        commands.require_tools()
        state = commands.state_of(self.job)
        is_another = state.script and Path(state.script).parts[-2:] != (self.session, _SCRIPT)
        return None if state.is_over or is_another else state


def read_record(folder: Path) -> JobRecord:
    """What is stored about the job of a run; `BadRequest` if it has none, or if that cannot be read."""
    try:
        record = JobRecord.model_validate(files.read_json(folder / RECORD, _LARGEST, inside=folder))
        # It is removed when the job ends.
        if not record.session.isalnum() or Path(record.mail).parts[-2:] != (MAIL, record.session):
            raise ValueError(f"mail: {record.mail!r} is not the mail folder of a job")
        return record
    except FileNotFoundError:
        raise BadRequest(f"run {folder.name!r} has no job of Slurm to attach to") from None
    except (OSError, ValueError) as error:
        why = _problem(error) if isinstance(error, ValidationError) else str(error)
        raise BadRequest(f"run {folder.name!r}: {str(folder / RECORD)!r} cannot be read: {why}; `squeue --me` shows "
                         "whether its job still runs: end it with `scancel`, then remove the file") from None


def living_job(folder: Path) -> str | None:
    """The job of a run that still waits or runs, as a person calls it; None if there is none."""
    if not (folder / RECORD).exists():
        return None
    record = read_record(folder)
    return f"Slurm job {record.job}" if record.state() is not None else None


def _problem(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or 'the content'}: {reason_of(first)}"


_STATE_SECONDS = 2.0
_CANCEL_SECONDS = 30.0
#: A job that gets its nodes sooner is not worth a notice.
_NOTICE_SECONDS = 2.0


class SlurmJob(HostJob):
    """A job that was submitted."""

    failure = "failed (NODE_FAIL): its slurmd or its network is down"

    def __init__(
        self, number: int, mail: Path, session: str, options: SlurmOptions, nodes: Sequence[str] = ()
    ) -> None:
        self.number, self.mail, self.session, self.nodes = number, mail, session, list(nodes)
        self._options = options
        self._state = commands.JobState("PENDING")
        #: Since when Slurm has not answered, and why.
        self._unanswered: tuple[float, str] | None = None
        self._released = threading.Event()
        self._asking = threading.Lock()
        self._watcher = threading.Thread(target=self._watch, name=f"velodrome-slurm-{number}", daemon=True)
        self._watcher.start()

    def store(self, folder: Path, **begun: Any) -> None:
        record = JobRecord.model_validate({"job": self.number, "mail": str(self.mail), "session": self.session,
                                           "nodes": self.nodes, "options": self._options, **begun})
        files.write_text(folder / RECORD, json.dumps(record.model_dump(), indent=2) + "\n")

    def silent_nodes(self) -> set[str]:
        return commands.silent_nodes(self.nodes)

    def _watch(self) -> None:
        while not self._released.is_set():
            self.refresh()
            self._released.wait(_STATE_SECONDS)

    def refresh(self) -> commands.JobState:
        """Ask Slurm now; the last known state if it does not answer."""
        with self._asking:
            try:
                self._state, self._unanswered = commands.state_of(self.number), None
            except commands.NoAnswer as error:
                since = time.monotonic() if self._unanswered is None else self._unanswered[0]
                self._unanswered = since, error.reason
        return self._state

    @property
    def unanswered(self) -> str | None:
        """That Slurm has not answered for longer than `silence`, as the end of a sentence; None otherwise."""
        if (since := self._unanswered) is None or (quiet := time.monotonic() - since[0]) < self._options.silence:
            return None
        return f"slurmctld has not answered for {quiet:.0f} s ({since[1]})"

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

    def wait_until_running(self, seconds: float, notice: Notice) -> None:
        """Return when Slurm has given the job its nodes; `StillQueued` if it has not within so many seconds."""
        began = time.monotonic()
        last_notice = ""
        while True:
            state = self.refresh()
            if state.name == "RUNNING" and state.nodes:
                self.nodes = commands.node_names(state.nodes)
                return
            if state.is_over:
                self.raise_if_interrupted()
                line = self.last_line()
                log = f" ({line})" if line else ""
                raise VelodromeError(f"Slurm job {self.number} ended before it ran: {state}{log}")
            if (silent := self.unanswered) is not None:
                raise VelodromeError(
                    f"Slurm job {self.number}: {silent}; try again when `scontrol ping` shows that it is up"
                )
            waited = time.monotonic() - began
            if waited > seconds:
                raise StillQueued(
                    f"Slurm job {self.number} has waited in the queue for {seconds:g} s ({state.reason}); raise "
                    "queue_timeout, or request fewer resources", f"{state.name}, {state.reason}"
                )
            waits_for = f"waiting for Slurm job {self.number}: {state.name} ({state.reason})"
            if waits_for != last_notice and waited > _NOTICE_SECONDS:
                last_notice = waits_for
                notice(waits_for)
            time.sleep(0.5)

    def last_line(self, length: int = 300) -> str:
        try:
            lines = [line.strip() for line in (self.mail / "job.log").read_text(errors="replace").splitlines()]
        except OSError:
            return ""
        return next((line[:length] for line in reversed(lines) if line), "")

    def release(self) -> None:
        """End the job, and wait until Slurm has; its mail is removed."""
        if self._released.is_set():
            return
        self._released.set()
        deadline, cancelled = time.monotonic() + _CANCEL_SECONDS, False
        while True:
            cancelled = cancelled or commands.cancel(self.number)
            if self.refresh().is_over or time.monotonic() > deadline:
                break
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
    mail.mkdir(mode=0o700, parents=True)  # what processes know one another by passes through it
    options = options.model_copy(update={"shared_dir": str(mail.parents[1])})  # as other commands find it
    python = options.python or sys.executable
    files.write_text(mail / "agent", agent_source().decode())
    files.write_text(mail / "agent.sh", agent_script(options, mail, python, session))
    files.write_text(mail / _SCRIPT, batch_script(steps, options, mail))
    with rollback(lambda: shutil.rmtree(mail, ignore_errors=True)):
        number = commands.submit(sbatch_options(options, nodes, name, mail / "job.log"), str(mail / _SCRIPT))
    return SlurmJob(number, mail, session, options)
