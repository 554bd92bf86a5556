"""What must be true of hosts before a job starts on them: cheap checks, which every job runs, and those of
`velodrome doctor`: names, ports, the network between hosts, code and data.

Every check of `velodrome doctor` ends within its limit, and all hosts are asked at the same time.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from velodrome.catalog.base import Engine
from velodrome.catalog.registry import engine_of, strategy_of
from velodrome.clusters.environments.hosts import Interpreter
from velodrome.clusters.launcher import Finding
from velodrome.clusters.plan import PORTS
from velodrome.clusters.preflight import DISK_BYTES
from velodrome.clusters.remote.group import HostRun, in_parallel
from velodrome.clusters.remote.link import HostError, HostLost, Link, is_loopback, several
from velodrome.clusters.remote.starting import (
    Request,
    host_environment,
    modules_of,
    prepare_data,
    send_code,
    send_run,
)
from velodrome.errors import bytes_text
from velodrome.job.job import Job

#: How far clocks may be apart.
CLOCK_SECONDS = 1.0
PROBE_SECONDS = 60.0
_PROBE = "velodrome.training.probe"
_OURS = ("velodrome", "velodrome-worker")

Choose = Callable[[Link, Engine], Interpreter]


def cheap(
    links: Sequence[Link], job: Job, choose: Choose, placed: Mapping[str, int], needed_memory: int
) -> list[Finding]:
    """The findings that refuse a job: packages, clocks, disk and memory; `placed` has the processes of each host."""
    findings = [*clocks(links), *disks(links)]
    for link in links:
        findings += memory(link, needed_memory * placed.get(link.host, 1))
    return findings + versions(links, job, choose)


def clocks(links: Iterable[Link]) -> list[Finding]:
    """Clocks that differ from this machine's."""
    return [
        Finding("error", "clock", link.host, f"its clock is {abs(link.clock_offset):.0f} s "
                f"{'ahead of' if link.clock_offset > 0 else 'behind'} this machine's",
                "synchronize both with NTP (timedatectl set-ntp true)")
        for link in links if abs(link.clock_offset) - link.clock_error > CLOCK_SECONDS
    ]


def disks(links: Iterable[Link], needed: int = DISK_BYTES) -> list[Finding]:
    """Hosts whose disk has no room for the folder of a run."""
    return [
        Finding("error", "disk", link.host,
            f"{link.facts['root']} has {bytes_text(link.facts['disk'])} left, but a run needs {bytes_text(needed)}",
            "free some space there, or set root in clusters.yaml")
        for link in links if link.facts["disk"] < needed
    ]


def memory(link: Link, needed: int) -> list[Finding]:
    """A host with too little memory for its processes."""
    free = link.facts["memory"]
    if free is None or free >= needed:
        return []
    return [Finding("error", "memory", link.host,
        f"its processes need about {bytes_text(needed)} of memory, but only {bytes_text(free)} are free",
        "place fewer processes there")]


def versions(links: Sequence[Link], job: Job, choose: Choose) -> list[Finding]:
    """Interpreters that cannot train the job, and packages that differ between hosts."""
    engine, strategy = engine_of(job), strategy_of(job)
    modules = sorted({need.module for need in (*engine.needs, *strategy.needs)})
    packages = [*_OURS, "numpy", *engine.packages]
    words = ["-m", _PROBE, *(f"--module={name}" for name in modules), *(f"--package={name}" for name in packages)]

    def ask(link: Link) -> Finding | dict[str, Any]:
        try:
            chosen = choose(link, engine)
            if chosen.outdated is not None:
                return Finding("error", "versions", link.host, f"its environment {chosen.outdated!r} was made by "
                               "another version of Velodrome", _how_to_fix(engine))
            ran = link.run([chosen.path, *words], limit=PROBE_SECONDS)
        except HostError as error:
            return Finding("error", "reachable", link.host, str(error), "see whether the host is up")
        if ran.failed:
            return Finding("error", "versions", link.host, f"interpreter {chosen.path!r} cannot train: {ran.reason}",
                           _how_to_fix(engine))
        return ran.answer

    answers = in_parallel(links, ask)
    findings = [answer for answer in answers.values() if isinstance(answer, Finding)]
    probes = {host: answer for host, answer in answers.items() if not isinstance(answer, Finding)}
    for host, probe in probes.items():
        lacking = [name for name in modules if name not in probe["modules"]]
        findings += [Finding("error", "versions", host, f"{probe['interpreter']} has no package {name!r}, which "
                             f"{job.engine}/{job.strategy} needs", _how_to_fix(engine, "install it there"))
                  for name in lacking]
    return findings + _differences(probes)


def _how_to_fix(
    engine: Engine,
    shared: str = "install velodrome there with `velodrome clusters prepare`, or set python in clusters.yaml",
) -> str:
    """How a host gets an interpreter that trains with an engine; `shared` for one that shares Velodrome's own."""
    if engine.own_environment is None:
        return shared
    return f"run `{engine.install_command}` on that host, or set interpreters: {{{engine.key}: PATH}} in clusters.yaml"


def _differences(probes: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    """Packages and interpreters of which hosts have other versions than most of them; ours must be the controller's."""
    from importlib import metadata

    tables = {host: _versions(probe) for host, probe in probes.items()}
    names = dict.fromkeys(name for table in tables.values() for name in table)
    findings = []
    for name in names:
        values = [table.get(name) for table in tables.values()]
        usual = metadata.version("velodrome") if name == "velodrome" else max(values, key=values.count)
        where = "this machine" if name == "velodrome" else "the others"
        for host, table in tables.items():
            if table.get(name) != usual:
                has = f"{name} {table[name]}" if table.get(name) else f"no {name}"
                findings.append(Finding("error", "versions", host, f"it has {has}, and {where} {usual}",
                                        f"install {name} {usual} there"))
    return findings


def _versions(probe: Mapping[str, Any]) -> dict[str, str]:
    table = dict(probe["versions"])
    ours = [table.pop(name) for name in _OURS if name in table]
    minor = ".".join(str(probe["python"]).split(".")[:2])
    return {"Python": minor, **({"velodrome": ours[0]} if ours else {}), **table}


def loopback(links: Sequence[Link], addresses: Mapping[str, str]) -> list[Finding]:
    """Hosts whose peers would look for them on themselves."""
    return [
        Finding("error", "names", link.host, f"its address {addresses[link.host]!r} leads every other host to itself",
                f"name it as the others reach it, or set addresses: {{{link.host}: ADDRESS}} in clusters.yaml")
        for link in links if several(links) and is_loopback(addresses[link.host])
    ]


#: A job uses a few ports on each host.
_PORTS_NEEDED = 8
_CONNECT_SECONDS = 5.0
_IMPORT_SECONDS = 120.0
_MEASURE_SECONDS = 1.0
#: A check that takes longer than this on a host is reported as such.
_CHECK_SECONDS = 300.0
#: What a group of checks may take beyond that: the checks of hosts have ended by themselves then.
_GROUP_SECONDS = 30.0
#: Preparing the data of a job may take longer than a person waits for an examination.
_DATA_SECONDS = 240.0
_WRITABLE = "set root in clusters.yaml to a writable folder there"
_DATA = "give it a mirror, or the data at the same path"
_UP = "see whether it is up, and not overloaded"

Check = Callable[[], list[Finding]]


def examine(
    groups: Mapping[str, Check], measure: Callable[[], list[dict[str, Any]]] | None,
    limit: float = _CHECK_SECONDS + _GROUP_SECONDS,
) -> tuple[list[Finding], list[dict[str, Any]]]:
    """All findings of checks that run at the same time; measurements come last, when nothing else uses the network."""
    futures = _started(groups)
    deadline = time.monotonic() + limit
    findings: list[Finding] = []
    for name, future in futures.items():
        try:
            findings += future.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            findings.append(Finding("error", name, None, f"the check of {name} did not end within {limit:g} s", _UP))
        except HostError as error:
            check = "reachable" if isinstance(error, HostLost) else name
            findings.append(Finding("error", check, None, f"host {error}", _UP))
    return findings, measure() if measure is not None else []


def everywhere(
    links: Sequence[Link], name: str, check: Callable[[Link], list[Finding]], limit: float = _CHECK_SECONDS
) -> list[Finding]:
    """The findings of a check on all hosts, asked at the same time; hosts on which it does not end are among them."""
    futures = _started({link.host: partial(check, link) for link in links})
    wait(futures.values(), limit)
    findings: list[Finding] = []
    for host, future in futures.items():
        if not future.done():
            findings.append(Finding("error", name, host, f"its check of {name} did not end within {limit:g} s", _UP))
            continue
        try:
            findings += future.result()
        except HostError as error:
            kind = "reachable" if isinstance(error, HostLost) else name
            findings.append(Finding.from_sentence(kind, host, str(error), _UP))
    return findings


def _started(work: Mapping[str, Check]) -> dict[str, Future[list[Finding]]]:
    """Checks in a thread each, by name. One that hangs ends with the links that it waits for."""
    pool = ThreadPoolExecutor(max(1, len(work)))
    futures = {name: pool.submit(check) for name, check in work.items()}
    pool.shutdown(wait=False)
    return futures


def names(links: Sequence[Link], addresses: Mapping[str, str]) -> list[Finding]:
    """Addresses that do not resolve on a peer, or lead it to itself."""
    machines = several(links)

    def on(link: Link) -> list[Finding]:
        asked = [address for host, address in addresses.items() if host != link.host]
        answer, _ = link.ask("resolve", names=asked)
        findings = []
        for host, address in addresses.items():
            resolved = answer["addresses"].get(address)
            if host == link.host or resolved is None:
                continue
            if not resolved:
                findings.append(Finding("error", "names", link.host, f"it cannot resolve {address!r}, the address of "
                                     f"{host!r}", f"add it to its /etc/hosts, or set addresses: {{{host}: ADDRESS}}"))
            elif machines and any(is_loopback(where) for where in resolved):
                findings.append(Finding("error", "names", link.host, f"{address!r}, the address of {host!r}, resolves "
                                     f"there to {resolved[0]}, which is the host itself", "correct its /etc/hosts, or "
                                        f"set addresses: {{{host}: ADDRESS}} in clusters.yaml"))
        return findings

    return everywhere(links, "names", on)


def ports(links: Sequence[Link], addresses: Mapping[str, str]) -> list[Finding]:
    """Hosts without free ports, and pairs of hosts that cannot connect to each other."""
    findings: list[Finding] = []
    listening: dict[str, int] = {}
    key = secrets.token_hex(16)

    def free(link: Link) -> list[Finding]:
        answer, _ = link.ask("ports", ports=list(PORTS), count=_PORTS_NEEDED)
        if len(answer["ports"]) < _PORTS_NEEDED:
            return [Finding("error", "ports", link.host, f"only {len(answer['ports'])} ports between {PORTS.start} and "
                            f"{PORTS.stop} are free", "end the programs that listen there")]
        asked = {"port": answer["ports"][0], "address": addresses[link.host], "key": key}
        listening[link.host] = link.ask("listen", **asked)[0]["port"]
        return []

    findings += everywhere(links, "ports", free)

    def reach(link: Link) -> list[Finding]:
        wrong = []
        for host, port in listening.items():
            if host == link.host:
                continue
            try:
                link.ask("connect", address=addresses[host], port=port, key=key, limit=_CONNECT_SECONDS)
            except HostLost:
                raise
            except HostError as error:
                reason = str(error).partition(": ")[2]
                wrong.append(Finding("error", "network", link.host, f"it cannot connect to {host!r} at "
                                     f"{addresses[host]}:{port}: {reason}", f"open ports {PORTS.start} to {PORTS.stop} "
                                     "between the hosts in the firewall, or correct the route"))
        return wrong

    return findings + everywhere(links, "network", reach)


def measure(links: Sequence[Link], addresses: Mapping[str, str]) -> list[dict[str, Any]]:
    """Round-trip time and bandwidth from each host to each other, one pair after the other."""
    rows = []
    for source in links:
        for target in links:
            if source is target:
                continue
            row: dict[str, Any] = {"from": source.host, "to": target.host, "round_trip": None, "bandwidth": None}
            with suppress(HostError):
                address, key = addresses[target.host], secrets.token_hex(16)
                port = target.ask("listen", address=address, key=key)[0]["port"]
                answer, _ = source.ask(
                    "connect", address=address, port=port, key=key, limit=_CONNECT_SECONDS, trips=20,
                    measure=_MEASURE_SECONDS,
                )
                row |= {"round_trip": answer["round_trip"], "bandwidth": answer["bandwidth"]}
            rows.append(row)
    return rows


def code_and_data(links: Sequence[Link], request: Request) -> list[Finding]:
    """Hosts that cannot take the user's code, read the job's data, or import the user's modules."""
    seconds = min(request.options.data_timeout, _DATA_SECONDS)
    request = replace(request, options=request.options.model_copy(update={"data_timeout": seconds}))

    def on(link: Link) -> list[Finding]:
        check, fix = "code", _WRITABLE
        run: HostRun | None = None
        findings = []
        try:
            code = send_code(link, request.code)
            check = "disk"
            run = HostRun(link, send_run(link, request), code, request.pythons[link.host])
            check, fix = "data", _DATA
            prepare_data(run, request)
            check = "code"
            for module in modules_of(request.plan.job):
                ran = link.run(
                    [run.python, "-c", f"import importlib; importlib.import_module({module!r})"],
                    limit=_IMPORT_SECONDS, cwd=run.code or run.folder, environment=host_environment(run, request),
                )
                if ran.failed:
                    findings.append(Finding("error", "code", link.host, f"it cannot import {module!r}: {ran.reason}",
                                            "install what is missing there, or set code to the folder of your code"))
        except HostLost:
            raise
        except HostError as error:
            findings.append(Finding.from_sentence(check, link.host, str(error), fix))
        finally:
            if run is not None and request.options.shared_dir is None:
                with suppress(HostError):  # what is left of it goes with the session
                    link.ask("stop", token=request.token, folder=run.folder, segments="")
        return findings

    return everywhere(links, "job", on)
