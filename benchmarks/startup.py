"""How long it takes from the command to the first training step, Velodrome against a bare script of the engine.

    .venv/bin/python benchmarks/startup.py --repeat 10 --json startup.json

Both train dense-300-100 on Fashion-MNIST in one process. `velodrome --help` is timed beside.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
from entries import HERE, VELODROME
from ratios import difference
from rich.console import Console
from rich.table import Table
from running import RunError, end_in_order, run, run_json

from velodrome.data import catalogue
from velodrome.errors import VelodromeError

MOST_SECONDS_MORE = 1.5
MOST_HELP_SECONDS = 0.4
LIMIT = 120.0


def velodrome_start(engine: str, scratch: Path) -> float:
    began = time.time()
    result = run_json(
        [
            str(VELODROME), "train", "--json", "--runs", str(scratch / "runs"), "--dataset", "fashion-mnist",
            "--model", "dense-300-100", "--engine", engine, "--strategy", "single", "--threads", "1",
            "--steps", "1", "--no-checkpoints",
        ],
        seconds=LIMIT,
    )  # fmt: skip
    for line in (Path(result["path"]) / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["kind"] == "progress":
            return float(event["time"]) - began
    raise RunError("the run tells of no training step")


def bare_start(engine: str, data: Path) -> float:
    began = time.time()
    answer = run_json([sys.executable, str(HERE / "bare" / f"{engine}_single.py"), str(data)], seconds=LIMIT)
    return float(answer["first_step_at"]) - began


def help_time() -> float:
    began = time.perf_counter()
    run([str(VELODROME), "--help"], seconds=LIMIT)
    return time.perf_counter() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=10, help="repetitions [10]")
    parser.add_argument("--engine", choices=("tensorflow", "torch"), action="append", help="both by default")
    parser.add_argument("--json", type=Path, help="file for all figures")
    options, console = parser.parse_args(), Console()
    end_in_order()
    engines = options.engine or ["tensorflow", "torch"]
    try:
        with tempfile.TemporaryDirectory(prefix="velodrome-startup-") as folder:
            catalogue.prepare("fashion-mnist")
            train = catalogue.load("fashion-mnist", seed=1, validation=0.1).train
            data = Path(folder) / "fashion-mnist.npz"
            np.savez(data, images=train.images, labels=train.labels)
            jobs: dict[str, Callable[[], float]] = {"velodrome --help": help_time}
            for engine in engines:
                jobs[f"velodrome {engine}"] = lambda engine=engine: velodrome_start(engine, Path(folder))  # type: ignore[misc]
                jobs[f"bare {engine}"] = lambda engine=engine: bare_start(engine, data)  # type: ignore[misc]
            seconds = measure(jobs, options.repeat)
    except (RunError, VelodromeError) as error:
        console.print(f"[red]{error}[/red]")
        return 1
    table = Table("from the command to the first step", "median s", "more than the bare script", "allowed", "verdict")
    verdicts = {}
    for engine in engines:
        gap = difference(seconds[f"velodrome {engine}"], seconds[f"bare {engine}"])
        verdicts[engine] = {"difference": asdict(gap), "holds": gap.value <= MOST_SECONDS_MORE}
        table.add_row(f"bare {engine}", f"{statistics.median(seconds[f'bare {engine}']):.2f}")
        table.add_row(f"velodrome {engine}", f"{statistics.median(seconds[f'velodrome {engine}']):.2f}", str(gap),
                      f"{MOST_SECONDS_MORE:.2f}", word(gap.value <= MOST_SECONDS_MORE))  # fmt: skip
    helped = statistics.median(seconds["velodrome --help"])
    verdicts["--help"] = {"seconds": helped, "holds": helped < MOST_HELP_SECONDS}
    table.add_row("velodrome --help", f"{helped:.2f}", "", f"{MOST_HELP_SECONDS:.2f}", word(helped < MOST_HELP_SECONDS))
    console.print(table)
    if options.json:
        options.json.write_text(json.dumps({"seconds": seconds, "verdicts": verdicts}, indent=2) + "\n")
    return 0


def measure(jobs: dict[str, Callable[[], float]], repeat: int) -> dict[str, list[float]]:
    """Every job once a repetition, in an order of its own; one round before that warms the file cache."""
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    order = list(jobs)
    shuffle = random.Random(1).shuffle
    for repetition in range(repeat + 1):
        shuffle(order)
        for name in order:
            took = jobs[name]()
            if repetition:
                seconds[name].append(took)
    return seconds


def word(holds: bool) -> str:
    return "[green]holds[/green]" if holds else "[red]does not hold[/red]"


if __name__ == "__main__":
    sys.exit(main())
