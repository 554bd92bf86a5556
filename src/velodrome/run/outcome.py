"""How a run ended, computed from its events: the result that is stored, printed and compared."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from velodrome.catalog.registry import engine_of, strategy_of
from velodrome.clusters.plan import Plan
from velodrome.events.fields import SCHEMA_VERSION
from velodrome.events.models import EventBase, ResultEvent
from velodrome.events.result import DataRecord
from velodrome.job.check_optimization import batch_of_step, scale_of_rate
from velodrome.job.result import Result
from velodrome.machine import describe_machine
from velodrome.run.event_summary import EventSummary, NodeSamples, throughput
from velodrome.run.script_outcome import of_script, pace_of_all
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


def _test(task: Task, final: ResultEvent | None) -> dict[str, Any] | None:
    summary = task.summary(final.test.as_json() if final else None)
    if final is None or summary is None:
        return summary
    answers = {"answers": final.test_answers, "fingerprint": final.test_fingerprint}
    return summary | {name: value for name, value in answers.items() if value is not None}


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
) -> Result:
    """Compute the result of a run from its events; `path` is its folder."""
    job, strategy = plan.job, strategy_of(plan.job)
    task = task_of(job)
    nodes = {(p.role, p.rank): NodeSamples(p.role, p.rank, p.host) for p in plan.processes}
    summary = EventSummary(started, nodes, task)
    for event in events:
        summary.add(event)
    final, history, batch = summary.final, summary.history, batch_of_step(job, strategy)
    pace = (final.pace if final else None) if job.script is None else pace_of_all([*summary.paces.values()])
    rate = throughput(pace, task.examples_per_step(job))
    fields: dict[str, Any] = {
        "schema": SCHEMA_VERSION,
        "run": plan.run,
        "path": path,
        "status": status,
        "task": task.name,
        **{name: getattr(job, name) for name in ("dataset", "model", "engine", "strategy")},
        "consistency": str(strategy.consistency),
        "launcher": launcher,
        **{name: getattr(job, name) for name in ("workers", "servers", "batch_size", "batch_scope")},
        "batch_of_step": batch,
        "epochs": len(history),
        **{name: getattr(job, name) for name in ("optimizer", "seed", "target")},
        "reached_target": final and final.reached_target,
        "steps": final and final.steps,
        "parameters": final and final.parameters,
        "test": _test(task, final),
        "history": history,
        "seconds": summary.seconds(ended),
        "throughput": rate,
        "nodes": [node.node() for node in nodes.values()],
        "hosts": [host.host(summary.hosts.values()) for host in summary.hosts.values()],
        "versions": {**versions(plan), **summary.versions},
        "machine": describe_machine(),
        "started": started,
        "ended": ended,
    }
    if job.learning_rate is not None:
        fields["learning_rate"] = job.learning_rate
        fields["effective_rate"] = job.learning_rate * scale_of_rate(job, strategy)
    if final is not None and final.implementation is not None:
        fields["implementation"] = final.implementation
    if final is not None and final.pixels is not None:
        fields["pixels"] = final.pixels
    if summary.data is not None:
        fields["data"] = summary.data.model_dump(include=set(DataRecord.model_fields), exclude_none=True)
    if plan.facts:
        fields["cluster"] = dict(plan.facts)
    if final is not None and final.metrics:
        fields["metrics"] = final.metrics
    if (shares := summary.shares) is not None:
        fields["shares"] = shares
    if final is not None and final.confusion is not None:
        fields["confusion"], fields["class_names"] = final.confusion, final.class_names
    if (staleness := summary.staleness) is not None:
        fields["staleness"] = staleness
    if summary.faults:
        fields["faults"] = list(summary.faults.values())
    if summary.warnings:
        fields["warnings"] = list(summary.warnings)
    if failure is not None:
        fields["error"] = failure.as_json()
    if job.script is not None:
        log = Path(path) / "logs" / f"{plan.chief.file_name}.log"
        fields = of_script(job, fields, final, throughput=rate, log=log)
    return Result.model_validate({**fields, "folder": Path(path)})
