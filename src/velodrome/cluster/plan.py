"""A job laid on hosts: every role and rank with its host, port, place on that host, command and environment.

The only owner of what processes are told about each other (`TF_CONFIG`, `MASTER_ADDR`, …).
"""

from __future__ import annotations

import random
import shlex
import socket
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from velodrome.errors import VelodromeError
from velodrome.offers.registry import engine_of, strategy_of
from velodrome.offers.world import Member, World, numbered
from velodrome.spec.job import Job
from velodrome.spec.resolve import roles_of
from velodrome.variables import JOB, RANK, ROLE, WORLD

LOCAL = "127.0.0.1"
#: Below the range from which systems take ports for outgoing connections.
PORTS = range(20000, 32000)
#: Options of a training process that a controller starts and watches.
SUPERVISED = ("--lifeline", "--supervised")


@dataclass(frozen=True)
class Process:
    """One process of a plan."""

    member: Member
    #: Its place among the processes that compute on its host, and how many there are: cores are divided by it.
    slot: int
    slots: int
    environment: dict[str, str]

    @property
    def role(self) -> str:
        return self.member.role

    @property
    def rank(self) -> int:
        return self.member.rank

    @property
    def host(self) -> str:
        return self.member.host

    @property
    def name(self) -> str:
        """`worker 1`, as messages call it."""
        return f"{self.role} {self.rank}"

    @property
    def file_name(self) -> str:
        return f"{self.role}-{self.rank}"


@dataclass(frozen=True)
class Plan:
    """All processes of a job, in the order in which they are started."""

    run: str
    job: Job
    processes: tuple[Process, ...]
    #: In the order in which the user named them.
    hosts: tuple[str, ...] = (LOCAL,)

    @property
    def members(self) -> tuple[Member, ...]:
        return tuple(process.member for process in self.processes)

    @property
    def chief(self) -> Process:
        role = strategy_of(self.job).chief
        return next(process for process in self.processes if process.role == role and process.rank == 0)

    def as_json(self) -> dict[str, Any]:
        return {"run": self.run, "processes": [asdict(process) for process in self.processes]}


def free_port() -> int:
    """A port that nobody on this machine listens on at this moment."""
    for port in random.SystemRandom().sample(PORTS, 200):
        with socket.socket() as trial:
            try:
                trial.bind(("", port))
            except OSError:
                continue
            return port
    raise VelodromeError(f"no free port between {PORTS.start} and {PORTS.stop}: something on this machine takes them")


def _another(port: Callable[[], int], taken: Sequence[int]) -> int:
    """A port that no other process of the plan has: what is free now is free for each of them."""
    found = port()
    for _ in range(100):
        if found not in taken:
            break
        found = port()
    return found


def make_plan(
    run: str, job: Job, hosts: Sequence[str] = (LOCAL,), port: Callable[[], int] = free_port
) -> Plan:
    """Lay a resolved job on hosts, in turns."""
    strategy, engine = strategy_of(job), engine_of(job)
    turns: Counter[str] = Counter()
    placed: list[Member] = []
    for role, rank in roles_of(job):
        host = hosts[turns[role] % len(hosts)]
        turns[role] += 1
        taken = [member.port for member in placed]
        placed.append(Member(role, rank, host, _another(port, taken) if role in strategy.listens else 0))
    members = numbered(placed)
    computing = Counter(member.host for member in members if member.role == "worker")
    processes = []
    for me in members:
        slot, slots = (me.local_rank, computing[me.host]) if me.role == "worker" else (0, 0)
        processes.append(Process(me, slot, slots, dict(engine.environment(strategy, World(members, me)))))
    return Plan(run, job, tuple(processes), tuple(hosts))


def arguments(plan: Plan, process: Process, folder: Path, *, resume: bool = False) -> list[str]:
    """What a worker is told on its command line, where people and tools look for it."""
    words = ["--run", plan.run, "--role", process.role, "--rank", str(process.rank), "--folder", str(folder)]
    if process.slots:
        words += ["--slot", f"{process.slot}/{process.slots}"]
    return words + (["--resume"] if resume else [])


def environment(plan: Plan, process: Process) -> dict[str, str]:
    """What a worker is told in its environment, on top of what it inherits."""
    return {
        JOB: plan.job.model_dump_json(exclude_defaults=True),
        WORLD: World(plan.members, process.member).to_json(),
        ROLE: process.role,
        RANK: str(process.rank),
        **process.environment,
    }


def manual_command(plan: Plan, process: Process, runs: Path, python: str = "python") -> str:
    """A line for a shell on the process's host that starts its part."""
    words = ["env", *(f"{key}={value}" for key, value in environment(plan, process).items())]
    return shlex.join([*words, python, "-m", "velodrome.run.manual", *arguments(plan, process, runs / plan.run)])


def command(plan: Plan, process: Process, folder: Path, *, resume: bool = False) -> list[str]:
    """How the controller starts a process with its own Python."""
    return [sys.executable, "-m", "velodrome.worker", *arguments(plan, process, folder, resume=resume),
            *SUPERVISED]
