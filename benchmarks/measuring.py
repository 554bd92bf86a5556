"""What measuring costs: throughput with the samplers on, against the same run with them off.

    .venv/bin/python benchmarks/measuring.py --repeat 5 --json measuring.json

One sample a second costs far less than two runs on the same machine differ by, so the measured runs sample `--times`
as often, through the same pipes into the same files, and the share of throughput they lose is divided by that number.
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

#: The largest share of throughput that measuring may cost.
MOST = 0.01
CELLS = (("torch", "single", 1), ("torch", "allreduce", 2), ("tensorflow", "single", 1), ("tensorflow", "allreduce", 2))


def throughput(cell: tuple[str, str, int], steps: int, every: float, runs: Path, limit: float) -> float:
    """Examples per second with a sample every so many seconds; 0 for none."""
    engine, strategy, workers = cell
    result = run_json(
        [
            str(VELODROME), "train", "--json", "--runs", str(runs), "--dataset", "fashion-mnist",
            "--model", "dense-300-100", "--engine", engine, "--strategy", strategy, "--workers", str(workers),
            "--batch-size", "128", "--batch-scope", "per-worker", "--epochs", "10000", "--steps", str(steps),
            "--threads", "1", "--no-checkpoints",
        ],
        seconds=limit,
        environment={"VELODROME_MEASURE": str(every)},
    )  # fmt: skip
    return float(result["throughput"]["examples_per_second"])


def cost(estimate: Estimate, times: int) -> Estimate:
    """The share of throughput that one sample a second costs, from what `times` of them leave."""
    low, high = ((None if end is None else (1 - end) / times) for end in (estimate.high, estimate.low))
    return Estimate((1 - estimate.value) / times, low, high, estimate.repetitions)


def verdict(found: Estimate) -> str:
    """The whole interval has to say it."""
    if found.high is not None and found.high <= MOST:
        return "[green]holds[/green]"
    if found.low is not None and found.low > MOST:
        return "[red]does not hold[/red]"
    return "undecided: repeat more"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5, help="pairs of runs per cell [5]")
    parser.add_argument("--steps", type=int, default=3000, help="training steps of a run [3000]")
    parser.add_argument("--times", type=int, default=50, help="samples a second of a measured run [50]")
    parser.add_argument("--limit", type=float, default=300, help="seconds after which a run is ended [300]")
    parser.add_argument("--only", default="", help="engine/strategy, or a part of it")
    parser.add_argument("--json", type=Path, help="file for all figures")
    options, console = parser.parse_args(), Console()
    end_in_order()
    cells = [cell for cell in CELLS if options.only in f"{cell[0]}/{cell[1]}"]
    if options.times < 1:
        parser.error("--times must be at least 1")
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
                        every = 1 / options.times if measured else 0
                        rate = throughput(cell, options.steps, every, Path(folder), options.limit)
                        rates[cell][measured].append(rate)
    except (RunError, VelodromeError) as error:
        console.print(f"[red]{error}[/red]")
        return 1
    table = Table("dense-300-100", f"examples/s, {options.times} samples/s", "none", "ratio", "cost of one", "< 1 %")
    found = {}
    for cell, both in rates.items():
        left = ratio(both[True], both[False])
        one = cost(left, options.times)
        name = f"{cell[0]} {cell[1]}, {cell[2]} worker(s)"
        found[name] = {"measured": both[True], "not_measured": both[False], "ratio": asdict(left), "cost": asdict(one)}
        medians = [f"{statistics.median(both[measured]):,.0f}" for measured in (True, False)]
        bounds = "" if one.low is None or one.high is None else f" [{one.low:.2%}, {one.high:.2%}]"
        table.add_row(name, *medians, f"{left}", f"{one.value:.2%}{bounds}", verdict(one))
    console.print(table)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
