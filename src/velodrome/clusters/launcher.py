"""What a launcher and a group of processes offer, whatever they run on.

Nothing here, and nothing above it, assumes one machine: no process ids, no shared disk, no common clock.

A launcher allocates hosts for a job and starts all processes of a plan as one group. The group delivers each output
line with its process, reports exits, stops everything, diagnoses a process, and collects model, checkpoints and logs.
What the hosts cannot run (missing packages, too little memory) is refused by the launcher, not by the plan.
"""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from velodrome.catalog.registry import load
from velodrome.clusters.definitions import ClusterOptions
from velodrome.clusters.plan import Placement, Plan, Process
from velodrome.errors import BadRequest, Unavailable, VelodromeError
from velodrome.job.job import Job
from velodrome.job.resolve import roles_of
from velodrome.job.values import Fault, parse_fault, process_names

#: Receives an output line, without its end, and the process that wrote it.
Deliver = Callable[[Process, str], None]
#: Receives a sentence about what is being waited for.
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
    #: Whether its host is known to be cut off from the others.
    cut_off: bool = False
    #: Whether its stack shows that it waits for other processes.
    waits: bool = False


@dataclass(frozen=True)
class Finding:
    """The result of one check of a host, or of all of them."""

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


def refusals(check: Callable[[], object]) -> list[Finding]:
    """What a check refuses, as findings."""
    try:
        check()
    except Unavailable as error:
        return [Finding("error", "versions", None, reason) for reason in error.reasons]
    except VelodromeError as error:
        return [Finding("error", "job", None, str(error))]
    return []


@dataclass(frozen=True)
class Examination:
    """What `velodrome doctor` reports about hosts."""

    findings: list[Finding]
    #: Round-trip time and bandwidth from host to host.
    pairs: list[dict[str, Any]] = field(default_factory=list)
    #: The limits that emulated hosts were asked to have, and what was measured.
    emulation: Mapping[str, Any] = field(default_factory=dict)


class Group(ABC):
    """All processes of a plan, started together."""

    @abstractmethod
    def wait(self, seconds: float, deliver: Deliver) -> None:
        """Deliver whole output lines; return when some came, a process ended or the time is over."""

    @abstractmethod
    def exit_of(self, process: Process) -> Exit | None:
        """How a process ended, after all of its output was delivered; None while it runs."""

    @abstractmethod
    def stop(self) -> None:
        """End every process and everything it started; nothing may be left."""

    def diagnose(self, process: Process, *, brief: bool = False) -> Diagnosis:
        """What a process is doing; `brief` leaves out what takes long to find out, such as a stack."""
        return Diagnosis()

    def collect(self, given_up: Callable[[], bool]) -> None:  # noqa: B027
        """Bring the model, checkpoints and logs into the run's folder; called once, before `stop`.

        Where that takes long, `given_up` is asked now and then whether to leave it at what has come. Processes that
        work in the run's folder itself leave nothing to do.
        """

    def traffic(self) -> Mapping[str, Mapping[str, int]]:
        """Bytes `in`, `out` and over `loopback` since the processes were started, by host; empty if not counted."""
        return {}

    def warnings(self) -> Sequence[str]:
        """What hosts did that is worth a warning, a sentence each, since the last time."""
        return ()

    def begin_fault(self, fault: Fault, processes: Sequence[Process]) -> None:
        """Cause a fault, whose action is in the launcher's `faults`: to these processes, or to their host."""
        raise NotImplementedError

    def end_fault(self, fault: Fault, processes: Sequence[Process]) -> None:
        """End a fault that was begun."""
        raise NotImplementedError


class AllocationEnded(VelodromeError):
    """The hosts of a run were taken away, by a time limit or for another job: it is interrupted, and can be resumed."""


def no_notice(text: str) -> None:
    """Ignore a notice."""


class Launcher(ABC):
    """Allocates hosts for jobs and starts their processes.

    A launcher must check, allocate and start. Everything else is optional: the defaults are for launchers without it.
    """

    name: str
    #: What can be done to its processes and hosts on purpose (`--fault`).
    faults: Sequence[str] = ()
    #: Whether several jobs can use its hosts at the same time: `divide`.
    divisible: bool = False

    @abstractmethod
    def __init__(self, options: ClusterOptions) -> None:
        """Every launcher is made with its options."""

    @abstractmethod
    def check(self, job: Job) -> None:
        """Refuse a job that this launcher cannot run (`BadRequest`)."""

    def check_faults(self, job: Job) -> None:
        """Refuse faults that it cannot cause, or that name nothing that the job has."""
        possible, hosts = self.faults, self.host_names
        for fault in map(parse_fault, job.faults):
            if fault.action not in possible:
                can = f"it can {' and '.join(possible)}" if possible else "it has no faults"
                raise BadRequest(
                    f"--fault {fault.text!r}: --on {self.name} cannot {fault.action}; {can}, and --on emulated has all"
                )
            roles = roles_of(job)
            if fault.target in hosts or any(fault.target in process_names(*role) for role in roles):
                continue
            known = ", ".join([*(process_names(*role)[0] for role in roles), *hosts])
            raise BadRequest(f"--fault {fault.text!r}: there is no {fault.target!r}; choose from {known}")

    @abstractmethod
    def allocate(self, job: Job, folder: Path | None = None, notice: Notice = no_notice) -> Allocation:
        """Hosts for a job; addresses may be known only now.

        Where hosts may have to be waited for, `notice` receives what is waited for. Where they live on when their
        controller is killed, what finds them again is stored in the run's folder before anything is waited for.
        """

    @abstractmethod
    def start(self, plan: Plan, folder: Path, *, resume: bool = False) -> Group:
        """Start all processes of a plan; `folder` is the run's, with the checkpoints to resume from."""

    def close(self) -> None:  # noqa: B027
        """Release what was prepared and allocated."""

    def prepare(self, engines: Sequence[str]) -> None:  # noqa: B027
        """Make starts of several jobs of these engines fast, where that is possible."""

    @property
    def host_names(self) -> Sequence[str]:
        """The hosts, where they are known before a job has some: a fault may name them."""
        return ()

    @property
    def host_cores(self) -> Mapping[str, int]:
        """The cores of hosts other than this machine that are connected, by host."""
        return {}

    def divide(self, jobs: Sequence[Job]) -> list[Launcher]:
        """Launchers with hosts of their own, each with room for any of these jobs; itself if there is room for one."""
        return [self]

    def examine(self, job: Job, *, measure: bool = False, notice: Notice = no_notice) -> Examination:
        """Everything that keeps its hosts from running a job and, if asked for, what was measured between them."""
        return Examination(refusals(lambda: self.check(job)))

    def sent_code(self, job: Job) -> Mapping[str, Any] | None:
        """What of the user's code is sent to each host: `checksum`, `bytes` and `files`; None if nothing is."""
        return None

    def prepare_hosts(self, engines: Sequence[str], wheelhouse: Path | None) -> list[dict[str, object]] | None:
        """Make an environment with these engines on each host; what was done there. None if none is needed."""
        return None

    def remove_leftovers(self) -> list[str]:
        """Remove what runs have left on a cluster of others; the names of what was removed."""
        return []

    def permissions(self) -> str:
        """What an administrator of the cluster gives a person who uses it, as text for the cluster's own tool."""
        raise BadRequest(f"--on {self.name} needs no permissions of its own")

    @classmethod
    def living(cls, folder: Path) -> str | None:
        """What still runs of the run in a folder although its controller may be gone, such as `Slurm job 7`."""
        return None

    @classmethod
    def attached(cls, folder: Path) -> Launcher:
        """The launcher of a run whose processes live on without a controller; `BadRequest` if none do.

        They are not touched before the launcher is asked for them.
        """
        raise BadRequest(f"run {folder.name!r}: its processes ended with its controller")

    @property
    def started(self) -> float | None:
        """When the processes of the run that it was attached to were started; None if there are none yet."""
        return None

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the earlier controller of that run knew about the hosts."""
        return {}


@dataclass(frozen=True)
class LauncherType:
    """A launcher that `--on` can choose, described without importing it."""

    name: str
    description: str
    #: Module and class, as `module:class`: called with its options.
    target: str
    #: Its options: the fields of a cluster in clusters.yaml, typed and with their help.
    options: type[ClusterOptions] = ClusterOptions
    #: What may follow its name and a colon; empty if nothing may.
    inline: str = ""
    #: Whether it can do nothing without options, so that its bare name is no cluster.
    needs_options: bool = False
    #: Whether processes run on this machine.
    here: bool = True
    #: Whether the job may read from the terminal, so that nothing else may draw on it.
    interactive: bool = False
    #: The file of a run's folder by which the run's hosts are found again, where they outlive the controller.
    record: str | None = None
    #: Removes what commands that were killed left behind, as `module:function`; the names of what was removed.
    cleaner: str | None = None

    @property
    def launcher(self) -> type[Launcher]:
        """Its class, imported now."""
        return load(self.target)  # type: ignore[no-any-return]
