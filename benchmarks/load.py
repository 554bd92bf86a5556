"""What a busy core costs: training with the default threads, beside another program and without it.

    .venv/bin/python benchmarks/load.py --repeat 5 --json load.json

The benchmark starts one program that keeps a core busy, measures each entry beside it, ends it, and measures on in the
same process. Entries are interleaved: Velodrome as it is; with threads that always spin while they wait for one
another, as PyTorch has it, or always sleep; and plain PyTorch and TensorFlow with their defaults. A measurement that
any other program disturbs is repeated. The images are random, and no network is needed.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from entries import HERE, VELODROME
from ratios import ratio
from rich.console import Console
from rich.table import Table
from running import RunError, background, end_in_order

from velodrome.events import parse_stored
from velodrome.events.models import ProgressEvent
from velodrome.machine import allowed_cores, busy_seconds, cores

BATCH = 128
#: What libgomp does by default, and the opposite.
SPINNING, SLEEPING = {"GOMP_SPINCOUNT": "300000"}, {"OMP_WAIT_POLICY": "passive"}
#: Threads are the defaults of each entry, so none of the variables that set them may be inherited.
UNSET = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
#: One thread that computes as long as its parent is alive.
BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(100_000))\n"
#: Cores that other programs may use during a measurement.
MOST_FOREIGN = 0.1
#: How long a load, or its end, may take to have its effect before it is measured.
SETTLE = 0.5


@dataclass(frozen=True)
class Progress:
    """Examples and seconds of training up to a moment, within one epoch."""

    time: float
    epoch: int
    examples: int
    seconds: float


@dataclass(frozen=True)
class Entry:
    name: str
    command: Callable[[Path, Path], list[str]]
    #: Reads the progress so far, from the folder of runs or from standard output.
    progress: Callable[[Path, Path], list[Progress]]
    environment: dict[str, str]


def _ours(name: str, engine: str, model: str, environment: dict[str, str], strategy: str = "single",
          workers: int = 1) -> Entry:
    def command(data: Path, folder: Path) -> list[str]:
        return [
            str(VELODROME), "train", "--json", "--runs", str(folder), "--dataset", f"path:{data}", "--model", model,
            "--engine", engine, "--strategy", strategy, "--workers", str(workers), "--batch-size", str(BATCH),
            "--batch-scope", "per-worker", "--epochs", "100000", "--validation", "0", "--no-checkpoints",
        ]  # fmt: skip

    def progress(folder: Path, output: Path) -> list[Progress]:
        files = list(folder.glob("*/events.jsonl"))
        lines = files[0].read_text().splitlines() if files else []
        events = [event for line in lines if isinstance(event := parse_stored(line), ProgressEvent) and event.rank == 0]
        return [Progress(event.time, event.epoch, event.examples, event.seconds) for event in events]

    return Entry(name, command, progress, environment)


def _plain(name: str, script: str, model: str) -> Entry:
    def command(data: Path, folder: Path) -> list[str]:
        return [sys.executable, str(HERE / "bare" / script), str(data), model, str(BATCH)]

    def progress(folder: Path, output: Path) -> list[Progress]:
        lines = [line for line in output.read_text().splitlines() if line.endswith("}")]
        return [Progress(epoch=1, **json.loads(line)) for line in lines]

    return Entry(name, command, progress, {})


def entries(model: str) -> tuple[Entry, ...]:
    return (
        _ours("velodrome torch", "torch", model, {}),
        _ours("velodrome torch, always spinning", "torch", model, SPINNING),
        _ours("velodrome torch, always sleeping", "torch", model, SLEEPING),
        _plain("plain PyTorch", "torch_steps.py", model),
        _ours("velodrome tensorflow", "tensorflow", model, {}),
        _plain("plain TensorFlow", "tensorflow_steps.py", model),
        _ours("velodrome torch, 2 workers", "torch", model, {}, "allreduce", 2),
    )


def rate(found: Sequence[Progress], start: float, end: float) -> float | None:
    """Examples per second between two moments, epoch by epoch: what happens between epochs is not training."""
    inside = [one for one in found if start <= one.time <= end]
    pairs = [(one, two) for one, two in itertools.pairwise(inside) if one.epoch == two.epoch]
    seconds = sum(two.seconds - one.seconds for one, two in pairs)
    return sum(two.examples - one.examples for one, two in pairs) / seconds if seconds > 0 else None


def other_programs() -> float:
    """Core-seconds that were used so far by all but this benchmark and what it started."""
    mine = psutil.Process()
    times = []
    for process in (mine, *mine.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            times.append(process.cpu_times())
    ours = sum(time.user + time.system for time in times)
    # Of children that ended, including those of training processes that did.
    ended = sum(time.children_user + time.children_system for time in times)
    return (busy_seconds(allowed_cores()) or 0.0) - ours - ended


@dataclass(frozen=True)
class Measured:
    """Examples per second, and cores that other programs used meanwhile."""

    rate: float
    foreign: float


def _measure(read: Callable[[], list[Progress]], seconds: float, limit: float) -> Measured:
    """Measure over so many seconds from now on, or more where a call into the engine takes longer than that."""
    time.sleep(SETTLE)
    start, before = time.time(), other_programs()
    deadline = start + limit
    time.sleep(seconds)
    while (found := rate(read(), start, time.time())) is None:
        if time.time() > deadline:
            raise RunError(f"no progress within {limit:.0f} s")
        time.sleep(0.2)
    return Measured(found, (other_programs() - before) / (time.time() - start))


def measure(entry: Entry, data: Path, seconds: float, limit: float) -> tuple[Measured, Measured]:
    """Speed beside a busy core, and after it has ended."""
    kept = {name: value for name, value in os.environ.items() if name not in UNSET}
    with tempfile.TemporaryDirectory(prefix="velodrome-load-") as folder:
        output = Path(folder) / "output"
        runs = Path(folder) / "runs"
        environment = {**kept, **ENVIRONMENT, **entry.environment}
        with output.open("w") as stream, background(entry.command(data, runs), environment, stream) as process:

            def read() -> list[Progress]:
                if process.poll() is not None:
                    raise RunError(f"it ended with code {process.returncode}")
                return entry.progress(runs, output)

            # The load is there before training begins: a call of a quarter of a second on an idle machine may take
            # minutes beside it.
            with background([sys.executable, "-c", BUSY]):
                began = time.time()
                while len(read()) < 2:
                    if time.time() - began > limit:
                        raise RunError(f"it did not train within {limit:.0f} s")
                    time.sleep(0.1)
                loaded = _measure(read, seconds, limit)
            return loaded, _measure(read, seconds, limit)


def undisturbed(entry: Entry, data: Path, seconds: float, limit: float, patience: float) -> tuple[Measured, Measured]:
    """The same, begun when the machine is idle, and repeated if other programs disturbed it; at last as it is."""
    deadline = time.time() + patience
    while True:
        while time.time() < deadline and _cores_in_use() > MOST_FOREIGN:
            pass
        found = measure(entry, data, seconds, limit)
        if max(one.foreign for one in found) <= MOST_FOREIGN or time.time() >= deadline:
            return found


def _cores_in_use() -> float:
    """Cores that other programs use now."""
    before = other_programs()
    time.sleep(1.0)
    return other_programs() - before


def make_data(path: Path, count: int = 60_000) -> None:
    chance = np.random.default_rng(1)
    images, labels = chance.integers(0, 256, (count, 28, 28), dtype=np.uint8), chance.integers(0, 10, count)
    np.savez(path, x_train=images, y_train=labels, x_test=images[:1000], y_test=labels[:1000])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5, help="repetitions of every entry [5]")
    parser.add_argument("--seconds", type=float, default=3, help="length of a measurement [3]")
    parser.add_argument("--model", choices=("dense-300-100", "lenet5"), default="dense-300-100")
    parser.add_argument("--only", default="", help="only entries whose name contains one of these words, by commas")
    parser.add_argument("--limit", type=float, default=120, help="seconds after which a run is given up [120]")
    parser.add_argument("--patience", type=float, default=60, help="seconds to wait and repeat for a measurement that "
                        "no other program disturbs, for each entry [60]")
    parser.add_argument("--json", type=Path, help="file for all figures, rewritten after every repetition")
    options, console = parser.parse_args(), Console()
    end_in_order()
    chosen = [entry for entry in entries(options.model) if any(w in entry.name for w in options.only.split(","))]
    if not chosen:
        parser.error(f"--only {options.only!r} fits none of {', '.join(e.name for e in entries(options.model))}")
    measured: dict[str, list[tuple[Measured, Measured]]] = {entry.name: [] for entry in chosen}
    shuffled = random.Random(1)
    with tempfile.TemporaryDirectory(prefix="velodrome-load-") as folder:
        data = Path(folder) / "images.npz"
        make_data(data)
        for _ in range(options.repeat):
            for entry in shuffled.sample(chosen, len(chosen)):
                try:
                    found = undisturbed(entry, data, options.seconds, options.limit, options.patience)
                except RunError as error:
                    console.print(f"[red]{entry.name}: {error}[/red]")
                    return 1
                measured[entry.name].append(found)
            if options.json:
                options.json.write_text(json.dumps(_figures(measured), indent=2) + "\n")
    _show(console, options.model, measured)
    return 0


def _rates(pairs: Sequence[tuple[Measured, Measured]]) -> tuple[list[float], list[float]]:
    """Rates on the idle machine, and beside the busy core."""
    return [idle.rate for _, idle in pairs], [busy.rate for busy, _ in pairs]


def _foreign(pairs: Sequence[tuple[Measured, Measured]]) -> list[float]:
    return [max(one.foreign for one in pair) for pair in pairs]


def _figures(measured: dict[str, list[tuple[Measured, Measured]]]) -> dict[str, Any]:
    found = {}
    for name, pairs in measured.items():
        idle, busy = _rates(pairs)
        found[name] = {"idle": idle, "busy": busy, "foreign": _foreign(pairs), "ratio": asdict(ratio(busy, idle))}
    return found


def _show(console: Console, model: str, measured: dict[str, list[tuple[Measured, Measured]]]) -> None:
    table = Table(f"{model}, examples/s", "idle", "busy", "busy / idle", "idle / first row", "busy / first row")
    first_idle, first_busy = _rates(next(iter(measured.values())))
    for name, pairs in measured.items():
        idle, busy = _rates(pairs)
        medians = [f"{statistics.median(rates):,.0f}" for rates in (idle, busy)]
        table.add_row(name, *medians, str(ratio(busy, idle)), str(ratio(idle, first_idle)),
                      str(ratio(busy, first_busy)))
    console.print(table)
    foreign = max(max(_foreign(pairs)) for pairs in measured.values())
    style = "yellow" if foreign > MOST_FOREIGN else ""
    console.print(f"Other programs used at most {foreign:.2f} of {cores()} cores during a measurement.", style=style)


if __name__ == "__main__":
    sys.exit(main())
