"""Results side by side: pure functions on plain data, no input or output."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

#: Configurations whose accuracy is this close to the best count as equally accurate in a verdict.
ACCURACY_MARGIN = 0.01


@dataclass(frozen=True)
class Row:
    """One configuration over its repetitions: medians, and its place against its own one-worker run."""

    engine: str
    strategy: str
    workers: int
    servers: int
    batch_size: int
    runs: int
    accuracy: float
    train_seconds: float
    startup_seconds: float
    examples_per_second: float
    cpu_percent: float
    memory_bytes: float
    #: Throughput over the same engine's `single` in the same race.
    speedup: float | None = None
    #: Throughput over the strategy's own run with one worker.
    scaling: float | None = None

    @property
    def label(self) -> str:
        return f"{self.engine}/{self.strategy}"


def _total(result: dict[str, Any], measure: str) -> float:
    return sum(node[measure]["mean"] or 0.0 for node in result["nodes"])


def _row(results: Sequence[dict[str, Any]]) -> Row:
    first = results[0]
    return Row(
        engine=first["engine"], strategy=first["strategy"], workers=first["workers"], servers=first["servers"],
        batch_size=first["batch_size"], runs=len(results),
        accuracy=median(r["test"]["accuracy"] for r in results),
        train_seconds=median(r["seconds"]["train"] for r in results),
        startup_seconds=median(r["seconds"]["startup"] for r in results),
        examples_per_second=median(r["throughput"]["examples_per_second"] for r in results),
        cpu_percent=median(_total(r, "cpu_percent") for r in results),
        memory_bytes=median(_total(r, "memory_bytes") for r in results),
    )


def compare(results: Iterable[dict[str, Any]]) -> list[Row]:
    """A row for each configuration of finished runs, in the order of first appearance."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for result in results:
        if result["status"] == "finished" and result["test"] and result["throughput"]["examples_per_second"]:
            key = tuple(result[name] for name in ("engine", "strategy", "workers", "servers", "batch_size"))
            groups.setdefault(key, []).append(result)
    rows = [_row(group) for group in groups.values()]
    return [_placed(row, rows) for row in rows]


def _placed(row: Row, rows: Sequence[Row]) -> Row:
    def rate(strategy: str) -> float | None:
        for other in rows:
            same = (other.engine, other.batch_size, other.workers) == (row.engine, row.batch_size, 1)
            if same and other.strategy == strategy:
                return other.examples_per_second
        return None

    single, alone = rate("single"), rate(row.strategy)
    return Row(**{
        **vars(row),
        "speedup": row.examples_per_second / single if single else None,
        "scaling": row.examples_per_second / alone if alone else None,
    })


def verdict(rows: Sequence[Row]) -> str:
    """One line: what to use, and what it costs or gains."""
    if not rows:
        return "Verdict: no run finished, so there is nothing to compare."
    best_accuracy = max(row.accuracy for row in rows)
    good = [row for row in rows if row.accuracy >= best_accuracy - ACCURACY_MARGIN]
    best = max(good, key=lambda row: row.examples_per_second)
    plural = "worker" if best.workers == 1 else "workers"
    text = (
        f"Verdict: {best.label} with {best.workers} {plural} is the fastest of those within "
        f"{ACCURACY_MARGIN:.0%} of the best accuracy: {best.examples_per_second:,.0f} examples/s at {best.accuracy:.4f}"
    )
    if best.workers > 1 and best.scaling:
        text += f", {best.scaling:.2f}× its own one-worker run"
    if best.workers == 1 and any(row.workers > 1 for row in rows):
        text += "; do not distribute this job: more workers made it no faster"
    if best.runs == 1:
        text += " (one run each: differences may be noise; --repeat gives intervals)"
    return text + "."
