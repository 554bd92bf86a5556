"""Velodrome against its peers: the same networks, data and optimizer, interleaved, repeated, one core a worker.

    .venv/bin/python benchmarks/peers.py --repeat 5 --json peers.json

Every repetition runs all entries of all cells once, in an order of its own, so that whatever slows the machine for a
while does not fall on one of them alone.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import tempfile
from collections import defaultdict
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from claims import Rates, Verdict, best_peer, compare, judge, median
from entries import CELLS, ENTRIES, Cell, Entry, Setting, before, make_peers_environment
from rich.console import Console
from rich.table import Table
from running import RunError, end_in_order

from velodrome.data import catalogue
from velodrome.errors import VelodromeError

_WARMUP_STEPS = 20


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5, help="repetitions; intervals need two or more [5]")
    parser.add_argument("--steps", type=int, default=400, help="training steps of a run, the first 20 untimed [400]")
    parser.add_argument("--only", default="", help="names of entries, or parts of them, with commas between")
    parser.add_argument("--cells", default="", help=f"some of {','.join(map(str, CELLS))}")
    parser.add_argument("--json", type=Path, help="file for all figures; rewritten after every repetition")
    parser.add_argument("--limit", type=float, default=300, help="seconds after which a run is ended [300]")
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="also run another checkout of Velodrome")
    parser.add_argument("--seed", type=int, default=1, help="of the order of the runs [1]")
    options = parser.parse_args()
    if options.steps < 2 * _WARMUP_STEPS:
        parser.error(f"--steps {options.steps}: the first {_WARMUP_STEPS} are warm-up, so give at least 40")
    if options.repeat < 1:
        parser.error(f"--repeat {options.repeat}: give at least 1")
    words = [word.strip() for word in options.only.split(",") if word.strip()]
    entries = (*ENTRIES, *(before(options.before.resolve()) if options.before else ()))
    options.entries = [entry for entry in entries if not words or any(word in entry.name for word in words)]
    if not options.entries:
        parser.error(f"--only {options.only!r} fits none of: {', '.join(entry.name for entry in entries)}")
    wanted = [word.strip() for word in options.cells.split(",") if word.strip()]
    options.cells = [cell for cell in CELLS if not wanted or str(cell) in wanted]
    if len(options.cells) < len(wanted):
        parser.error(f"--cells {','.join(wanted)!r}: choose among {','.join(map(str, CELLS))}")
    return options


def measure(options: argparse.Namespace, setting: Setting, console: Console) -> dict[tuple[Cell, str], list[Any]]:
    rates: dict[tuple[Cell, str], list[float | None]] = defaultdict(list)
    runs: list[dict[str, Any]] = []
    shuffle = random.Random(options.seed).shuffle
    plan = [(cell, entry) for cell in options.cells for entry in options.entries if entry.takes(cell)]
    for repetition in range(1, options.repeat + 1):
        shuffle(plan)
        for number, (cell, entry) in enumerate(plan, 1):
            rate, failure = measure_once(entry, cell, setting)
            rates[cell, entry.name].append(rate)
            runs.append({"repetition": repetition, "cell": str(cell), "entry": entry.name,
                         "examples_per_second": rate, "failure": failure})  # fmt: skip
            said = f"{rate:>10,.0f} examples/s" if rate else f"[red]failed: {failure}[/red]"
            console.print(f"{repetition}/{options.repeat} {number:>3}/{len(plan)}  {cell}  {entry.name}: {said}")
        if options.json:
            write(options.json, {"settings": describe(options), "runs": runs,
                                 "claims": [asdict(verdict) for verdict in judge(rates)]})  # fmt: skip
    return rates


def measure_once(entry: Entry, cell: Cell, setting: Setting) -> tuple[float | None, str | None]:
    try:
        return entry.measure(cell, setting), None
    except RunError as error:
        return None, str(error)


def show_versions(rates: Rates, cells: list[Cell], console: Console) -> None:
    """This version over the other checkout, entry by entry."""
    table = Table("cell", "entry", "before", "now", "now over before", title="Two versions (ratios, 95 % intervals)")
    for cell in cells:
        for entry in ENTRIES:
            old = entry.name.replace("velodrome", "before", 1)
            if not entry.is_peer and (estimate := compare(rates, (cell, entry.name), (cell, old))):
                medians = (f"{median(rates, cell, name) or 0:,.0f}" for name in (old, entry.name))
                table.add_row(str(cell), entry.name, *medians, str(estimate))
    console.print(table)


def show(rates: Rates, verdicts: list[Verdict], cells: list[Cell], console: Console) -> None:
    for cell in cells:
        best = best_peer(rates, cell)
        table = Table("entry", "examples/s", "against the best peer", title=f"{cell.model}, {cell.workers} worker(s)")
        for column in table.columns[1:]:
            column.justify = "right"
        for entry in ENTRIES:
            if (cell, entry.name) not in rates:
                continue
            middle = median(rates, cell, entry.name)
            against = compare(rates, (cell, entry.name), (cell, best)) if best else None
            shown = "the best peer" if entry.name == best else str(against or "")
            table.add_row(entry.name, "failed" if middle is None else f"{middle:,.0f}", shown)
        console.print(table)
    table = Table("claim", "to reach", "measured", "against", "verdict", title="Claims (ratios with 95 % intervals)")
    for verdict in verdicts:
        word = {True: "[green]holds[/green]", False: "[red]does not hold[/red]", None: "not measured"}[verdict.holds]
        table.add_row(verdict.claim, f"{verdict.bar:.2f}", str(verdict.estimate or ""), verdict.against, word)
    console.print(table)


def describe(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "steps": options.steps, "repeat": options.repeat, "seed": options.seed, "warmup_steps": _WARMUP_STEPS,
        **describe_machine(),
    }  # fmt: skip


def describe_machine() -> dict[str, Any]:
    return {
        "cores": sorted(os.sched_getaffinity(0)), "machine": platform.platform(), "python": platform.python_version(),
        "velodrome": version("velodrome"),
    }


def write(path: Path, content: dict[str, Any]) -> None:
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(json.dumps(content, indent=2) + "\n")
    beside.replace(path)


def main() -> int:
    options, console = read_options(), Console()
    end_in_order()
    most = max(cell.workers for cell in options.cells)
    if len(os.sched_getaffinity(0)) < most:
        console.print(f"{most} workers need a core each, and here are {len(os.sched_getaffinity(0))}: choose --cells")
        return 2
    if (load := os.getloadavg()[0]) > 0.5:
        console.print(f"[yellow]The load is {load:.1f}: something else runs here, and figures suffer.[/yellow]")
    try:
        catalogue.prepare("fashion-mnist")
        if any(entry.is_peer for entry in options.entries):
            make_peers_environment()
        with tempfile.TemporaryDirectory(prefix="velodrome-peers-") as scratch:
            train = catalogue.load("fashion-mnist", seed=1, validation=0.1).train
            data = Path(scratch) / "fashion-mnist.npz"
            np.savez(data, images=train.images, labels=train.labels)
            rates = measure(options, Setting(options.steps, data, Path(scratch), options.limit), console)
    except (VelodromeError, RunError) as error:
        console.print(f"[red]{error}[/red]")
        return 1
    show(rates, judge(rates), options.cells, console)
    if options.before:
        show_versions(rates, options.cells, console)
    return 0


if __name__ == "__main__":
    sys.exit(main())
