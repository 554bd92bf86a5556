"""One job of Slurm as long as it lives: its agents' mail, its state, and that it does not outlive its run."""

from __future__ import annotations

import secrets
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from velodrome import files
from velodrome.clusters.launcher import AllocationEnded, Notice
from velodrome.clusters.remote import bootstrap
from velodrome.clusters.slurm import commands
from velodrome.clusters.slurm.options import SlurmOptions
from velodrome.clusters.slurm.record import MAIL, JobRecord
from velodrome.clusters.slurm.script import Step, agent_script, batch_script, sbatch_options
from velodrome.errors import VelodromeError

_STATE_SECONDS = 2.0
_CANCEL_SECONDS = 30.0
#: A job that gets its nodes sooner is not worth a notice.
_NOTICE_SECONDS = 2.0


class StillQueued(VelodromeError):
    """Slurm has not given a job its nodes in time."""


class SlurmJob:
    """A job that was submitted."""

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

    @property
    def record(self) -> JobRecord:
        return JobRecord(job=self.number, mail=str(self.mail), session=self.session, nodes=self.nodes,
                         options=self._options)

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
        if (found := self._unanswered) is None or (quiet := time.monotonic() - found[0]) < self._options.silence:
            return None
        return f"slurmctld has not answered for {quiet:.0f} s ({found[1]})"

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
        told = ""
        while True:
            state = self.refresh()
            if state.name == "RUNNING" and state.nodes:
                self.nodes = commands.node_names(state.nodes)
                return
            if state.is_over:
                self.raise_if_interrupted()
                log = _last_line(self.mail / "job.log")
                raise VelodromeError(f"Slurm job {self.number} ended before it ran: {state}{log}")
            if (silent := self.unanswered) is not None:
                raise VelodromeError(
                    f"Slurm job {self.number}: {silent}; try again when `scontrol ping` shows that it is up"
                )
            waited = time.monotonic() - began
            if waited > seconds:
                raise StillQueued(
                    f"Slurm job {self.number} has waited in the queue for {seconds:g} s ({state.reason}); raise "
                    "queue_timeout, or ask for less"
                )
            waits_for = f"waiting for Slurm job {self.number}: {state.name} ({state.reason})"
            if waits_for != told and waited > _NOTICE_SECONDS:
                told = waits_for
                notice(waits_for)
            time.sleep(0.5)

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
    files.write_text(mail / "agent", bootstrap.source().decode())
    files.write_text(mail / "agent.sh", agent_script(options, mail, python, session))
    files.write_text(mail / "job.sh", batch_script(steps, options, mail))
    try:
        number = commands.submit(sbatch_options(options, nodes, name, mail / "job.log"), str(mail / "job.sh"))
    except BaseException:
        shutil.rmtree(mail, ignore_errors=True)
        raise
    return SlurmJob(number, mail, session, options)


def _last_line(log: Path) -> str:
    try:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        return ""
    return f" ({lines[-1].strip()[:300]})" if lines else ""
