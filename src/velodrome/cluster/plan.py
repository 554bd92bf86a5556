"""A job placed on hosts: every role and rank with its host, port, place on that host, arguments and environment.

The only owner of what processes know about each other (`VELODROME_WORLD`, `TF_CONFIG`, `MASTER_ADDR`, …).
"""

from __future__ import annotations

import itertools
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from velodrome.offers import script
from velodrome.offers.registry import engine_of, strategy_of
from velodrome.offers.world import Member, World, numbered
from velodrome.spec.job import Job
from velodrome.spec.resolve import roles_of
from velodrome.variables import JOB, RANK, ROLE, WORLD

LOOPBACK = "127.0.0.1"
#: First port of a plan for hosts whose free ports are not known.
FIRST_PORT = 29400


@dataclass(frozen=True)
class Process:
    """One process of a plan."""

    member: Member
    #: Its place among the processes that compute on its host, and how many there are: cores are divided by it.
    slot: int
    slots: int
    environment: dict[str, str] = field(hash=False)

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
    #: In the order in which they were allocated or named.
    hosts: tuple[str, ...] = (LOOPBACK,)
    #: What the launcher knows about the hosts.
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def members(self) -> tuple[Member, ...]:
        return tuple(process.member for process in self.processes)

    @property
    def chief(self) -> Process:
        role = strategy_of(self.job).chief
        return next(process for process in self.processes if process.role == role and process.rank == 0)

    def as_json(self) -> dict[str, Any]:
        return {"run": self.run, "processes": [asdict(process) for process in self.processes]}


def consecutive_ports(first: int = FIRST_PORT) -> Callable[[str], int]:
    """Ports that count up, for hosts whose free ports are not known."""
    ports = itertools.count(first)
    return lambda host: next(ports)


def _unused(port: Callable[[str], int], host: str, taken: Sequence[int]) -> int:
    """A port that no other process of the plan has: what is free now is free for each of them."""
    found = port(host)
    for _ in range(100):
        if found not in taken:
            break
        found = port(host)
    return found


def make_plan(
    run: str, job: Job, hosts: Sequence[str] = (LOOPBACK,), port: Callable[[str], int] | None = None, *,
    spread: bool = False, facts: Mapping[str, Any] | None = None,
) -> Plan:
    """Place the processes of a resolved job on hosts in turn; `port` finds a free one on a host. With `spread` they
    take turns all together, else each role begins at the first host."""
    port = port or consecutive_ports()
    strategy, engine = strategy_of(job), engine_of(job)
    turns: Counter[str] = Counter()
    placed: list[Member] = []
    for role, rank in roles_of(job):
        kind = "" if spread else role
        host = hosts[turns[kind] % len(hosts)]
        turns[kind] += 1
        taken = [member.port for member in placed]
        placed.append(Member(role, rank, host, _unused(port, host, taken) if role in strategy.listens else 0))
    members = numbered(placed)
    computing = Counter(member.host for member in members if member.role == "worker")
    processes = []
    for me in members:
        slot, slots = (me.local_rank, computing[me.host]) if me.role == "worker" else (0, 0)
        world = World(members, me)
        variables = engine.environment(strategy, world) if job.script is None else script.environment(world)
        processes.append(Process(me, slot, slots, dict(variables)))
    return Plan(run, job, tuple(processes), tuple(hosts), facts or {})


def arguments(plan: Plan, process: Process, folder: Path, *, resume: bool = False) -> list[str]:
    """The options of a training process, on its command line, where people and tools look for them."""
    words = ["--run", plan.run, "--role", process.role, "--rank", str(process.rank), "--folder", str(folder)]
    if process.slots:
        words += ["--slot", f"{process.slot}/{process.slots}"]
    return words + (["--resume"] if resume else [])


def environment(plan: Plan, process: Process) -> dict[str, str]:
    """The environment of a training process, on top of what it inherits."""
    return {
        JOB: plan.job.model_dump_json(exclude_defaults=True),
        WORLD: World(plan.members, process.member).to_json(),
        ROLE: process.role,
        RANK: str(process.rank),
        **process.environment,
    }


def manual_command(plan: Plan, process: Process, runs: Path, python: str = "python") -> str:
    """A line for a shell on the process's host that starts it without a launcher."""
    words = ["env", *(f"{key}={value}" for key, value in environment(plan, process).items())]
    return shlex.join([*words, python, "-m", "velodrome.run.manual", *arguments(plan, process, runs / plan.run)])
