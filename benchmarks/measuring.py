"""What measuring costs: throughput with the samplers and progress events on, against the same run with them off.

    .venv/bin/python benchmarks/measuring.py --repeat 10 --json measuring.json
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from entries import VELODROME
from ratios import Estimate, ratio
from rich.console import Console
from rich.table import Table
from running import RunError, end_in_order, run_json

from velodrome.data import catalogue
from velodrome.errors import VelodromeError

#: The least share of throughput that must remain with measuring on.
LEAST = 0.99
CELLS = (("torch", "single", 1), ("torch", "allreduce", 2), ("tensorflow", "single", 1), ("tensorflow", "allreduce", 2))


def throughput(cell: tuple[str, str, int], steps: int, measured: bool, runs: Path, limit: float) -> float:
    engine, strategy, workers = cell
    result = run_json(
        [
            str(VELODROME), "train", "--json", "--runs", str(runs), "--dataset", "fashion-mnist",
            "--model", "dense-300-100", "--engine", engine, "--strategy", strategy, "--workers", str(workers),
            "--batch-size", "128", "--batch-scope", "per-worker", "--epochs", "10000", "--steps", str(steps),
            "--threads", "1", "--no-checkpoints",
        ],
        seconds=limit,
        environment={"VELODROME_MEASURE": "1" if measured else "0"},
    )  # fmt: skip
    return float(result["throughput"]["examples_per_second"])


def verdict(estimate: Estimate) -> str:
    """A cost this small is lost in the noise of a few runs, so the whole interval has to say it."""
    if estimate.low is not None and estimate.low >= LEAST:
        return "[green]holds[/green]"
    if estimate.high is not None and estimate.high < LEAST:
        return "[red]does not hold[/red]"
    return "undecided: repeat more"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=10, help="pairs of runs per cell [10]")
    parser.add_argument("--steps", type=int, default=3000, help="training steps of a run [3000]")
    parser.add_argument("--limit", type=float, default=300, help="seconds after which a run is ended [300]")
    parser.add_argument("--only", default="", help="engine/strategy, or a part of it")
    parser.add_argument("--json", type=Path, help="file for all figures")
    options, console = parser.parse_args(), Console()
    end_in_order()
    cells = [cell for cell in CELLS if options.only in f"{cell[0]}/{cell[1]}"]
    if not cells:
        parser.error(f"--only {options.only!r} fits none of {', '.join(f'{cell[0]}/{cell[1]}' for cell in CELLS)}")
    rates: dict[tuple[str, str, int], dict[bool, list[float]]] = {cell: {True: [], False: []} for cell in cells}
    flip = random.Random(1)
    try:
        catalogue.prepare("fashion-mnist")
        with tempfile.TemporaryDirectory(prefix="velodrome-measuring-") as folder:
            for _ in range(options.repeat):
                for cell in cells:
                    for measured in flip.sample([True, False], 2):
                        rate = throughput(cell, options.steps, measured, Path(folder), options.limit)
                        rates[cell][measured].append(rate)
    except (RunError, VelodromeError) as error:
        console.print(f"[red]{error}[/red]")
        return 1
    table = Table("dense-300-100", "examples/s, measured", "not measured", "ratio", "cost under 1 %")
    found = {}
    for cell, both in rates.items():
        estimate = ratio(both[True], both[False])
        name = f"{cell[0]} {cell[1]}, {cell[2]} worker(s)"
        found[name] = {"measured": both[True], "not_measured": both[False], "ratio": asdict(estimate)}
        medians = [f"{statistics.median(both[measured]):,.0f}" for measured in (True, False)]
        bounds = "" if estimate.low is None else f" [{estimate.low:.4f}, {estimate.high:.4f}]"
        table.add_row(name, *medians, f"{estimate.value:.4f}{bounds}", verdict(estimate))
    console.print(table)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
