"""Which host each process of a job gets: a policy for all of them, and pins for some. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from velodrome.errors import BadRequest

_EXAMPLE = '--place "server=host3" or --place "worker:1=host2"'


@dataclass(frozen=True)
class Placement:
    """Where processes go."""

    policy: Literal["spread", "pack", "turns"] = "turns"
    #: Parameter servers: like any process, on the workers' hosts, or on hosts without a worker.
    servers: Literal["spread", "beside", "apart"] = "spread"
    #: Hosts by role, or by role and rank: `server`, `worker:1`; several are separated by commas.
    pins: Mapping[str, str] = field(default_factory=dict)
    #: Processes per host that `pack` fills.
    slots: int | None = None


def parse_pins(words: Sequence[str]) -> dict[str, str]:
    """What `--place` was given: `ROLE=HOST` or `ROLE:RANK=HOST`."""
    found = {}
    for word in words:
        who, equals, hosts = (part.strip() for part in word.partition("="))
        if not equals or not can_be_placed(who, hosts):
            raise BadRequest(f"--place {word!r}: write it as ROLE=HOST, for example {_EXAMPLE}")
        if who in found:
            raise BadRequest(f"--place {word!r}: {who!r} is placed twice")
        found[who] = hosts
    return found


def can_be_placed(who: str, hosts: str) -> bool:
    """Whether these are a role, or a role and rank, and at least one host."""
    role, colon, rank = who.partition(":")
    return bool(role and _named(hosts)) and (not colon or rank.isdecimal())


def _named(hosts: str) -> list[str]:
    return [host.strip() for host in hosts.split(",") if host.strip()]


def place(
    roles: Sequence[tuple[str, int]], hosts: Sequence[str], placement: Placement,
    capacity: Mapping[str, int] | None = None,
) -> list[str]:
    """A host for each process, in the same order; `capacity` is how many a host takes when they are packed.

    `turns` lets each role begin at the first host; it is the placement of a plan for hosts that nobody knows.
    """
    pins = _pinned(roles, hosts, placement.pins)
    free = [process for process in roles if process not in pins]
    servers = [process for process in free if process[0] == "server"]
    if placement.servers == "spread" or not any(role == "server" for role, _ in roles):
        return _merged(roles, pins, _by_policy(free, hosts, placement, capacity, pins))
    others = [process for process in free if process[0] != "server"]
    if placement.servers == "apart":
        found = _apart(others, servers, hosts, placement, capacity, pins)
        return _merged(roles, pins, found)
    found = _by_policy(others, hosts, placement, capacity, pins)
    beside = [host for (role, _), host in (pins | found).items() if role == "worker"] or list(hosts)
    return _merged(roles, pins, found | {one: beside[number % len(beside)] for number, one in enumerate(servers)})


Places = dict[tuple[str, int], str]


def _merged(roles: Sequence[tuple[str, int]], pins: Places, found: Places) -> list[str]:
    everyone = pins | found
    return [everyone[process] for process in roles]


def _pinned(roles: Sequence[tuple[str, int]], hosts: Sequence[str], pins: Mapping[str, str]) -> Places:
    found: Places = {}
    for who, value in pins.items():
        role, colon, rank = who.partition(":")
        named = _named(value)
        if unknown := [host for host in named if host not in hosts]:
            raise BadRequest(f"--place {who}={value!r}: no host {unknown[0]!r}; choose from {', '.join(hosts)}")
        meant = [one for one in roles if one[0] == role and (not colon or one[1] == int(rank))]
        if not meant:
            has = ", ".join(dict.fromkeys(one for one, _ in roles))
            raise BadRequest(f"--place {who}={value!r}: this job has no {who!r}; its roles are {has}")
        for number, process in enumerate(meant):
            if colon or process not in found:
                found[process] = named[number % len(named)]
    # A rank that is named wins over its role, in whatever order they were given.
    return found


def _by_policy(
    processes: Sequence[tuple[str, int]], hosts: Sequence[str], placement: Placement,
    capacity: Mapping[str, int] | None, pins: Places,
) -> Places:
    if placement.policy == "turns":
        turns: Counter[str] = Counter()
        found: Places = {}
        for process in processes:
            found[process] = hosts[turns[process[0]] % len(hosts)]
            turns[process[0]] += 1
        return found
    load = Counter(pins.values())
    if placement.policy == "pack":
        return _packed(processes, hosts, placement.slots, capacity or {}, load)
    # The least loaded host, the first of several: with nothing pinned they take turns in order.
    found = {}
    for process in processes:
        host = min(hosts, key=lambda one: load[one])
        found[process] = host
        load[host] += 1
    return found


def _packed(
    processes: Sequence[tuple[str, int]], hosts: Sequence[str], slots: int | None, capacity: Mapping[str, int],
    load: Counter[str],
) -> Places:
    """Fill one host after the other; when all are full, they are filled once more."""
    found: Places = {}
    rounds = 1
    for process in processes:
        while not (open_hosts := [
            host for host in hosts if load[host] < rounds * (slots or capacity.get(host, 1))
        ]):
            rounds += 1
        found[process] = open_hosts[0]
        load[open_hosts[0]] += 1
    return found


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
            f"servers apart from workers need {need}, and there are {len(hosts)}; add hosts, or choose servers: beside"
        )
    found = _by_policy(others, left, placement, capacity, pins)
    return found | {one: own[number % len(own)] for number, one in enumerate(servers)}
