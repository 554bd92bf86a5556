"""A job placed on hosts: every role and rank with its host, port, place on that host, arguments and environment.

The only owner of which host each process gets, and of what processes know about each other (`VELODROME_WORLD`,
`TF_CONFIG`, `MASTER_ADDR`, …).
"""

from __future__ import annotations

import itertools
import secrets
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from velodrome.catalog.base import Engine
from velodrome.catalog.registry import engine_of, strategy_of
from velodrome.catalog.world import Member, World, numbered, script_environment
from velodrome.errors import BadRequest
from velodrome.job.job import Job
from velodrome.job.resolve import roles_of
from velodrome.variables import JOB, RANK, ROLE, SECRET, WORLD

_EXAMPLE = '--place "server=host3" or --place "worker:1=host2"'


@dataclass(frozen=True)
class Placement:
    """Where processes go."""

    policy: Literal["spread", "pack", "turns"] = "turns"
    #: Parameter servers: like any process, on the workers' hosts, or on hosts without a worker; None where the engine's
    #: own launcher has them.
    servers: Literal["spread", "beside", "apart"] | None = None
    #: Hosts by role, or by role and rank: `server`, `worker:1`; several are separated by commas.
    pins: Mapping[str, str] = field(default_factory=dict)
    #: Processes per host that `pack` fills.
    slots: int | None = None


def parse_pins(words: Sequence[str]) -> dict[str, str]:
    """What `--place` was given: `ROLE=HOST` or `ROLE:RANK=HOST`."""
    pins = {}
    for word in words:
        who, equals, hosts = (part.strip() for part in word.partition("="))
        if not equals or not can_be_placed(who, hosts):
            raise BadRequest(f"--place {word!r}: write it as ROLE=HOST, for example {_EXAMPLE}")
        if who in pins:
            raise BadRequest(f"--place {word!r}: {who!r} is placed twice")
        pins[who] = hosts
    return pins


def can_be_placed(who: str, hosts: str) -> bool:
    """Whether these are a role, or a role and rank, and at least one host."""
    role, colon, rank = who.partition(":")
    return bool(role and _named(hosts)) and (not colon or rank.isdecimal())


def _named(hosts: str) -> list[str]:
    return [host.strip() for host in hosts.split(",") if host.strip()]


def place(
    roles: Sequence[tuple[str, int]], hosts: Sequence[str], placement: Placement,
    capacity: Mapping[str, int] | None = None, *, as_beside: bool = False,
) -> list[str]:
    """A host for each process, in the same order; `capacity` is how many a host takes when they are packed.

    `turns` lets each role begin at the first host; it is the placement of a plan for hosts that nobody knows.
    """
    if placement.servers is None and as_beside:
        placement = replace(placement, servers="beside")
    pins = _pinned(roles, hosts, placement.pins)
    free = [process for process in roles if process not in pins]
    servers = [process for process in free if process[0] == "server"]
    if placement.servers in (None, "spread") or not any(role == "server" for role, _ in roles):
        return _merged(roles, pins, _by_policy(free, hosts, placement, capacity, pins))
    others = [process for process in free if process[0] != "server"]
    if placement.servers == "apart":
        places = _apart(others, servers, hosts, placement, capacity, pins)
        return _merged(roles, pins, places)
    places = _by_policy(others, hosts, placement, capacity, pins)
    beside = [host for (role, _), host in (pins | places).items() if role == "worker"] or list(hosts)
    places |= {server: beside[number % len(beside)] for number, server in enumerate(servers)}
    return _merged(roles, pins, places)


Places = dict[tuple[str, int], str]


def _merged(roles: Sequence[tuple[str, int]], pins: Places, places: Places) -> list[str]:
    everyone = pins | places
    return [everyone[process] for process in roles]


def _pinned(roles: Sequence[tuple[str, int]], hosts: Sequence[str], pins: Mapping[str, str]) -> Places:
    places: Places = {}
    for who, value in pins.items():
        role, colon, rank = who.partition(":")
        named = _named(value)
        if unknown := [host for host in named if host not in hosts]:
            raise BadRequest(f"--place {who}={value!r}: no host {unknown[0]!r}; choose from {', '.join(hosts)}")
        meant = [member for member in roles if member[0] == role and (not colon or member[1] == int(rank))]
        if not meant:
            has = ", ".join(dict.fromkeys(name for name, _ in roles))
            raise BadRequest(f"--place {who}={value!r}: this job has no {who!r}; its roles are {has}")
        for number, process in enumerate(meant):
            if colon or process not in places:
                places[process] = named[number % len(named)]
    # A rank that is named wins over its role, in whatever order they were given.
    return places


def _by_policy(
    processes: Sequence[tuple[str, int]], hosts: Sequence[str], placement: Placement,
    capacity: Mapping[str, int] | None, pins: Places,
) -> Places:
    if placement.policy == "turns":
        turns: Counter[str] = Counter()
        places: Places = {}
        for process in processes:
            places[process] = hosts[turns[process[0]] % len(hosts)]
            turns[process[0]] += 1
        return places
    load = Counter(pins.values())
    if placement.policy == "pack":
        return _packed(processes, hosts, placement.slots, capacity or {}, load)
    # The least loaded host, the first of several: with nothing pinned they take turns in order.
    places = {}
    for process in processes:
        host = min(hosts, key=lambda host: load[host])
        places[process] = host
        load[host] += 1
    return places


def _packed(
    processes: Sequence[tuple[str, int]], hosts: Sequence[str], slots: int | None, capacity: Mapping[str, int],
    load: Counter[str],
) -> Places:
    """Fill one host after the other; when all are full, they are filled once more."""
    places: Places = {}
    rounds = 1
    for process in processes:
        while not (open_hosts := [
            host for host in hosts if load[host] < rounds * (slots or capacity.get(host, 1))
        ]):
            rounds += 1
        places[process] = open_hosts[0]
        load[open_hosts[0]] += 1
    return places


def _apart(
    others: Sequence[tuple[str, int]], servers: Sequence[tuple[str, int]], hosts: Sequence[str],
    placement: Placement, capacity: Mapping[str, int] | None, pins: Places,
) -> Places:
    """The servers on the last hosts, one each while there are enough, everyone else on the hosts before them.

    No server goes to the host of a worker that is pinned, and no worker to that of a server.
    """
    taken = {host for (role, _), host in pins.items() if role == "server"}
    pinned = {host for (role, _), host in pins.items() if role == "worker"} - taken
    available = [host for host in hosts if host not in taken and host not in pinned]
    most = max(0, min(len(servers), len(available) - (not pinned)))
    own = available[len(available) - most :] if most else []
    left = [host for host in hosts if host not in taken and host not in own]
    if (servers and not own) or not left:
        placed = ", ".join(host for host in hosts if host in pinned | taken)
        need = f"a host without a worker besides {placed}" if placed else "at least two hosts"
        raise BadRequest(
            f"servers apart from workers need {need}, but there are {len(hosts)}; add hosts, or choose servers: beside"
        )
    places = _by_policy(others, left, placement, capacity, pins)
    return places | {server: own[number % len(own)] for number, server in enumerate(servers)}


LOOPBACK = "127.0.0.1"
#: Below the range from which systems choose ports for outgoing connections.
PORTS = range(20000, 32000)
#: First port of a plan for hosts whose free ports are not known.
FIRST_PORT = 29400
_TURNS = Placement()


@dataclass(frozen=True)
class Process:
    """One process of a plan."""

    member: Member
    #: Its place among the processes that compute on its host, and how many there are: cores are divided by it.
    slot: int
    slots: int
    environment: dict[str, str] = field(hash=False)
    #: The name of its host for people, where the others reach it at another address: `member.host`.
    host_name: str = ""

    @property
    def role(self) -> str:
        return self.member.role

    @property
    def rank(self) -> int:
        return self.member.rank

    @property
    def host(self) -> str:
        """Its host, as the user and the launcher call it."""
        return self.host_name or self.member.host

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
    #: By what its processes know one another; stored nowhere.
    secret: str = field(default_factory=lambda: secrets.token_hex(24), repr=False, compare=False)

    @property
    def members(self) -> tuple[Member, ...]:
        return tuple(process.member for process in self.processes)

    @property
    def chief(self) -> Process:
        role = strategy_of(self.job).chief
        return next(process for process in self.processes if process.role == role and process.rank == 0)

    def as_json(self) -> dict[str, Any]:
        return {"run": self.run, "processes": [asdict(process) for process in self.processes]}


def plan_from_json(job: Job, fields: Mapping[str, Any], facts: Mapping[str, Any]) -> Plan:
    """The plan of a job that was stored as `Plan.as_json`."""
    processes = tuple(
        Process(Member(**each["member"]), each["slot"], each["slots"], each["environment"], each.get("host_name", ""))
        for each in fields["processes"]
    )
    hosts = tuple(dict.fromkeys(process.host for process in processes))
    return Plan(fields["run"], job, processes, hosts, facts)


def consecutive_ports(first: int = FIRST_PORT) -> Callable[[str], int]:
    """Ports that count up, for hosts whose free ports are not known."""
    ports = itertools.count(first)
    return lambda host: next(ports)


def _unused(port: Callable[[str], int], host: str, taken: Sequence[int]) -> int:
    """A port that no other process of the plan has: what is free now is free for each of them."""
    free = port(host)
    for _ in range(100):
        if free not in taken:
            break
        free = port(host)
    return free


def make_plan(
    run: str, job: Job, hosts: Sequence[str] = (LOOPBACK,), port: Callable[[str], int] | None = None, *,
    placement: Placement = _TURNS, addresses: Mapping[str, str] | None = None,
    capacity: Mapping[str, int] | None = None, facts: Mapping[str, Any] | None = None,
) -> Plan:
    """Place the processes of a resolved job on hosts; `port` finds a free one on a host. By default each role begins
    at the first host. The others reach a host at its address, which is its name by default."""
    port, addresses = port or consecutive_ports(), addresses or {}
    strategy, engine = strategy_of(job), engine_of(job)
    roles = roles_of(job)
    chosen = place(roles, hosts, placement, capacity, as_beside=strategy.servers_beside_workers)
    placed: list[Member] = []
    for (role, rank), host in zip(roles, chosen, strict=True):
        taken = [member.port for member in placed]
        listening = _unused(port, host, taken) if role in strategy.listens else 0
        placed.append(Member(role, rank, addresses.get(host, host), listening))
    members = numbered(placed)
    if strategy.listens and not engine.ipv6:
        _refuse_ipv6(engine, members)
    computing = Counter(member.host for member in members if member.role == "worker")
    processes = []
    for me, host in zip(members, chosen, strict=True):
        slot, slots = (me.local_rank, computing[me.host]) if me.role == "worker" else (0, 0)
        world = World(members, me)
        variables = engine.environment(strategy, world) if job.script is None else script_environment(world)
        name = host if host != me.host else ""
        processes.append(Process(me, slot, slots, dict(variables), name))
    return Plan(run, job, tuple(processes), tuple(hosts), facts or {})


def _refuse_ipv6(engine: Engine, members: Sequence[Member]) -> None:
    for member in members:
        if ":" in member.host:
            raise BadRequest(f"{engine.title}: its processes reach each other by IPv4 only, and {member.host} is an "
                             "IPv6 address; give the host's name, or an IPv4 address of it")


def arguments(plan: Plan, process: Process, folder: Path, *, resume: bool = False) -> list[str]:
    """The options of a training process, on its command line, where people and tools look for them."""
    words = ["--run", plan.run, "--role", process.role, "--rank", str(process.rank), "--folder", str(folder)]
    if process.slots:
        words += ["--slot", f"{process.slot}/{process.slots}"]
    return words + (["--resume"] if resume else [])


#: The module that trains, and the options of a process that a controller starts: it ends when its standard input
#: closes, and leaves time limits to the controller.
TRAINING, SUPERVISED = "velodrome.training", ("--lifeline", "--supervised")


def command(python: str, plan: Plan, process: Process, folder: Path, *, resume: bool = False) -> list[str]:
    """The command line of a training process that a controller starts with an interpreter."""
    return [python, "-P", "-m", TRAINING, *arguments(plan, process, folder, resume=resume), *SUPERVISED]


def environment(plan: Plan, process: Process) -> dict[str, str]:
    """The environment of a training process, on top of what it inherits."""
    return {
        JOB: plan.job.model_dump_json(exclude_defaults=True),
        WORLD: World(plan.members, process.member).to_json(),
        ROLE: process.role,
        RANK: str(process.rank),
        SECRET: plan.secret,
        **process.environment,
    }


def manual_command(plan: Plan, process: Process, runs: Path, python: str = "python") -> str:
    """A line for a shell on the process's host that starts it without a launcher."""
    words = ["env", *(f"{key}={value}" for key, value in environment(plan, process).items() if key != SECRET)]
    # Set by the shell, so that no list of processes shows it.
    line = shlex.join([*words, python, "-m", "velodrome.run.manual", *arguments(plan, process, runs / plan.run)])
    return f"{SECRET}={plan.secret} {line}"
