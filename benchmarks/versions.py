"""This version of Velodrome against that of another checkout, both training at once and taking turns of a second.

    .venv/bin/python benchmarks/versions.py CHECKOUT --only "torch allreduce" --json versions.json

On a machine whose speed changes by the minute, two runs one after the other differ by more than two versions do. Here
both see the same machine (`turns.py`).
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from entries import BATCH
from ratios import Estimate, ratio
from rich.console import Console
from running import ENVIRONMENT, RunError, end_in_order
from turns import Trial, rates, read_events, running

from velodrome.data import catalogue

HERE = Path(__file__).resolve().parent.parent
ENTRIES = (
    "tensorflow single", "tensorflow multi-worker-mirrored", "tensorflow parameter-server", "tensorflow allreduce",
    "torch single", "torch ddp", "torch allreduce",
)
TURNS_PER_COUNT = 6
START_SECONDS = 120.0


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="the other version, which must run in this environment")
    parser.add_argument("--only", default="", help="names of entries, or parts of them, with commas between")
    parser.add_argument("--model", default="dense-300-100")
    parser.add_argument("--counts", type=int, default=10, help="how often rates are taken, two or more [10]")
    parser.add_argument("--turn", type=float, default=1.0, help="seconds that a version computes at a time [1]")
    parser.add_argument("--json", type=Path, help="file for all figures")
    options = parser.parse_args()
    words = [word.strip() for word in options.only.split(",") if word.strip()]
    options.entries = [name for name in ENTRIES if not words or any(word in name for word in words)]
    if not options.entries:
        parser.error(f"--only {options.only!r} fits none of: {', '.join(ENTRIES)}")
    if options.counts < 2:
        parser.error(f"--counts {options.counts}: an interval needs two or more")
    if not (options.checkout / "src" / "velodrome").is_dir():
        parser.error(f"{str(options.checkout)!r} is not a checkout of Velodrome")
    return options


def trial(entry: str, model: str, checkout: Path, folder: Path) -> Trial:
    """A job of one version that trains until it is ended."""
    engine, strategy = entry.split()
    workers = "1" if strategy == "single" else "2"
    command = [
        sys.executable, "-m", "velodrome", "train", "--runs", str(folder), "--name", "run", "--dataset",
        "fashion-mnist", "--model", model, "--engine", engine, "--strategy", strategy, "--workers", workers,
        "--batch-size", str(BATCH), "--batch-scope", "per-worker", "--epochs", "100000", "--threads", "1",
        "--no-checkpoints",
    ]  # fmt: skip
    environment = {**ENVIRONMENT, "PYTHONPATH": str(checkout / "src")}
    return Trial(folder.name, command, environment, folder / "run" / "events.jsonl", read_events())


def compare(entry: str, options: argparse.Namespace, console: Console) -> Estimate:
    """Examples per second of this version over those of the other one."""
    with tempfile.TemporaryDirectory() as scratch:
        trials = [
            trial(entry, options.model, checkout, Path(scratch) / name)
            for name, checkout in (("other", options.checkout.resolve()), ("this", HERE))
        ]
        with running(trials, START_SECONDS) as jobs:
            found = rates(
                jobs, counts=options.counts, turns=TURNS_PER_COUNT, seconds=options.turn, order=random.Random(1)
            )
    for name, values in found.items():
        shown = " ".join(f"{value:,.0f}" for value in values)
        console.print(f"{entry}, {name} version: {shown} examples/s", highlight=False)
    return ratio(found["this"], found["other"])


def main() -> int:
    options, console = read_options(), Console()
    end_in_order()
    catalogue.prepare("fashion-mnist")
    found: dict[str, Estimate] = {}
    for entry in options.entries:
        try:
            found[entry] = compare(entry, options, console)
        except RunError as error:
            console.print(f"[red]{entry}: {error}[/red]")
    for entry, estimate in found.items():
        console.print(f"{entry}, {options.model}: this version over the other {estimate}")
    if options.json:
        options.json.write_text(json.dumps({entry: asdict(each) for entry, each in found.items()}, indent=2) + "\n")
    return 0 if len(found) == len(options.entries) else 1


if __name__ == "__main__":
    sys.exit(main())
