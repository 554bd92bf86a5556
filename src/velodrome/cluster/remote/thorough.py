"""The examination of hosts that `velodrome doctor` makes: names, ports, the network between them, code and data.

Every request has a limit of its own, and all hosts are asked at the same time.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from velodrome.cluster.findings import Finding
from velodrome.cluster.local.ports import PORTS
from velodrome.cluster.remote.code import modules_of
from velodrome.cluster.remote.link import HostError, HostLost, Link
from velodrome.cluster.remote.starting import Request, host_environment, prepare_host, release
from velodrome.errors import headline

#: A job uses a few ports on each host.
_PORTS_NEEDED = 8
_CONNECT_SECONDS = 5.0
_IMPORT_SECONDS = 120.0
_MEASURE_SECONDS = 1.0
#: A check that takes longer than this is reported as such; the requests of one have shorter limits.
_CHECK_SECONDS = 300.0

Check = Callable[[], list[Finding]]


def examine(
    groups: Mapping[str, Check], measure: Callable[[], list[dict[str, Any]]] | None
) -> tuple[list[Finding], list[dict[str, Any]]]:
    """All findings of checks that run at the same time; measurements come last, when nothing else uses the network."""
    found: list[Finding] = []
    with ThreadPoolExecutor(max(1, len(groups))) as pool:
        for name, future in {name: pool.submit(check) for name, check in groups.items()}.items():
            try:
                found += future.result(_CHECK_SECONDS)
            except HostLost as error:
                found.append(Finding("error", "reachable", None, f"host {error}", "see whether it is up"))
            except (HostError, TimeoutError) as error:
                found.append(Finding("error", name, None, str(error) or "the check did not end in time"))
    return found, measure() if measure is not None else []


def _everywhere(links: Iterable[Link], check: Callable[[Link], list[Finding]]) -> list[Finding]:
    """The findings of a check on all hosts, asked at the same time."""
    links = list(links)
    with ThreadPoolExecutor(max(1, len(links))) as pool:
        return [finding for findings in pool.map(check, links) for finding in findings]


def names(links: Sequence[Link], addresses: Mapping[str, str]) -> list[Finding]:
    """Addresses that do not resolve on a peer, or lead it to itself."""
    several = len({link.facts["host"] for link in links}) > 1

    def on(link: Link) -> list[Finding]:
        asked = [address for host, address in addresses.items() if host != link.host]
        answer, _ = link.ask("resolve", names=asked)
        found = []
        for host, address in addresses.items():
            resolved = answer["addresses"].get(address)
            if host == link.host or resolved is None:
                continue
            if not resolved:
                found.append(Finding("error", "names", link.host, f"it cannot resolve {address!r}, the address of "
                                     f"{host!r}", f"add it to its /etc/hosts, or set addresses: {{{host}: ADDRESS}}"))
            elif several and any(_is_loopback(one) for one in resolved):
                found.append(Finding("error", "names", link.host, f"{address!r}, the address of {host!r}, resolves "
                                     f"there to {resolved[0]}, which is the host itself", "correct its /etc/hosts, or "
                                     f"set addresses: {{{host}: ADDRESS}} in clusters.yaml"))
        return found

    return _everywhere(links, on)


def _is_loopback(address: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    return False


def ports(links: Sequence[Link], addresses: Mapping[str, str]) -> list[Finding]:
    """Hosts without free ports, and pairs of hosts that cannot connect to each other."""
    found: list[Finding] = []
    listening: dict[str, int] = {}

    def free(link: Link) -> list[Finding]:
        answer, _ = link.ask("ports", ports=list(PORTS), count=_PORTS_NEEDED)
        if len(answer["ports"]) < _PORTS_NEEDED:
            return [Finding("error", "ports", link.host, f"only {len(answer['ports'])} ports between {PORTS.start} and "
                            f"{PORTS.stop} are free", "end the programs that listen there")]
        listening[link.host] = link.ask("listen", port=answer["ports"][0])[0]["port"]
        return []

    found += _everywhere(links, free)

    def reach(link: Link) -> list[Finding]:
        wrong = []
        for host, port in listening.items():
            if host == link.host:
                continue
            try:
                link.ask("connect", address=addresses[host], port=port, limit=_CONNECT_SECONDS)
            except HostLost:
                raise
            except HostError as error:
                reason = str(error).partition(": ")[2]
                wrong.append(Finding("error", "network", link.host, f"it cannot connect to {host!r} at "
                                     f"{addresses[host]}:{port}: {reason}", f"open ports {PORTS.start} to {PORTS.stop} "
                                     "between the hosts in the firewall, or correct the route"))
        return wrong

    return found + _everywhere(links, reach)


def measure(links: Sequence[Link], addresses: Mapping[str, str]) -> list[dict[str, Any]]:
    """Round-trip time and bandwidth from each host to each other, one pair after the other."""
    found = []
    for source in links:
        for target in links:
            if source is target:
                continue
            row: dict[str, Any] = {"from": source.host, "to": target.host, "round_trip": None, "bandwidth": None}
            with suppress(HostError):
                port = target.ask("listen")[0]["port"]
                answer, _ = source.ask(
                    "connect", address=addresses[target.host], port=port, limit=_CONNECT_SECONDS, trips=20,
                    measure=_MEASURE_SECONDS,
                )
                row |= {"round_trip": answer["round_trip"], "bandwidth": answer["bandwidth"]}
            found.append(row)
    return found


def code_and_data(links: Sequence[Link], request: Request) -> list[Finding]:
    """Hosts that cannot read the job's data, or import the user's modules."""

    def on(link: Link) -> list[Finding]:
        try:
            run = prepare_host(link, request)
        except HostLost:
            raise
        except HostError as error:
            reason = str(error).removeprefix(f"{link.host!r} ").removeprefix(f"{link.host!r}: ")
            return [Finding("error", "data", link.host, reason, "give it a mirror, or the data at the same path")]
        found = []
        try:
            for module in modules_of(request.plan.job):
                answer, _ = link.run(
                    [run.python, "-c", f"import importlib; importlib.import_module({module!r})"],
                    limit=_IMPORT_SECONDS, cwd=run.code or run.folder, environment=host_environment(run, request),
                )
                if answer["code"] != 0:
                    reason = headline(answer["errors"].strip().rpartition("\n")[2])
                    found.append(Finding("error", "code", link.host, f"it cannot import {module!r}: {reason}",
                                         "install what is missing there, or set code to the folder of your code"))
        finally:
            release(run, request)
        return found

    return _everywhere(links, on)
