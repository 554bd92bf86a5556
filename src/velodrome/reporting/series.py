"""What the processes of one run did over time, made from its events: spans of phases, samples of resources."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

Process = tuple[str, int]


@dataclass(frozen=True)
class Span:
    """A phase of a process, in seconds since the run began."""

    phase: str
    start: float
    end: float


@dataclass
class Samples:
    """What the heartbeats of a process said; rates are of its host."""

    host: str = ""
    seconds: list[float] = field(default_factory=list)
    cpu_percent: list[float] = field(default_factory=list)
    memory_bytes: list[float] = field(default_factory=list)
    network_rate: list[float] = field(default_factory=list)
    loopback_rate: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class RunSeries:
    """One run over time, by process in the order of its nodes."""

    spans: Mapping[Process, list[Span]]
    samples: Mapping[Process, Samples]


def name_of(process: Process) -> str:
    return f"{process[0]} {process[1]}"


def run_series(result: Mapping[str, Any], events: Iterable[Mapping[str, Any]]) -> RunSeries:
    """Spans and samples of a run; an event that is not whole is passed over."""
    processes = [(node["role"], node["rank"]) for node in result["nodes"]]
    hosts = {(node["role"], node["rank"]): node.get("host", "") for node in result["nodes"]}
    spans: dict[Process, list[Span]] = {process: [] for process in processes}
    samples = {process: Samples(hosts[process]) for process in processes}
    opened: dict[tuple[Process, str], float] = {}
    began, latest = float(result["started"]), 0.0
    for event in events:
        role, rank, moment = (event.get(name) for name in ("role", "rank", "time"))
        if not isinstance(role, str) or not isinstance(rank, int) or not _is_number(moment):
            continue
        process = (role, rank)
        if process not in spans or moment < began:
            continue
        seconds = moment - began
        latest = max(latest, seconds)
        if event.get("kind") == "phase":
            phase = str(event.get("phase"))
            if event.get("state") == "begin":
                opened[process, phase] = seconds
            elif (start := opened.pop((process, phase), None)) is not None:
                spans[process].append(Span(phase, start, seconds))
        elif event.get("kind") == "resources":
            _sample(samples[process], event, seconds)
    for (process, phase), start in opened.items():
        spans[process].append(Span(phase, start, latest))
    return RunSeries(
        {process: sorted(found, key=lambda span: span.start) for process, found in spans.items()}, samples
    )


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and math.isfinite(value)


def _sample(samples: Samples, event: Mapping[str, Any], seconds: float) -> None:
    network, cpu, memory = (event.get(name) for name in ("network", "cpu_percent", "memory_bytes"))
    if not isinstance(network, Mapping) or not _is_number(cpu) or not _is_number(memory):
        return
    received, sent, loopback = (network.get(name, 0) for name in ("in", "out", "loopback"))
    if not _is_number(received) or not _is_number(sent) or not _is_number(loopback):
        return
    # The last heartbeat of a process may follow the one before at once: such a short time gives no rate.
    gap = max(0.2, seconds - samples.seconds[-1]) if samples.seconds else 1.0
    samples.seconds.append(seconds)
    samples.cpu_percent.append(cpu)
    samples.memory_bytes.append(memory)
    samples.network_rate.append((received + sent) / gap)
    samples.loopback_rate.append(loopback / gap)


def merged(spans: list[Span], gap: float) -> list[Span]:
    """The same with neighbours of one phase joined where less than `gap` seconds lie between them."""
    found: list[Span] = []
    last: dict[str, int] = {}
    for span in spans:
        place = last.get(span.phase)
        if place is not None and span.start - found[place].end <= gap:
            found[place] = Span(span.phase, found[place].start, max(found[place].end, span.end))
        else:
            last[span.phase] = len(found)
            found.append(span)
    return found


@dataclass(frozen=True)
class Extent:
    """Mean, least and greatest of a quantity over the seconds of a run."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Extent | None:
        found = list(values)
        return cls(sum(found) / len(found), min(found), max(found)) if found else None


def totals(series: RunSeries) -> dict[str, Extent]:
    """CPU, memory and network of all processes together, second by second while all of them lived.

    Network counters are the host's: of several processes on a host, one is taken.
    """
    seen: dict[str, dict[int, dict[str, float]]] = {}
    hosts: set[str] = set()
    alive = 0
    for process, samples in series.samples.items():
        if not samples.seconds:
            continue
        alive += 1
        first_of_host = samples.host not in hosts
        hosts.add(samples.host)
        for name in ("cpu_percent", "memory_bytes", "network_rate", "loopback_rate"):
            if name.endswith("rate") and not first_of_host:
                continue
            for second, value in zip(samples.seconds, getattr(samples, name), strict=True):
                seen.setdefault(name, {}).setdefault(round(second), {})[name_of(process)] = value
    found = {}
    for name, seconds in seen.items():
        wanted = len(hosts) if name.endswith("rate") else alive
        whole = [sum(values.values()) for values in seconds.values() if len(values) == wanted]
        if (extent := Extent.of(whole)) is not None:
            found[name] = extent
    return found
