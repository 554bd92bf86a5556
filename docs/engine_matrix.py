"""The matrix of docs/reference/engines.md: a row for every engine and strategy of the registry, facts from their
descriptions, figures from docs/engines.json.

`benchmarks/engines.py` records throughput, memory and bytes. `VELODROME_RECORD=1 pytest
tests/e2e/test_engine_matrix.py` records how runs ended whose processes were killed or suspended. `make docs` writes the
page from both.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from fault_matrix import stable

from velodrome.catalog.base import Engine, Strategy
from velodrome.catalog.registry import all_forms, engine

FILE = Path(__file__).resolve().parent / "engines.json"
#: What a row must reach of its framework's own loop.
BAR = 0.95
NOT_RECORDED = "not recorded"
#: What `benchmarks/engines.py` and the tests record of a row.
Kind = Literal["throughput", "size", "kill", "suspend"]
#: What a way of exchanging implies, for strategies that do not list their `shards`.
_SHARDS: dict[str, tuple[str, ...]] = {
    "gather-and-scatter": ("weights", "gradients", "optimizer state"),
    "all-reduce-and-broadcast": ("optimizer state",),
}
_DONE_TO = {"kill": "killed (SIGKILL)", "suspend": "suspended (SIGSTOP)"}


@dataclass(frozen=True)
class Row:
    """A strategy of an engine, with one framework and one consistency model."""

    engine: Engine
    strategy: Strategy

    @property
    def name(self) -> str:
        chosen = f" {self.strategy.consistency}" if self.strategy.consistencies else ""
        return f"{self.engine.key}/{self.strategy.name}{chosen}"

    @property
    def words(self) -> list[str]:
        """The options of a job of this row."""
        found = ["--engine", self.engine.name, "--strategy", self.strategy.name]
        if self.engine.framework is not None:
            found += ["--framework", self.engine.framework]
        if self.strategy.consistencies:
            found += ["--consistency", str(self.strategy.consistency)]
        return [*found, "--workers", str(self.workers)]

    @property
    def workers(self) -> int:
        """Two, where the strategy can have them."""
        return min(2, self.strategy.max_workers or 2)

    @property
    def processes(self) -> list[tuple[str, int]]:
        """Role and rank of every process, with one server where there are any."""
        return self.strategy.processes(self.workers, 1)


def rows() -> list[Row]:
    return [
        Row(engine, replace(strategy, consistency=chosen.example))
        for engine in all_forms() for strategy in engine.strategies
        for chosen in strategy.consistencies or (strategy.consistency,)
    ]


def recorded() -> dict[str, dict[str, Any]]:
    """Row to kind to what was recorded of it."""
    found: dict[str, dict[str, Any]] = json.loads(FILE.read_text()) if FILE.exists() else {}
    return found


def record(row: Row, kind: Kind, figures: dict[str, Any]) -> None:
    """Note figures of a row; rows that the registry no longer has are dropped. Several tests may record at once."""
    known = {one.name for one in rows()}
    with Path(__file__).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = {name: kinds for name, kinds in recorded().items() if name in known}
        found.setdefault(row.name, {})[kind] = figures
        FILE.write_text(json.dumps(found, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


def record_end(row: Row, kind: Literal["kill", "suspend"], sentence: str, seconds: float, limit: float) -> None:
    """Note how a run ended after one of its processes was killed or suspended, if ends are being recorded."""
    if os.environ.get("VELODROME_RECORD"):
        record(row, kind, {"sentence": stable(sentence), "seconds": round(seconds, 1), "limit": limit})


# -- cells


def roles_of(row: Row) -> str:
    if row.strategy.one_process:
        return "1 process with 2 devices"
    counts: dict[str, int] = {}
    for role, _ in row.processes:
        counts[role] = counts.get(role, 0) + 1
    return ", ".join(f"{count} {role}{'s' if count > 1 else ''}" for role, count in counts.items())


def divided_in(row: Row) -> str:
    """What the processes divide: examples, and parts of the training state."""
    strategy = row.strategy
    if strategy.max_workers == 1:
        return "–"
    shards = strategy.shards or _SHARDS.get(strategy.exchange or "none", ())
    return ", ".join([*(["examples"] if strategy.divides_batch else []), *shards])


def whose(row: Row) -> str:
    """Whose parts distribute the work: what the strategy has beyond `single` of the engine or of the one it extends."""
    parts = row.strategy.implementation
    if row.strategy.max_workers == 1:
        return "–"
    extended = (row.engine, *([engine(row.engine.tasks_of)] if row.engine.tasks_of else []))
    alone = next((one.implementation for each in extended for one in each.strategies if one.max_workers == 1), None)
    own, framework = ([part for part in mine if alone is None or part not in base] for mine, base in (
        (parts.own, alone.own if alone else ()), (parts.framework, alone.framework if alone else ()),
    ))
    found = [f"framework's: {'; '.join(framework)}"] if framework else []
    return ". ".join([*found, *([f"ours: {'; '.join(own)}"] if own else [])]) or "–"


def throughput_in(figures: dict[str, Any] | None) -> str:
    if figures is None:
        return NOT_RECORDED
    if "reason" in figures:
        return str(figures["reason"])
    value, low, high = (figures[name] for name in ("ratio", "low", "high"))
    return f"{value:.2f} [{low:.2f}, {high:.2f}]"


def memory_in(figures: dict[str, Any] | None) -> str:
    if figures is None or "reason" in figures:
        return NOT_RECORDED if figures is None else str(figures["reason"])
    return ", ".join(f"{role} {megabytes:,.0f} MB" for role, megabytes in figures["memory_mb"].items())


def bytes_in(figures: dict[str, Any] | None) -> str:
    if figures is None or "reason" in figures:
        return NOT_RECORDED if figures is None else "–"
    sent, gradient = figures["bytes_per_step"], figures["gradient_bytes"]
    return f"{sent / 1e6:.2f} MB ({sent / gradient:.2f} G)"


def ends_in(kinds: dict[str, Any]) -> str:
    found = [f"{_DONE_TO[kind].split()[0]}: {kinds[kind]['seconds']:g} s" for kind in _DONE_TO if kind in kinds]
    return ", ".join(found) or NOT_RECORDED


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def matrix_section() -> str:
    """The matrix and how its runs ended, as Markdown."""
    found, headings = recorded(), ["row", "processes", "consistency", "divided", "who distributes", "ends after",
                                   "÷ bare loop", "memory", "bytes per step", "upstream"]
    lines, ends = [_line(headings), _line(["---"] * len(headings))], list[str]()
    below = list[str]()
    for row in rows():
        kinds, hardware = found.get(row.name, {}), row.strategy.hardware
        measured = [f"needs {hardware}", *["–"] * 3] if hardware else [
            ends_in(kinds), throughput_in(kinds.get("throughput")), memory_in(kinds.get("size")),
            bytes_in(kinds.get("size")),
        ]
        lines.append(_line([f"`{row.name}`", roles_of(row), str(row.strategy.consistency), divided_in(row),
                            whose(row), *measured, row.engine.upstream]))
        if kinds.get("throughput", {}).get("ratio", BAR) < BAR:
            below.append(f"`{row.name}`")
        ends += [_line([f"`{row.name}`", _DONE_TO[kind], f"{kinds[kind]['seconds']:g} s",
                        f"{kinds[kind]['limit']:g} s", kinds[kind]["sentence"]]) for kind in _DONE_TO if kind in kinds]
    return "\n".join([
        "## The matrix\n", _ABOUT, "\n".join(lines) + "\n",
        *([f"Below {BAR:g} of the bare loop: {', '.join(below)}.\n"] if below else []),
        "### How runs ended\n",
        "One worker of a run that trained was killed or suspended; each run ended with this sentence, and nothing of\n"
        "it was left.\n",
        "\n".join([_line(["row", "a worker was", "ended after", "limit", "with"]), _line(["---"] * 5), *ends]) + "\n"
        if ends else "Not recorded yet.\n",
    ])


_ABOUT = """\
Every strategy of every engine. *Processes* are those of a job with two workers. *Divided* is what each process has only
a part of; everything else, each has a copy of. *Who distributes* are the parts that a strategy has beyond the engine's
`single`, the framework's own or Velodrome's. *Ends after* are the seconds from the moment at which a worker was killed,
or suspended with `--stall-timeout 10`, to the end of the run. *÷ bare loop* is the throughput over that of a loop
written by hand with the framework's own parts (`benchmarks/bare/rows`), with 95 % interval: both train at the same
time and take turns. *Memory* is the largest resident memory of a process of each role. *Bytes per step* are those that
a worker sends; G is the size of the gradients. Ratios, memory and bytes are of `dense-300-100` on Fashion-MNIST, 128
examples per worker and step, one thread per worker, by `benchmarks/engines.py` on two cores.
"""
