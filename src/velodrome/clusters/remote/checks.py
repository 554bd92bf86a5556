"""What must be true of hosts before a job starts on them: cheap checks, which every job runs, and thorough ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from velodrome.catalog.base import Engine
from velodrome.catalog.registry import engine_of, strategy_of
from velodrome.clusters.findings import Finding
from velodrome.clusters.remote.interpreters import Interpreter
from velodrome.clusters.remote.link import HostError, Link
from velodrome.errors import headline
from velodrome.job.job import Job
from velodrome.printable import bytes_text

#: How far clocks may be apart.
CLOCK_SECONDS = 1.0
#: What must be free for the folder of a run.
DISK_BYTES = 100 << 20
PROBE_SECONDS = 60.0
_PROBE = "velodrome.worker.probe"
_OURS = ("velodrome", "velodrome-worker")

Choose = Callable[[Link, Engine], Interpreter]


def cheap(
    links: Sequence[Link], job: Job, choose: Choose, placed: Mapping[str, int], needed_memory: int
) -> list[Finding]:
    """The findings that refuse a job: packages, clocks, disk and memory; `placed` has the processes of each host."""
    found = [*clocks(links), *disks(links)]
    for link in links:
        found += memory(link, needed_memory * placed.get(link.host, 1))
    return found + versions(links, job, choose)


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
        Finding("error", "disk", link.host, f"{link.facts['root']} has {bytes_text(link.facts['disk'])} left, and a "
                f"run needs {bytes_text(needed)}", "free some space there, or set root in clusters.yaml")
        for link in links if link.facts["disk"] < needed
    ]


def memory(link: Link, needed: int) -> list[Finding]:
    """A host with too little memory for its processes."""
    free = link.facts["memory"]
    if free is None or free >= needed:
        return []
    return [Finding("error", "memory", link.host, f"its processes need about {bytes_text(needed)} of memory, and "
                    f"{bytes_text(free)} are free", "place fewer processes there")]


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
                               "another version of Velodrome", _way_out(engine))
            answer, output = link.run([chosen.path, *words], limit=PROBE_SECONDS)
        except HostError as error:
            return Finding("error", "reachable", link.host, str(error), "see whether the host is up")
        if answer["code"] != 0:
            reason = headline(answer["errors"].strip().rpartition("\n")[2] or f"it ended with code {answer['code']}")
            return Finding("error", "versions", link.host, f"interpreter {chosen.path!r} cannot train: {reason}",
                           _way_out(engine))
        fields: dict[str, Any] = json.loads(output.strip().rpartition("\n")[2])
        return fields

    with ThreadPoolExecutor(max(1, len(links))) as pool:
        answers = dict(zip((link.host for link in links), pool.map(ask, links), strict=True))
    found = [answer for answer in answers.values() if isinstance(answer, Finding)]
    probes = {host: answer for host, answer in answers.items() if not isinstance(answer, Finding)}
    for host, probe in probes.items():
        lacking = [name for name in modules if name not in probe["modules"]]
        found += [Finding("error", "versions", host, f"{probe['interpreter']} has no package {name!r}, which "
                          f"{job.engine}/{job.strategy} needs", _way_out(engine, "install it there"))
                  for name in lacking]
    return found + _differences(probes)


def _way_out(
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
    found = []
    for name in names:
        values = [table.get(name) for table in tables.values()]
        usual = metadata.version("velodrome") if name == "velodrome" else max(values, key=values.count)
        where = "this machine" if name == "velodrome" else "the others"
        for host, table in tables.items():
            if table.get(name) != usual:
                has = f"{name} {table[name]}" if table.get(name) else f"no {name}"
                found.append(Finding("error", "versions", host, f"it has {has}, and {where} {usual}",
                                     f"install {name} {usual} there"))
    return found


def _versions(probe: Mapping[str, Any]) -> dict[str, str]:
    table = dict(probe["versions"])
    ours = [table.pop(name) for name in _OURS if name in table]
    minor = ".".join(str(probe["python"]).split(".")[:2])
    return {"Python": minor, **({"velodrome": ours[0]} if ours else {}), **table}
