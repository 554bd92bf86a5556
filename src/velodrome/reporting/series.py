"""The processes of one run over time, from its events: spans of phases and samples of resources."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from velodrome.events.fields import RESOURCES, Resource
from velodrome.events.models import EventBase, FaultEvent, HelloEvent, PhaseEvent, ResourcesEvent
from velodrome.job.result import Result

Process = tuple[str, int]


@dataclass(frozen=True)
class Span:
    """A phase of a process, in seconds since the run began."""

    phase: str
    start: float
    end: float


@dataclass(frozen=True)
class FaultSpan:
    """Something broken on purpose, in seconds since the run began; without an end if it lasted until the run's."""

    fault: str
    start: float
    end: float | None = None


NETWORK = Resource("network_rate", "network", "MiB/s", ",.2f", 2.0**20)
LOOPBACK = Resource("loopback_rate", "loopback", "MiB/s", ",.2f", 2.0**20)
#: What a host received, within itself included.
INBOUND = Resource("inbound_rate", "received", "MiB/s", ",.2f", 2.0**20)
#: What is drawn and tabulated over time: the resources of processes, then the rates of their hosts.
CURVES = (*RESOURCES, NETWORK, LOOPBACK)


@dataclass
class Samples:
    """The heartbeats of a process; network rates are those of its host."""

    host: str = ""
    seconds: list[float] = field(default_factory=list)
    values: dict[str, list[float]] = field(default_factory=lambda: {curve.name: [] for curve in (*CURVES, INBOUND)})


@dataclass(frozen=True)
class RunSeries:
    """One run over time, by process in the order of its nodes."""

    spans: Mapping[Process, list[Span]]
    samples: Mapping[Process, Samples]
    faults: Sequence[FaultSpan] = ()


def name_of(process: Process) -> str:
    return f"{process[0]} {process[1]}"


def hosts_of(result: Result) -> dict[Process, str]:
    """The processes of a run and their hosts."""
    return {(node.role, node.rank): node.host for node in result.nodes}


def run_series(began: float, hosts: Mapping[Process, str], events: Iterable[EventBase]) -> RunSeries:
    """Return the spans and samples of a run by the controller's clock, for each process of `hosts`."""
    spans: dict[Process, list[Span]] = {process: [] for process in hosts}
    samples = {process: Samples(host) for process, host in hosts.items()}
    opened: dict[tuple[Process, str], float] = {}
    #: How far the controller's clock is ahead of the one of a process's host.
    offsets: dict[Process, float] = {}
    latest = 0.0
    faults: dict[str, FaultSpan] = {}
    for event in events:
        if isinstance(event, FaultEvent):
            _add_fault(faults, event, event.controller_time - began)
        if event.role is None or event.rank is None or (process := (event.role, event.rank)) not in spans:
            continue
        if isinstance(event, HelloEvent) or process not in offsets:
            offsets[process] = event.controller_time - event.time
        seconds = event.time + offsets[process] - began
        if seconds < 0:
            continue
        latest = max(latest, seconds)
        if isinstance(event, ResourcesEvent):
            _add_sample(samples[process], event, seconds)
        elif isinstance(event, PhaseEvent):
            if event.state == "begin":
                opened[process, event.phase] = seconds
            elif (start := opened.pop((process, event.phase), None)) is not None:
                spans[process].append(Span(event.phase, start, seconds))
    for (process, phase), start in opened.items():
        spans[process].append(Span(phase, start, latest))
    return RunSeries(
        {process: sorted(found, key=lambda span: span.start) for process, found in spans.items()}, samples,
        tuple(faults.values()),
    )


def _add_fault(faults: dict[str, FaultSpan], event: FaultEvent, seconds: float) -> None:
    if event.state == "end" and event.fault in faults:
        faults[event.fault] = replace(faults[event.fault], end=seconds)
    elif event.state == "begin" and seconds >= 0:
        faults[event.fault] = FaultSpan(event.fault, seconds)


def _add_sample(samples: Samples, event: ResourcesEvent, seconds: float) -> None:
    # The last heartbeat of a process may follow the one before at once: such a short time gives no rate.
    gap = max(0.2, seconds - samples.seconds[-1]) if samples.seconds else 1.0
    samples.seconds.append(seconds)
    network = event.network
    seen = event.values() | {
        NETWORK.name: (network.inbound + network.out) / gap, LOOPBACK.name: network.loopback / gap,
        INBOUND.name: (network.inbound + network.loopback) / gap,
    }
    for name, values in samples.values.items():
        values.append(seen.get(name, math.nan))


def merged(spans: list[Span], gap: float) -> list[Span]:
    """Join neighbouring spans of one phase that are at most `gap` seconds apart."""
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
    """Mean, minimum and maximum of a quantity over the seconds of a run."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Extent | None:
        found = [value for value in values if not math.isnan(value)]
        return cls(sum(found) / len(found), min(found), max(found)) if found else None


def totals(series: RunSeries) -> dict[str, Extent]:
    """CPU, memory and network of all processes together, second by second while all of them were alive.

    Network counters are those of the host: of several processes on one host, the first counts.
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
        for name, values in samples.values.items():
            if name.endswith("rate") and not first_of_host:
                continue
            for second, value in zip(samples.seconds, values, strict=True):
                seen.setdefault(name, {}).setdefault(round(second), {})[name_of(process)] = value
    found = {}
    for name, seconds in seen.items():
        wanted = len(hosts) if name.endswith("rate") else alive
        whole = [sum(values.values()) for values in seconds.values() if len(values) == wanted]
        if (extent := Extent.of(whole)) is not None:
            found[name] = extent
    return found
