"""A user's own model against the built-in one, and the larger networks against bare loops and peers.

    .venv/bin/python benchmarks/own.py --json own.json
    .venv/bin/python benchmarks/own.py --cells dense-300-100:1,lenet5:1 --only torch

What is compared trains at the same time and takes turns of a second, so that whatever slows the machine for a while
slows all of it. A ratio is taken within a count of a few turns.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean

import numpy as np
from claims import Rates, Verdict, compare, median
from entries import Cell, make_peers_environment
from own_entries import (
    CELLS,
    ENGINES,
    ENTRIES,
    GROUPS,
    LARGE,
    OWN,
    PEER_STRATEGIES,
    STRATEGIES,
    Group,
    Material,
    write_text,
)
from peers import describe_machine, write
from rich.console import Console
from rich.table import Table
from running import RunError, end_in_order
from turns import rates, running

from velodrome.data import catalogue
from velodrome.errors import VelodromeError

#: What a model by `module:function` reaches of the built-in one, and a larger network of a bare loop.
OWN_BAR, BARE_BAR = 0.97, 0.95


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=1, metavar="N",
                        help="start the jobs of a group so often, and take one rate of each start [1]")
    parser.add_argument("--counts", type=int, default=5, help="how often rates are taken, two or more [5]")
    parser.add_argument("--turns", type=int, default=3, help="turns of each job per count [3]")
    parser.add_argument("--turn", type=float, default=1.0, help="seconds of a turn [1]")
    parser.add_argument("--only", default="", help="names of groups, or parts of them, with commas between")
    parser.add_argument("--cells", default="", help=f"some of {','.join(map(str, CELLS))}")
    parser.add_argument("--json", type=Path, help="file for all figures; rewritten after every group")
    parser.add_argument("--limit", type=float, default=300, help="seconds within which all jobs must train [300]")
    parser.add_argument("--seed", type=int, default=1, help="of the order of the turns [1]")
    options = parser.parse_args()
    if options.counts < 2 or options.turns < 1 or options.turn <= 0 or options.starts < 1:
        parser.error("give --counts of 2 or more, and --starts, --turns and --turn above 0")
    wanted = [word.strip() for word in options.cells.split(",") if word.strip()]
    if unknown := set(wanted) - set(map(str, CELLS)):
        parser.error(f"--cells {','.join(sorted(unknown))!r}: choose among {','.join(map(str, CELLS))}")
    words = [word.strip() for word in options.only.split(",") if word.strip()]
    options.groups = [
        group for group in GROUPS
        if (not wanted or str(group.cell) in wanted) and (not words or any(word in group.name for word in words))
    ]
    if not options.groups:
        names = sorted({group.name for group in GROUPS})
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


def measure_all(options: argparse.Namespace, material: Material, console: Console) -> tuple[Rates, bool]:
    """Rates of every count, and whether all groups could be measured."""
    found: dict[tuple[Cell, str], list[float | None]] = {}
    failures: list[dict[str, str]] = []
    for number, group in enumerate(options.groups, 1):
        named, began = f"{number}/{len(options.groups)} {group.cell} {group.name}", time.monotonic()
        try:
            for name, values in measure(group, options, material, console).items():
                found[group.cell, name] = list(values)
                shown = " ".join(f"{value:,.0f}" for value in values)
                console.print(f"{named}  {name}: {shown} examples/s", highlight=False)
        except RunError as error:
            failures.append({"cell": str(group.cell), "group": group.name, "failure": str(error)})
            console.print(f"{named}  [red]failed: {error}[/red]")
        console.print(f"{named}  {time.monotonic() - began:.0f} s, load {os.getloadavg()[0]:.1f}", highlight=False)
        if options.json:
            settings = {name: getattr(options, name) for name in ("starts", "counts", "turns", "turn", "seed")}
            runs = [{"cell": str(cell), "entry": name, "examples_per_second": values}
                    for (cell, name), values in found.items()]  # fmt: skip
            write(options.json, {"settings": {**settings, **describe_machine()}, "runs": runs, "failures": failures,
                                 "claims": [asdict(each) for each in judge(found)]})  # fmt: skip
    return found, not failures


def measure(group: Group, options: argparse.Namespace, material: Material, console: Console) -> dict[str, list[float]]:
    """Rates of every count; of every start, where there are several.

    A process is faster or slower than another of the same program by where its memory happens to lie, for as long as it
    lives: counts of one start do not show that, several starts do.
    """
    order = random.Random(options.seed)
    found: dict[str, list[float]] = {entry.name: [] for entry in group.entries}
    for start in range(options.starts):
        folder = material.scratch / f"start-{start}"
        folder.mkdir(exist_ok=True)
        trials = [entry.trial(replace(material, scratch=folder)) for entry in group.entries]
        with running(order.sample(trials, len(trials)), options.limit) as jobs:
            taken = rates(jobs, counts=options.counts, turns=options.turns, seconds=options.turn, order=order)
        for name, values in taken.items():
            found[name] += values if options.starts == 1 else [fmean(values)]
        if options.starts > 1:
            latest = ", ".join(f"{name} {values[-1]:,.0f}" for name, values in found.items())
            console.print(f"start {start + 1} of {options.starts}: {latest}", highlight=False, soft_wrap=True)
    return found


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
    most = max(group.cell.workers for group in options.groups)
    if len(os.sched_getaffinity(0)) < most:
        console.print(f"{most} workers need a core each, and here are {len(os.sched_getaffinity(0))}: choose --cells")
        return 2
    if (load := os.getloadavg()[0]) > 0.5:
        console.print(f"[yellow]The load is {load:.1f}: something else runs here, and figures suffer.[/yellow]")
    try:
        catalogue.prepare("fashion-mnist")
        if any(group.name == "peers" for group in options.groups):
            make_peers_environment()
        with tempfile.TemporaryDirectory(prefix="velodrome-own-") as name:
            scratch = Path(name)
            material = Material(scratch / "fashion-mnist.npz", scratch / "words.npz", scratch / "text", scratch)
            train = catalogue.load("fashion-mnist", seed=1, validation=0.1).train
            np.savez(material.images, images=train.images, labels=train.labels)
            write_text(material.text, material.words)
            found, complete = measure_all(options, material, console)
    except (VelodromeError, RunError) as error:
        console.print(f"[red]{error}[/red]")
        return 1
    show(found, console)
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
