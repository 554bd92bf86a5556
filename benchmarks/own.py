"""A user's own model against the built-in one, and the larger networks against bare loops and peers.

    .venv/bin/python benchmarks/own.py --repeat 5 --json own.json
    .venv/bin/python benchmarks/own.py --cells dense-300-100:1,lenet5:1 --only torch

Every repetition runs all entries once, in an order of its own, so that whatever slows the machine for a while does not
fall on one of them alone. A ratio is taken within a repetition.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from claims import Rates, Verdict, compare, median
from entries import Cell, make_peers_environment
from own_entries import CELLS, ENGINES, ENTRIES, LARGE, OWN, PEER_STRATEGIES, STRATEGIES, Material, OwnEntry, write_text
from peers import describe_machine, write
from rich.console import Console
from rich.table import Table
from running import RunError, end_in_order

from velodrome.data import catalogue
from velodrome.errors import VelodromeError

#: What a model by `module:function` reaches of the built-in one, and a larger network of a bare loop.
OWN_BAR, BARE_BAR = 0.97, 0.95


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5, help="repetitions; intervals need two or more [5]")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the steps of every run [1]")
    parser.add_argument("--only", default="", help="names of entries, or parts of them, with commas between")
    parser.add_argument("--cells", default="", help=f"some of {','.join(map(str, CELLS))}")
    parser.add_argument("--json", type=Path, help="file for all figures; rewritten after every repetition")
    parser.add_argument("--limit", type=float, default=600, help="seconds after which a run is ended [600]")
    parser.add_argument("--seed", type=int, default=1, help="of the order of the runs [1]")
    options = parser.parse_args()
    if options.repeat < 1 or options.scale <= 0:
        parser.error("--repeat and --scale: give numbers above 0")
    wanted = [word.strip() for word in options.cells.split(",") if word.strip()]
    if unknown := set(wanted) - set(map(str, CELLS)):
        parser.error(f"--cells {','.join(sorted(unknown))!r}: choose among {','.join(map(str, CELLS))}")
    words = [word.strip() for word in options.only.split(",") if word.strip()]
    options.entries = [
        entry for entry in ENTRIES
        if (not wanted or str(entry.cell) in wanted) and (not words or any(word in entry.name for word in words))
    ]
    if not options.entries:
        names = sorted({entry.name for entry in ENTRIES})
        parser.error(f"--only {options.only!r} and --cells {options.cells!r} leave none of: {', '.join(names)}")
    return options


def judge(rates: Rates) -> list[Verdict]:
    """Every claim, in the order in which it is made."""
    found = []

    def claim(text: str, bar: float, cell: Cell, above: str | None, below: str | None) -> None:
        measured = above is not None and below is not None
        estimate = compare(rates, (cell, str(above)), (cell, str(below))) if measured else None
        holds = None if estimate is None else estimate.value >= bar
        found.append(Verdict(text, bar, estimate, below or "nothing was measured", holds))

    for model in OWN:
        for workers, strategies in STRATEGIES.items():
            cell = Cell(model, workers)
            for engine, strategy in strategies:
                for own, text in (("own model", "own model"), ("own task", "own model and task")):
                    claim(f"{text}, {engine} {strategy}, {cell}", OWN_BAR, cell, f"{own} {engine} {strategy}",
                          f"velodrome {engine} {strategy}")  # fmt: skip
    for model in LARGE:
        one, two = Cell(model, 1), Cell(model, 2)
        for engine in ENGINES:
            claim(f"{engine} single against a bare loop, {one}", BARE_BAR, one, f"velodrome {engine} single",
                  f"bare {engine}")  # fmt: skip
        for engine in (*ENGINES, ""):
            mine = fastest(rates, two, [f"velodrome {e} {s}" for e, s in PEER_STRATEGIES if engine in ("", e)])
            peer = fastest(rates, two, [entry.name for entry in ENTRIES if entry.name.startswith(f"peer {engine}")])
            named = f"{engine} strategy" if engine else "strategy of all"
            claim(f"fastest {named} ({mine or 'none'}) against the fastest peer, {two}", 1.0, two, mine, peer)
    return found


def fastest(rates: Rates, cell: Cell, names: list[str]) -> str | None:
    medians = {name: middle for name in names if (middle := median(rates, cell, name)) is not None}
    return max(medians, key=lambda name: medians[name]) if medians else None


def measure_all(options: argparse.Namespace, material: Material, console: Console) -> Rates:
    rates: dict[tuple[Cell, str], list[float | None]] = defaultdict(list)
    runs: list[dict[str, Any]] = []
    shuffle, plan = random.Random(options.seed).shuffle, list(options.entries)
    for repetition in range(1, options.repeat + 1):
        shuffle(plan)
        for number, entry in enumerate(plan, 1):
            rate, failure = measure_once(entry, material)
            rates[entry.cell, entry.name].append(rate)
            runs.append({"repetition": repetition, "cell": str(entry.cell), "entry": entry.name,
                         "examples_per_second": rate, "failure": failure})  # fmt: skip
            said = f"{rate:>10,.0f} examples/s" if rate else f"[red]failed: {failure}[/red]"
            console.print(f"{repetition}/{options.repeat} {number:>3}/{len(plan)}  {entry.cell}  {entry.name}: {said}")
        if options.json:
            settings = {"repeat": options.repeat, "scale": options.scale, "seed": options.seed, **describe_machine()}
            write(options.json, {"settings": settings, "runs": runs, "claims": [asdict(each) for each in judge(rates)]})
    return rates


def measure_once(entry: OwnEntry, material: Material) -> tuple[float | None, str | None]:
    try:
        return entry.measure(material), None
    except RunError as error:
        return None, str(error)


def show(rates: Rates, console: Console) -> None:
    table = Table("cell", "entry", "examples/s", title="Medians")
    for cell, name in sorted(rates, key=lambda key: (CELLS.index(key[0]), key[1])):
        middle = median(rates, cell, name)
        table.add_row(str(cell), name, "failed" if middle is None else f"{middle:,.0f}")
    console.print(table)
    table = Table("claim", "to reach", "measured", "against", "verdict", title="Claims (ratios with 95 % intervals)")
    for verdict in judge(rates):
        if verdict.estimate is not None:
            word = "[green]holds[/green]" if verdict.holds else "[red]does not hold[/red]"
            table.add_row(verdict.claim, f"{verdict.bar:.2f}", str(verdict.estimate), verdict.against, word)
    console.print(table)


def main() -> int:
    options, console = read_options(), Console()
    end_in_order()
    most = max(entry.cell.workers for entry in options.entries)
    if len(os.sched_getaffinity(0)) < most:
        console.print(f"{most} workers need a core each, and here are {len(os.sched_getaffinity(0))}: choose --cells")
        return 2
    if (load := os.getloadavg()[0]) > 0.5:
        console.print(f"[yellow]The load is {load:.1f}: something else runs here, and figures suffer.[/yellow]")
    try:
        catalogue.prepare("fashion-mnist")
        if any(entry.name.startswith("peer") for entry in options.entries):
            make_peers_environment()
        with tempfile.TemporaryDirectory(prefix="velodrome-own-") as name:
            scratch = Path(name)
            material = Material(
                scratch / "fashion-mnist.npz", scratch / "words.npz", scratch / "text", scratch, options.limit,
                options.scale,
            )
            train = catalogue.load("fashion-mnist", seed=1, validation=0.1).train
            np.savez(material.images, images=train.images, labels=train.labels)
            write_text(material.text, material.words)
            rates = measure_all(options, material, console)
    except (VelodromeError, RunError) as error:
        console.print(f"[red]{error}[/red]")
        return 1
    show(rates, console)
    return 0


if __name__ == "__main__":
    sys.exit(main())
