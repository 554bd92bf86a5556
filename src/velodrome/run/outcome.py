"""How a run ended, computed from its events: the result that is stored, printed and compared."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from velodrome.cluster.plan import Plan
from velodrome.events.fields import SCHEMA_VERSION, HistoryRow
from velodrome.events.models import (
    EpochEvent,
    EventBase,
    HelloEvent,
    Pace,
    PhaseEvent,
    ResourcesEvent,
    ResultEvent,
    SharesEvent,
    StalenessEvent,
)
from velodrome.events.result import Host, Node, RunResult, Seconds, Shares, Throughput
from velodrome.machine import describe_machine
from velodrome.offers.registry import engine_of, strategy_of
from velodrome.spec.resolve import batch_of_step
from velodrome.tasks.base import Task
from velodrome.tasks.registry import task_of


@dataclass(frozen=True)
class Failure:
    """Which process ended the run, and why, as one sentence."""

    message: str
    role: str | None = None
    rank: int | None = None
    host: str | None = None
    cause: str = "engine"
    traceback: str | None = None
    stack: str | None = None

    def as_json(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if value is not None}


@dataclass
class _NodeSamples:
    """What the events of one process add up to."""

    role: str
    rank: int
    host: str
    cpu: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    network: Counter[str] = field(default_factory=Counter)
    phases: dict[str, float] = field(default_factory=dict)

    def add(self, event: EventBase) -> None:
        if isinstance(event, ResourcesEvent):
            self.cpu.append(event.cpu_percent)
            self.memory.append(event.memory_bytes)
            self.network.update(
                {"in": event.network.inbound, "out": event.network.out, "loopback": event.network.loopback}
            )
        elif isinstance(event, PhaseEvent) and event.state == "end":
            self.phases[event.phase] = self.phases.get(event.phase, 0.0) + (event.seconds or 0.0)

    def node(self) -> Node:
        return Node.model_validate({
            "role": self.role,
            "rank": self.rank,
            "host": self.host,
            "cpu_percent": _spread(self.cpu),
            "memory_bytes": _spread(self.memory),
            "network_bytes": {name: self.network[name] for name in ("in", "out", "loopback")},
            "phases": {name: round(seconds, 4) for name, seconds in self.phases.items()},
        })


def _spread(values: Sequence[float]) -> dict[str, float | None]:
    if not values:
        return {"mean": None, "min": None, "max": None}
    return {"mean": round(sum(values) / len(values), 2), "min": min(values), "max": max(values)}


def throughput(pace: Pace | None, batch: int) -> Throughput:
    """Examples and batches per second of the training phase, without the warm-up steps."""
    nothing = Throughput(examples_per_second=None, batches_per_second=None, warmup_steps=0)
    if not pace:
        return nothing
    seconds = pace.seconds - pace.warmup.seconds
    examples = pace.examples - pace.warmup.examples
    steps = pace.warmup.steps
    if seconds <= 0 or examples <= 0:
        seconds, examples, steps = pace.seconds, pace.examples, 0
    if seconds <= 0 or examples <= 0:
        return nothing
    rate = examples / seconds
    return Throughput(
        examples_per_second=round(rate, 3), batches_per_second=round(rate / batch, 4), warmup_steps=steps
    )


def _shares(events: Sequence[SharesEvent]) -> Shares | None:
    """How a step divides into computing, waiting for others and communicating, where the engine exposes it.

    The rank that arrives last at a collective waits for nobody: what it spends there is communication, and what the
    others spend beyond that is waiting.
    """
    whole = sum(event.train_seconds for event in events)
    if whole <= 0:
        return None
    communicate = min(event.collective_seconds for event in events)
    inside = sum(event.collective_seconds for event in events)
    return Shares(
        compute=1 - inside / whole,
        wait=(inside - communicate * len(events)) / whole,
        communicate=communicate * len(events) / whole,
    )


def _history_row(event: EpochEvent, task: Task) -> HistoryRow:
    return HistoryRow.model_validate({
        "epoch": event.epoch,
        **task.history(train=event.train.as_json(), validation=event.validation.as_json()),
        "seconds": event.seconds,
        "evaluate_seconds": event.evaluate_seconds,
    })


def _host(event: HelloEvent) -> Host:
    return Host(
        hostname=event.host, interpreter=event.interpreter, python=event.python, versions=event.versions,
        cores=event.cores, memory_bytes=event.memory_bytes, gpus=event.gpus,
    )


def versions(plan: Plan) -> dict[str, str]:
    """Versions of the packages that take part, as installed on this machine."""
    found = {"velodrome": metadata.version("velodrome"), "python": platform.python_version()}
    packages = [*engine_of(plan.job).packages, "numpy"]
    if plan.job.strategy == "allreduce":
        packages += ["mpi4py", "mpich"]
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


@dataclass
class _Summary:
    """What the events of a run add up to, read one by one."""

    started: float
    nodes: Mapping[tuple[str, int], _NodeSamples]
    task: Task
    epochs: dict[int, HistoryRow] = field(default_factory=dict)
    final: ResultEvent | None = None
    staleness: list[StalenessEvent] = field(default_factory=list)
    shares: list[SharesEvent] = field(default_factory=list)
    hosts: dict[str, Host] = field(default_factory=dict)
    #: What the processes of the first rank have installed: they may run in another environment than the controller.
    versions: dict[str, str] = field(default_factory=dict)
    #: When the first training step began, by the controller's clock.
    first_step: float | None = None

    def add(self, event: EventBase) -> None:
        if (node := self.nodes.get((event.role or "", -1 if event.rank is None else event.rank))) is not None:
            node.add(event)
        match event:
            case HelloEvent():
                self.hosts.setdefault(event.host, _host(event))
                if event.rank == 0:
                    self.versions |= {"python": event.python, **event.versions}
            case EpochEvent():
                self.epochs[event.epoch] = _history_row(event, self.task)
            case ResultEvent():
                self.final = event
            case StalenessEvent():
                self.staleness.append(event)
            case SharesEvent():
                self.shares.append(event)
            case PhaseEvent(phase="train"):
                # Events of an earlier attempt, before the run was resumed, are older than the start.
                if self.first_step is None and event.controller_time >= self.started:
                    self.first_step = event.controller_time

    @property
    def history(self) -> list[HistoryRow]:
        return [self.epochs[number] for number in sorted(self.epochs)]

    def seconds(self, ended: float) -> Seconds:
        """Divide the time of the run; a clock that was set back meanwhile makes no part negative."""
        test_seconds = self.final.test_seconds if self.final else 0.0
        return Seconds(
            startup=max(0.0, round((self.first_step or ended) - self.started, 4)),
            train=round(sum((row.seconds for row in self.history), 0.0), 4),
            evaluate=round(sum(row.evaluate_seconds for row in self.history) + test_seconds, 4),
            total=max(0.0, round(ended - self.started, 4)),
        )


def build_result(
    plan: Plan,
    path: str,
    status: str,
    events: Iterable[EventBase],
    *,
    started: float,
    ended: float,
    failure: Failure | None = None,
    launcher: str = "local",
) -> RunResult:
    """Compute the result of a run from its events."""
    job, strategy = plan.job, strategy_of(plan.job)
    task = task_of(job)
    nodes = {(p.role, p.rank): _NodeSamples(p.role, p.rank, p.host) for p in plan.processes}
    summary = _Summary(started, nodes, task)
    for event in events:
        summary.add(event)
    final, history, batch = summary.final, summary.history, batch_of_step(job, strategy)
    fields: dict[str, Any] = {
        "schema": SCHEMA_VERSION,
        "run": plan.run,
        "path": path,
        "status": status,
        "task": task.name,
        **{name: getattr(job, name) for name in ("dataset", "model", "engine", "strategy")},
        "consistency": strategy.consistency,
        "launcher": launcher,
        **{name: getattr(job, name) for name in ("workers", "servers", "batch_size", "batch_scope")},
        "batch_of_step": batch,
        "epochs": len(history),
        **{name: getattr(job, name) for name in ("optimizer", "learning_rate", "seed", "target")},
        "reached_target": final and final.reached_target,
        "steps": final and final.steps,
        "parameters": final and final.parameters,
        "test": task.summary(final.test.as_json() if final else None),
        "history": history,
        "seconds": summary.seconds(ended),
        "throughput": throughput(final.pace if final else None, task.examples_per_step(job)),
        "nodes": [node.node() for node in nodes.values()],
        "hosts": list(summary.hosts.values()),
        "versions": {**versions(plan), **summary.versions},
        "machine": describe_machine(),
        "started": started,
        "ended": ended,
    }
    if final is not None and final.implementation is not None:
        fields["implementation"] = final.implementation
    if (shares := _shares(summary.shares)) is not None:
        fields["shares"] = shares
    if final is not None and final.confusion is not None:
        fields["confusion"], fields["class_names"] = final.confusion, final.class_names
    if stale := summary.staleness:
        fields["staleness"] = {
            "mean": sum(event.mean for event in stale) / len(stale), "max": max(event.max for event in stale)
        }
    if failure is not None:
        fields["error"] = failure.as_json()
    return RunResult.model_validate(fields)


def make_result(
    plan: Plan,
    path: str,
    status: str,
    events: Iterable[EventBase],
    *,
    started: float,
    ended: float,
    failure: Failure | None = None,
    launcher: str = "local",
) -> dict[str, Any]:
    """Compute the result of a run as the plain object that is stored, printed and returned."""
    return build_result(
        plan, path, status, events, started=started, ended=ended, failure=failure, launcher=launcher
    ).as_json()
