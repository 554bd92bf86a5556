"""Every row of the matrix of engines and strategies: throughput against the framework's own bare loop, memory per
process, and bytes per step.

    .venv/bin/python benchmarks/engines.py --record
    .venv/bin/python benchmarks/engines.py --what throughput --only torch/ddp,mxnet --counts 3

A row and its bare loop (`bare/rows`) train at the same time and take turns of a second, so that whatever slows the
machine for a while slows both; a ratio is taken within a count of a few turns. Throughput needs an idle machine, memory
and bytes do not. `--record` writes docs/engines.json, from which `make docs` writes docs/reference/engines.md.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from entries import BATCH
from peers import describe_machine, write
from ratios import ratio
from rich.console import Console
from rich.table import Table
from running import ENVIRONMENT, RunError, end_in_order, own_network, run_json
from turns import Trial, rates, read_events, read_steps, running

from velodrome.clusters import environments
from velodrome.clusters.environments import install
from velodrome.data import catalogue
from velodrome.errors import VelodromeError

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "docs"))
from engine_matrix import BAR, Kind, Row, record, rows  # noqa: E402

MODEL = "dense-300-100"
GRADIENT_BYTES = 4 * (784 * 300 + 300 + 300 * 100 + 100 + 100 * 10 + 10)
ENDLESS = 10_000_000
#: Steps of two runs, whose difference is steps alone, without start, evaluation and saving.
FEW, MANY = 60, 200
WHAT = ("throughput", "size")


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", default=",".join(WHAT), help="throughput, size or both, with a comma between [both]")
    parser.add_argument("--only", default="", help="names of rows, or parts of them, with commas between")
    parser.add_argument("--starts", type=int, default=1, metavar="N",
                        help="start both jobs of a row so often, and take one rate of each start [1]")
    parser.add_argument("--counts", type=int, default=4, help="how often rates are taken, two or more [4]")
    parser.add_argument("--turns", type=int, default=2, help="turns of each job per count [2]")
    parser.add_argument("--turn", type=float, default=1.0, help="seconds of a turn [1]")
    parser.add_argument("--record", action="store_true", help="write the figures into docs/engines.json")
    parser.add_argument("--json", type=Path, help="file for all figures; rewritten after every row")
    parser.add_argument("--limit", type=float, default=240, help="seconds within which a job must train or end [240]")
    parser.add_argument("--seed", type=int, default=1, help="of the order of the turns [1]")
    options = parser.parse_args()
    if options.counts < 2 or options.turns < 1 or options.turn <= 0 or options.starts < 1:
        parser.error("give --counts of 2 or more, and --starts, --turns and --turn above 0")
    options.what = [word.strip() for word in options.what.split(",") if word.strip()]
    if unknown := set(options.what) - set(WHAT):
        parser.error(f"--what {','.join(sorted(unknown))!r}: choose among {','.join(WHAT)}")
    words = [word.strip() for word in options.only.split(",") if word.strip()]
    options.rows = [row for row in rows() if not words or any(word in row.name for word in words)]
    if not options.rows:
        parser.error(f"--only {options.only!r} fits none of: {', '.join(row.name for row in rows())}")
    return options


def bare_loop(row: Row) -> Path:
    """The script that trains as a row does, with the framework's own parts."""
    return HERE / "bare" / "rows" / f"{row.engine.key.replace('-', '_')}_rows.py"


def unavailable(row: Row) -> str:
    """Why a row cannot run here; empty if it can. Brings an environment of its own up to date if there is one."""
    engine = row.engine
    if engine.own_environment is not None:
        if environments.read_record(environments.folder() / engine.key) is None:
            return f"not installed: {engine.install_command}"
        install.install(engine.name, framework=engine.framework)
    return "; ".join(environments.missing(engine, row.strategy))


def train_words(row: Row, runs: Path, name: str) -> list[str]:
    # Where workers divide the model, all of them compute the whole batch.
    batch = [str(BATCH), "--batch-scope", "per-worker"] if row.strategy.divides_batch else [str(BATCH * row.workers)]
    # As the bare loops: a core for each worker, also where one process has all of them.
    threads = row.workers if row.strategy.one_process else 1
    return [
        sys.executable, "-m", "velodrome", "train", *row.words, "--runs", str(runs), "--name", name,
        "--dataset", "fashion-mnist", "--model", MODEL, "--batch-size", *batch, "--threads", str(threads),
        "--optimizer", "adam", "--learning-rate", "0.001", "--no-checkpoints", "--validation", "0",
    ]  # fmt: skip


def throughput(row: Row, options: argparse.Namespace, data: Path, scratch: Path) -> dict[str, Any]:
    """Examples per second of a row and of its bare loop, and their ratio with its interval."""
    script = bare_loop(row)
    if not script.exists():
        return {"reason": "no bare loop"}
    order, found = random.Random(options.seed), dict[str, list[float]]()
    for start in range(options.starts):
        folder = scratch / f"start-{start}"
        folder.mkdir()
        with running(_trials(row, script, data, folder), options.limit) as jobs:
            taken = rates(jobs, counts=options.counts, turns=options.turns, seconds=options.turn, order=order)
        for side, values in taken.items():
            found.setdefault(side, []).extend(values if options.starts == 1 else [statistics.fmean(values)])
    estimate = ratio(found["velodrome"], found["bare"])
    return {
        "ratio": round(estimate.value, 4), "low": round(estimate.low or 0.0, 4), "high": round(estimate.high or 0.0, 4),
        **{side: round(statistics.median(values)) for side, values in found.items()}, "counts": options.counts,
        "starts": options.starts,
    }  # fmt: skip


def _trials(row: Row, script: Path, data: Path, folder: Path) -> list[Trial]:
    """A row and its bare loop, which report in a folder."""
    name, reports = row.name.translate(str.maketrans("/ ", "--")), folder / "reports.txt"
    command = [
        str(environments.interpreter_of(row.engine.key)), str(script), "--model", MODEL, "--strategy",
        row.strategy.name, "--consistency", row.strategy.consistency, "--workers", str(row.workers),
        "--steps", str(ENDLESS), "--batch", str(BATCH), "--data", str(data),
    ]  # fmt: skip
    # The engine's own interpreter has other packages than those that a path to ours would lead to.
    apart = {**ENVIRONMENT, "PYTHONPATH": "", "HOME": str(folder), "BENCHMARK_REPORTS": str(reports)}
    return [
        Trial("velodrome", [*train_words(row, folder, name), "--epochs", "1000000"], dict(ENVIRONMENT),
              folder / name / "events.jsonl", read_events(summed=not row.strategy.synchronous)),
        Trial("bare", command, apart, reports, read_steps(BATCH * row.workers)),
    ]  # fmt: skip


def size(row: Row, options: argparse.Namespace, data: Path, scratch: Path) -> dict[str, Any]:
    """The largest resident memory of a process of each role, and what a worker exchanges over loopback in a step."""
    loopback, memory = list[float](), dict[str, float]()
    for steps in (FEW, MANY):
        name = f"{row.name}-{steps}".translate(str.maketrans("/ ", "--"))
        result = run_json([*train_words(row, scratch, name), "--epochs", "1", "--steps", str(steps), "--json"],
                          seconds=options.limit)  # fmt: skip
        loopback.append(max(node["network_bytes"]["loopback"] for node in result["nodes"]))
        for node in result["nodes"]:
            memory[node["role"]] = max(memory.get(node["role"], 0.0), node["memory_bytes"]["max"] / 1e6)
    # A step of an asynchronous strategy is one worker's.
    steps_of_workers = (MANY - FEW) * (row.workers if row.strategy.synchronous else 1)
    return {"memory_mb": {role: round(each) for role, each in memory.items()},
            "bytes_per_step": max(0, round((loopback[1] - loopback[0]) / steps_of_workers)),
            "gradient_bytes": GRADIENT_BYTES}  # fmt: skip


def measure_all(options: argparse.Namespace, console: Console, scratch: Path) -> tuple[dict[str, Any], bool]:
    """The figures of every row, and whether all that can run here could be measured."""
    data, found, complete = scratch / "fashion-mnist.npz", dict[str, Any](), True
    train = catalogue.load("fashion-mnist", seed=1, validation=0).train
    np.savez(data, images=train.images, labels=train.labels)
    parts: dict[Kind, Callable[..., dict[str, Any]]] = {"throughput": throughput, "size": size}
    for number, row in enumerate(options.rows, 1):
        named, began = f"{number}/{len(options.rows)} {row.name}", time.monotonic()
        if reason := unavailable(row):
            console.print(f"{named}  left out: {reason}", highlight=False, markup=False)
            continue
        for kind, measure in parts.items():
            if kind not in options.what:
                continue
            try:
                with tempfile.TemporaryDirectory(dir=scratch) as folder:
                    figures = measure(row, options, data, Path(folder))
            except RunError as error:
                complete = False
                console.print(f"{named}  {kind} failed: {error}", style="red", highlight=False, markup=False)
                continue
            found.setdefault(row.name, {})[kind] = figures
            console.print(f"{named}  {kind}: {figures}", highlight=False, markup=False)
            if options.record:
                record(row, kind, figures)
        console.print(f"{named}  {time.monotonic() - began:.0f} s, load {os.getloadavg()[0]:.1f}", highlight=False)
        if options.json:
            settings = {name: getattr(options, name) for name in ("starts", "counts", "turns", "turn", "seed")}
            write(options.json, {"settings": {**settings, **describe_machine()}, "rows": found})
    return found, complete


def show(found: dict[str, Any], console: Console) -> None:
    table = Table("row", "÷ bare loop", "velodrome", "bare", f"≥ {BAR:g}", title=f"{MODEL}, examples/s")
    for name, figures in found.items():
        if "ratio" not in (speed := figures.get("throughput", {})):
            continue
        word = "[green]holds[/green]" if speed["ratio"] >= BAR else "[red]does not hold[/red]"
        shown = f"{speed['ratio']:.2f} [{speed['low']:.2f}, {speed['high']:.2f}]".replace("[", "\\[")
        table.add_row(name, shown, f"{speed['velodrome']:,}", f"{speed['bare']:,}", word)
    console.print(table)


def main() -> int:
    options, console = read_options(), Console()
    end_in_order()
    if len(os.sched_getaffinity(0)) < 2:
        console.print("two workers need a core each, and here is one")
        return 2
    if "throughput" in options.what and (load := os.getloadavg()[0]) > 0.5:
        console.print(f"[yellow]The load is {load:.1f}: something else runs here, and figures suffer.[/yellow]")
    try:
        catalogue.prepare("fashion-mnist")
        if not own_network():
            console.print("[yellow]Not in a network of its own: other programs' bytes count, too.[/yellow]")
        with tempfile.TemporaryDirectory(prefix="velodrome-engines-") as name:
            found, complete = measure_all(options, console, Path(name))
    except (VelodromeError, RunError) as error:
        console.print(f"[red]{error}[/red]")
        return 1
    show(found, console)
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
