"""What a launcher and a group of processes offer, whatever they run on.

Nothing here, and nothing above it, assumes one machine: no process ids, no shared disk, no common clock.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from velodrome.clusters.plan import Placement, Plan, Process
from velodrome.errors import Unavailable, VelodromeError
from velodrome.job.job import Job

#: Receives an output line, without its end, and the process that wrote it.
Deliver = Callable[[Process, str], None]
#: Receives a sentence about what takes long.
Notice = Callable[[str], None]


@dataclass(frozen=True)
class Allocation:
    """The hosts that a job may use, and how to find a free port on one of them."""

    hosts: tuple[str, ...]
    port: Callable[[str], int]
    #: How processes are placed on the hosts; by default each role begins at the first one, so that servers are next to
    #: workers.
    placement: Placement = field(default_factory=Placement)
    #: The address at which the others reach a host, where that is not its name.
    addresses: Mapping[str, str] = field(default_factory=dict)
    #: Processes that a host takes when they are packed: its cores.
    capacity: Mapping[str, int] = field(default_factory=dict)
    #: What the result records about the hosts, as plain JSON: `Result.cluster`.
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Exit:
    """How a process ended: an exit code or the name of a signal, and the same in words."""

    code: int | None
    signal: str | None
    cause: str

    @property
    def is_success(self) -> bool:
        return self.code == 0

    @property
    def is_lost(self) -> bool:
        """Whether nobody knows how it ended, because its host is gone."""
        return self.code is None and self.signal is None

    @classmethod
    def from_returncode(cls, returncode: int) -> Exit:
        """The end of a POSIX process, negative for the signal that ended it."""
        if returncode >= 0:
            return cls(returncode, None, f"exited with code {returncode} before it was finished")
        try:
            name = signal.Signals(-returncode).name
        except ValueError:
            name = f"signal {-returncode}"
        hint = ": it was killed from outside, or the system ran out of memory" if name == "SIGKILL" else ""
        return cls(None, name, f"was ended by {name}{hint}")


@dataclass(frozen=True)
class Diagnosis:
    """Why a process may not make progress: a stack, a pod's reason, a job's state."""

    #: Whole text, for the run's folder.
    text: str = ""
    #: The part that a person should read first.
    excerpt: str = ""
    #: Whether it was suspended from outside, so that it holds up the others whatever its events look like.
    stopped: bool = False
    #: Whether it is in a line of the user's own code.
    in_user_code: bool = False
    #: Whether its host is known to be out of the others' reach.
    cut_off: bool = False
    #: Whether its stack shows that it waits for other processes.
    waits: bool = False


class Group(Protocol):
    """All processes of a plan, started together."""

    def wait(self, seconds: float, deliver: Deliver) -> None:
        """Deliver whole output lines; return when some came, a process ended or the time is over."""

    def exit_of(self, process: Process) -> Exit | None:
        """How a process ended, after all of its output was delivered; None while it runs."""

    def diagnose(self, process: Process, *, brief: bool = False) -> Diagnosis:
        """What a process is doing; `brief` leaves out what takes long to find out, such as a stack."""

    def collect(self, given_up: Callable[[], bool]) -> None:
        """Bring the model, checkpoints and logs into the run's folder; called once, before `stop`.

        Where that takes long, `given_up` is asked now and then whether to leave it at what has come.
        """

    def stop(self) -> None:
        """End every process and everything it started, for certain."""


@runtime_checkable
class CountsTraffic(Protocol):
    """A group that knows the network counters of its hosts."""

    def traffic(self) -> Mapping[str, Mapping[str, int]]:
        """Bytes `in`, `out` and over `loopback` since the processes were started, by host."""


@runtime_checkable
class Warns(Protocol):
    """A group whose hosts may do what is worth a warning."""

    def warnings(self) -> Sequence[str]:
        """A sentence for each, since the last time."""


class AllocationEnded(VelodromeError):
    """The hosts of a run were taken away, by a time limit or for another job: it is interrupted, and can be resumed."""


class Launcher(Protocol):
    """Finds hosts for jobs and starts their processes."""

    @property
    def name(self) -> str: ...

    def check(self, job: Job) -> None:
        """Refuse a job that this launcher cannot run (`BadRequest`)."""

    def prepare(self, engines: Sequence[str]) -> None:
        """Make starts of several jobs of these engines fast, where that is possible."""

    def allocate(self, job: Job) -> Allocation:
        """Hosts for a job; addresses may be known only now."""

    def start(self, plan: Plan, folder: Path, *, resume: bool = False) -> Group:
        """Start all processes of a plan; `folder` is the run's, with the checkpoints to resume from."""

    def close(self) -> None:
        """Release what was prepared and allocated."""


@runtime_checkable
class Queues(Protocol):
    """A launcher that may wait long for hosts, and whose hosts live on when their controller is killed."""

    def allocate_for(self, job: Job, folder: Path, notice: Notice) -> Allocation:
        """As `allocate`; what finds the hosts again is stored in the run's folder before anything is waited for."""


@runtime_checkable
class Divisible(Protocol):
    """A launcher whose hosts several jobs can use at the same time, each some of them."""

    def divide(self, jobs: Sequence[Job]) -> list[Launcher]:
        """Launchers with hosts of their own, each with room for any of these jobs; itself if there is room for one."""


@dataclass(frozen=True)
class Finding:
    """Something that is wrong, doubtful or in order with a host, or with all of them."""

    level: Literal["error", "warning", "ok"]
    #: What was examined: tools, job, reachable, names, ports, network, versions, clock, disk, memory, data, code.
    check: str
    host: str | None
    #: The cause, without the host.
    message: str
    #: What to do about it; empty if nothing is wrong.
    fix: str = ""

    @classmethod
    def from_sentence(cls, check: str, host: str | None, sentence: str, otherwise: str = "") -> Finding:
        """An error from `'HOST' CAUSE; FIX`, or without the host; `otherwise` is the fix if the sentence has none."""
        cause, _, fix = sentence.partition("; ")
        if host is None or not cause.startswith((f"{host!r} ", f"{host!r}: ")):
            return cls("error", check, None, cause, fix or otherwise)
        cause = cause.removeprefix(repr(host))
        message = cause.removeprefix(": ") if cause.startswith(": ") else f"it{cause}"
        return cls("error", check, host, message, fix or otherwise)

    @property
    def sentence(self) -> str:
        where = f"host {self.host!r}: " if self.host else ""
        return f"{where}{self.message}" + (f"; {self.fix}" if self.fix else "")

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "sentence": self.sentence}


def refuse(findings: Sequence[Finding]) -> None:
    """Refuse a job if there is an error: `Unavailable`, with a sentence for each."""
    wrong = [finding.sentence for finding in findings if finding.level == "error"]
    if wrong:
        raise Unavailable("; ".join(wrong), wrong)
