"""The processes of one run over time: spans of phases and samples of resources, in seconds since the run began."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from velodrome.events.fields import RESOURCES, Resource
from velodrome.events.models import Event
from velodrome.job.result import Result
from velodrome.run.processes import ProcessState
from velodrome.run.samples import Sample, Span
from velodrome.run.state import RunState

Process = tuple[str, int]


@dataclass(frozen=True)
class FaultSpan:
    """An injected fault, in seconds since the run began; without an end if it lasted until the run's."""

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

    def add(self, rows: Sequence[Sample], began: float) -> None:
        self.seconds = [row.moment - began for row in rows]
        self.values = {resource.name: [row.used.get(resource.name, math.nan) for row in rows] for resource in RESOURCES}
        self.values |= {
            NETWORK.name: [row.network_rate for row in rows], LOOPBACK.name: [row.loopback_rate for row in rows],
            INBOUND.name: [row.inbound_rate for row in rows],
        }


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


def run_series(began: float, hosts: Mapping[Process, str], events: Iterable[Event]) -> RunSeries:
    """Return the spans and samples of a run by the controller's clock, for each process of `hosts`."""
    state = RunState()
    for event in events:
        state.add(event)
    return series_of(began, hosts, state)


def series_of(began: float, hosts: Mapping[Process, str], state: RunState) -> RunSeries:
    """The same of events that were read already."""
    known = {key: process for key in hosts if (process := state.processes.get(key)) is not None}
    latest = max((process.latest for process in known.values()), default=began)
    spans: dict[Process, list[Span]] = {key: [] for key in hosts}
    samples = {key: Samples(host) for key, host in hosts.items()}
    for key, process in known.items():
        spans[key] = _spans(process, began, latest)
        samples[key].add([row for row in process.samples.rows if row.moment >= began], began)
    faults = [
        FaultSpan(fault.event.fault, fault.start - began, None if fault.end is None else fault.end - began)
        for fault in state.faults.values() if fault.start >= began
    ]
    return RunSeries(spans, samples, faults)


def _spans(process: ProcessState, began: float, latest: float) -> list[Span]:
    """The phases of a process; one that never ended lasts until the last event."""
    spans = [*process.spans.rows, *(Span(phase, start, latest) for phase, start in process.open_phases.items())]
    return sorted(
        (Span(span.phase, span.start - began, span.end - began) for span in spans if span.start >= began),
        key=lambda span: span.start,
    )


def merged(spans: list[Span], gap: float) -> list[Span]:
    """Join neighbouring spans of one phase that are at most `gap` seconds apart."""
    joined: list[Span] = []
    last: dict[str, int] = {}
    for span in spans:
        place = last.get(span.phase)
        if place is not None and span.start - joined[place].end <= gap:
            joined[place] = Span(span.phase, joined[place].start, max(joined[place].end, span.end))
        else:
            last[span.phase] = len(joined)
            joined.append(span)
    return joined


@dataclass(frozen=True)
class Extent:
    """Mean, minimum and maximum of a quantity over the seconds of a run."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Extent | None:
        known = [value for value in values if not math.isnan(value)]
        return cls(sum(known) / len(known), min(known), max(known)) if known else None


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
    extents = {}
    for name, seconds in seen.items():
        wanted = len(hosts) if name.endswith("rate") else alive
        whole = [sum(values.values()) for values in seconds.values() if len(values) == wanted]
        if (extent := Extent.of(whole)) is not None:
            extents[name] = extent
    return extents
