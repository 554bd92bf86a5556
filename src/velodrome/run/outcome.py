"""How a run ended, put together from its events: the result that is stored, printed and compared."""

from __future__ import annotations

import math
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from velodrome.cluster.plan import Plan
from velodrome.machine import describe_machine
from velodrome.offers.models import is_text
from velodrome.offers.registry import engine_of, strategy_of
from velodrome.spec.resolve import batch_of_step


@dataclass(frozen=True)
class Failure:
    """Who ended the run, and why, as one sentence."""

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
class _Node:
    role: str
    rank: int
    host: str
    cpu: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    network: dict[str, int] = field(default_factory=lambda: {"in": 0, "out": 0, "loopback": 0})
    phases: dict[str, float] = field(default_factory=dict)

    def add(self, event: Mapping[str, Any]) -> None:
        if event["kind"] == "resources":
            self.cpu.append(event["cpu_percent"])
            self.memory.append(event["memory_bytes"])
            for key in self.network:
                self.network[key] += event["network"][key]
        elif event["kind"] == "phase" and event.get("state") == "end":
            name = event["phase"]
            self.phases[name] = self.phases.get(name, 0.0) + event["seconds"]

    def as_json(self) -> dict[str, Any]:
        return {
            "role": self.role,
            "rank": self.rank,
            "host": self.host,
            "cpu_percent": _spread(self.cpu),
            "memory_bytes": _spread(self.memory),
            "network_bytes": self.network,
            "phases": {name: round(seconds, 4) for name, seconds in self.phases.items()},
        }


def _spread(values: list[Any]) -> dict[str, float | None]:
    if not values:
        return {"mean": None, "min": None, "max": None}
    return {"mean": round(sum(values) / len(values), 2), "min": min(values), "max": max(values)}


def _rate(counts: Mapping[str, Any] | None, *, text: bool) -> dict[str, Any] | None:
    """Counts as what people read: accuracy and loss, or perplexity and loss of a language model."""
    if not counts or not counts["total"]:
        return None
    loss = None if counts["loss_sum"] is None else counts["loss_sum"] / counts["total"]
    if text:
        perplexity = None if loss is None else math.exp(min(loss, 700.0))
        return {"perplexity": perplexity, "accuracy": None, "loss": loss, "correct": None, "total": counts["total"]}
    return {
        "accuracy": counts["correct"] / counts["total"],
        "loss": loss,
        "correct": counts["correct"],
        "total": counts["total"],
    }


def throughput(pace: Mapping[str, Any] | None, batch: int) -> dict[str, Any]:
    """Examples and batches per second of the training phase, without the first steps."""
    if not pace:
        return {"examples_per_second": None, "batches_per_second": None, "warmup_steps": 0}
    warmup = pace["warmup"]
    seconds = pace["seconds"] - warmup["seconds"]
    examples = pace["examples"] - warmup["examples"]
    steps = warmup["steps"]
    if seconds <= 0 or examples <= 0:
        seconds, examples, steps = pace["seconds"], pace["examples"], 0
    if seconds <= 0 or examples <= 0:
        return {"examples_per_second": None, "batches_per_second": None, "warmup_steps": 0}
    rate = examples / seconds
    return {
        "examples_per_second": round(rate, 3),
        "batches_per_second": round(rate / batch, 4),
        "warmup_steps": steps,
    }


def _shares(events: Sequence[Mapping[str, Any]]) -> dict[str, float] | None:
    """How a step divides into computing, waiting for others and communicating, where the engine shows it.

    The rank that comes last to a collective waits for nobody: what it spends there is communication, and what the
    others spend beyond that is waiting.
    """
    if not events:
        return None
    communicate = min(event["collective_seconds"] for event in events)
    whole = sum(event["train_seconds"] for event in events)
    if whole <= 0:
        return None
    inside = sum(event["collective_seconds"] for event in events)
    return {
        "compute": 1 - inside / whole,
        "wait": (inside - communicate * len(events)) / whole,
        "communicate": communicate * len(events) / whole,
    }


def _history_of(event: Mapping[str, Any], *, text: bool) -> dict[str, Any]:
    train, validation = _rate(event["train"], text=text), _rate(event["validation"], text=text)
    perplexities = {
        "train_perplexity": train and train["perplexity"],
        "validation_perplexity": validation and validation["perplexity"],
    } if text else {}
    return {
        **perplexities,
        "epoch": event["epoch"],
        "train_accuracy": train and train["accuracy"],
        "validation_accuracy": validation and validation["accuracy"],
        "train_loss": train and train["loss"],
        "validation_loss": validation and validation["loss"],
        "seconds": event["seconds"],
        "evaluate_seconds": event["evaluate_seconds"],
    }


def versions(plan: Plan) -> dict[str, str]:
    """What took part, as far as this machine knows."""
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


def make_result(
    plan: Plan,
    path: str,
    status: str,
    events: Iterable[Mapping[str, Any]],
    *,
    started: float,
    ended: float,
    failure: Failure | None = None,
) -> dict[str, Any]:
    """The result of a run: everything a reader needs, counted from its events."""
    job, strategy = plan.job, strategy_of(plan.job)
    nodes = {(p.role, p.rank): _Node(p.role, p.rank, p.host) for p in plan.processes}
    epochs: dict[int, dict[str, Any]] = {}
    final: Mapping[str, Any] = {}
    staleness: list[Mapping[str, Any]] = []
    shares: list[Mapping[str, Any]] = []
    text = is_text(job.model)
    first_step: float | None = None
    for event in events:
        kind = event["kind"]
        node = nodes.get((event.get("role", ""), event.get("rank", -1)))
        if node is not None:
            node.add(event)
        if kind == "epoch":
            epochs[event["epoch"]] = _history_of(event, text=text)
        elif kind == "result":
            final = event
        elif kind == "staleness":
            staleness.append(event)
        elif kind == "shares":
            shares.append(event)
        elif kind == "phase" and event.get("phase") == "train" and first_step is None and event["time"] >= started:
            first_step = event["time"]
    history = [epochs[number] for number in sorted(epochs)]
    test_seconds = final.get("test_seconds", 0.0)
    seconds = {
        "startup": round((first_step or ended) - started, 4),
        "train": round(sum(entry["seconds"] for entry in history), 4),
        "evaluate": round(sum(entry["evaluate_seconds"] for entry in history) + test_seconds, 4),
        "total": round(ended - started, 4),
    }
    result: dict[str, Any] = {
        "run": plan.run,
        "path": path,
        "status": status,
        **{name: getattr(job, name) for name in ("dataset", "model", "engine", "strategy")},
        "consistency": strategy.consistency,
        **{name: getattr(job, name) for name in ("workers", "servers", "batch_size", "batch_scope")},
        "batch_of_step": batch_of_step(job, strategy),
        "epochs": len(history),
        **{name: getattr(job, name) for name in ("optimizer", "learning_rate", "seed", "target")},
        "reached_target": final.get("reached_target"),
        "steps": final.get("steps"),
        "parameters": final.get("parameters"),
        "test": _rate(final.get("test"), text=text),
        "history": history,
        "seconds": seconds,
        "throughput": throughput(final.get("pace"), batch_of_step(job, strategy) * (job.unroll if text else 1)),
        "nodes": [node.as_json() for node in nodes.values()],
        "versions": versions(plan),
        "machine": describe_machine(),
        "started": started,
        "ended": ended,
    }
    if final.get("implementation") is not None:
        result["implementation"] = final["implementation"]
    if (divided := _shares(shares)) is not None:
        result["shares"] = divided
    if final.get("confusion") is not None:
        result["confusion"], result["class_names"] = final["confusion"], final.get("class_names", [])
    if staleness:
        result["staleness"] = {
            "mean": sum(event["mean"] for event in staleness) / len(staleness),
            "max": max(event["max"] for event in staleness),
        }
    if failure is not None:
        result["error"] = failure.as_json()
    return result
