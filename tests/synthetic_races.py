"""Made-up races whose answers are known: results as the controller makes them, and whole race folders on disk."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from velodrome.job.job import Job, job_fields
from velodrome.job.result import ADDED, Result

BEGAN = 1_800_000_000.0
EXAMPLES = 1_200


def result(
    strategy: str = "ddp", workers: int = 1, rate: float = 1_000.0, accuracy: float = 0.95, *, engine: str = "torch",
    servers: int = 0, batch_size: int = 64, seed: int = 1, epochs: int = 4, status: str = "finished",
    target: str | None = None, hosts: int = 1, **more: Any,
) -> dict[str, Any]:
    """A run that trained `epochs` epochs of 1,200 examples at `rate`; validation accuracy climbs to `accuracy`."""
    seconds = EXAMPLES / rate
    roles = [*(("server", rank) for rank in range(servers)), *(("worker", rank) for rank in range(workers))]
    if servers:
        roles.append(("chief", 0))
    history = [
        {"epoch": epoch, "train_accuracy": accuracy * epoch / epochs, "validation_accuracy": accuracy * epoch / epochs,
         "train_loss": 2.0 / epoch, "validation_loss": 2.0 / epoch, "seconds": seconds, "evaluate_seconds": 0.1}
        for epoch in range(1, epochs + 1)
    ]
    train = epochs * seconds
    total = 2.0 + train + 0.1 * epochs + 0.2
    node = {
        "cpu_percent": {"mean": 50.0, "min": 10.0, "max": 90.0},
        "memory_bytes": {"mean": 2.0**28, "min": 2**27, "max": 2**29},
        "network_bytes": {"in": 2**20, "out": 3 * 2**20, "loopback": 2**21}, "phases": {"train": train},
    }
    return {
        "run": f"{engine}-{strategy}-{workers}w-{batch_size}b-{seed}", "path": "elsewhere", "status": status,
        "dataset": "digits", "model": "dense-128", "engine": engine, "strategy": strategy,
        "consistency": "asp" if servers else "bsp", "workers": workers, "servers": servers, "batch_size": batch_size,
        "batch_scope": "per-worker" if servers else "global", "batch_of_step": batch_size, "epochs": epochs,
        "optimizer": "adam", "learning_rate": 0.001, "seed": seed, "target": target, "reached_target": False,
        "steps": epochs * math.ceil(EXAMPLES / batch_size), "parameters": 9_610,
        "test": {"accuracy": accuracy, "loss": 0.2, "correct": round(10_000 * accuracy), "total": 10_000},
        "history": history,
        "seconds": {"startup": 2.0, "train": train, "evaluate": 0.1 * epochs + 0.2, "total": total},
        "throughput": {"examples_per_second": rate, "batches_per_second": rate / batch_size, "warmup_steps": 20},
        "nodes": [{"role": role, "rank": rank, "host": f"10.0.0.{1 + rank % hosts}", **node} for role, rank in roles],
        "versions": {"velodrome": "0.1.0", "python": "3.11.7", "torch": "2.13.0"},
        "machine": {"processor": "a chip", "cores": 16, "memory_bytes": 2**34, "system": "Linux"},
        "started": BEGAN, "ended": BEGAN + total, **more,
    }


def typed(made: Mapping[str, Any]) -> Result:
    """A made-up result as readers get it; its `job` may have any fields with any values."""
    added = {name: made[name] for name in ADDED if name in made}
    if "job" in added:
        added["job_as_written"] = added.pop("job")
        known = {name: value for name, value in added["job_as_written"].items() if name in job_fields()}
        with suppress(ValueError):
            added["job"] = Job.model_validate(known)
    stored = {name: value for name, value in made.items() if name not in ADDED}
    return Result.model_validate(stored).model_copy(update=added)


def beside(made: dict[str, Any], used: float, cores: int = 2, seconds: float = 10.0) -> dict[str, Any]:
    """The same run on a machine whose other programs used so many cores meanwhile."""
    host = {"hostname": "here", "interpreter": "/opt/python", "versions": {}, "cores": cores, "memory_bytes": 2**34,
            "cpu": {"busy": used + 1.0, "own": 1.0, "foreign": used, "seconds": seconds}}
    return {**made, "hosts": [host]}


def repeated(rates: Sequence[float], accuracies: Sequence[float] | None = None, **fields: Any) -> list[dict[str, Any]]:
    """One configuration, once for each rate."""
    found = accuracies or [fields.pop("accuracy", 0.95)] * len(rates)
    return [
        result(rate=rate, accuracy=accuracy, seed=seed, **fields)
        for seed, (rate, accuracy) in enumerate(zip(rates, found, strict=True), start=1)
    ]


def thousand_runs() -> list[dict[str, Any]]:
    """85 configurations, twelve runs each."""
    return [
        made
        for strategy, engine, servers in (("ddp", "torch", 0), ("allreduce", "torch", 0), ("single", "torch", 0),
                                          ("parameter-server", "tensorflow", 1), ("allreduce", "tensorflow", 0))
        for workers in ((1,) if strategy == "single" else (1, 2, 4, 8))
        for batch in (32, 64, 128, 256, 512)
        for made in repeated([100.0 * workers + place for place in range(12)], strategy=strategy, engine=engine,
                             workers=workers, servers=servers, batch_size=batch)
    ]


def events_of(made: dict[str, Any]) -> list[dict[str, Any]]:
    """What the processes of a result said: phases, a heartbeat a second, and the chief's epochs."""
    found = []
    train_ends = BEGAN + made["seconds"]["startup"] + made["seconds"]["train"]
    for node in made["nodes"]:
        who = {"role": node["role"], "rank": node["rank"]}
        for phase, begin, end in (("import", BEGAN + 0.5, BEGAN + 1.5), ("build", BEGAN + 1.5, BEGAN + 2.0),
                                  ("train", BEGAN + 2.0, train_ends)):
            found.append({"time": begin, **who, "kind": "phase", "phase": phase, "state": "begin"})
            found.append({"time": end, **who, "kind": "phase", "phase": phase, "state": "end", "seconds": end - begin})
        for second in range(1, 1 + max(2, int(made["seconds"]["total"]))):
            found.append({
                "time": BEGAN + second + 0.1, **who, "kind": "resources", "cpu_percent": 40.0 + 10 * (second % 3),
                "memory_bytes": 2**27 + second * 2**20, "network": {"in": 2**19, "out": 2**19, "loopback": 2**20},
                "steps": second, "waiting": False,
            })
    chief = made["nodes"][-1] if made["servers"] else made["nodes"][0]
    for entry in made["history"]:
        found.append({
            "time": BEGAN + 2 + entry["epoch"], "role": chief["role"], "rank": chief["rank"], "kind": "epoch",
            "epoch": entry["epoch"], "seconds": entry["seconds"], "evaluate_seconds": 0.1, "steps": 1,
            "train": {"correct": 1, "total": EXAMPLES, "loss_sum": 1.0},
            "validation": {"correct": 1, "total": 2, "loss_sum": 1.0},
        })
    return sorted(found, key=lambda event: event["time"])


@dataclass(frozen=True)
class Written:
    runs: Path
    name: str

    @property
    def path(self) -> Path:
        return self.runs / self.name


_JOB_FIELDS = ("dataset", "model", "engine", "strategy", "workers", "servers", "batch_size", "batch_scope",
               "optimizer", "learning_rate", "seed", "target")


def write_race(runs: Path, results: Iterable[dict[str, Any]], name: str = "made") -> Written:
    """A race folder as `velodrome race` leaves it."""
    folder = runs / name
    folder.mkdir(parents=True)
    (folder / "race.yaml").write_text(
        yaml.safe_dump({"job": {"dataset": "digits"}, "vary": {"workers": [1]}, "repeat": 1}), encoding="utf-8"
    )
    for number, made in enumerate(results):
        run = folder / f"{made['run']}-{number}"
        run.mkdir()
        job = {field: made[field] for field in _JOB_FIELDS} | {"epochs": made["epochs"], "threads": 1}
        (run / "job.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")
        (run / "result.json").write_text(json.dumps(made), encoding="utf-8")
        lines = [json.dumps(event, separators=(",", ":")) for event in events_of(made)]
        (run / "events.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return Written(runs, name)
