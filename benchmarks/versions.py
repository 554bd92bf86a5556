"""This version of Velodrome against that of another checkout, both training at once and taking turns of a second.

    .venv/bin/python benchmarks/versions.py CHECKOUT --only "torch allreduce" --json versions.json

On a machine whose speed changes by the minute, two runs one after the other differ by more than two versions do. Here
the processes of one job are stopped (SIGSTOP) while those of the other compute, so both see the same machine, and the
steps that they make in equal time are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from entries import BATCH
from ratios import Estimate, ratio
from rich.console import Console
from running import ENVIRONMENT, RunError, background, end_in_order

from velodrome.data import catalogue

HERE = Path(__file__).resolve().parent.parent
ENTRIES = (
    "tensorflow single", "tensorflow multi-worker-mirrored", "tensorflow parameter-server", "tensorflow allreduce",
    "torch single", "torch ddp", "torch allreduce",
)
#: Pairs of turns after which steps are counted: progress is reported a few times a second, so short counts are coarse.
TURNS_PER_COUNT = 6
START_SECONDS = 120.0


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="the other version, which must run in this environment")
    parser.add_argument("--only", default="", help="names of entries, or parts of them, with commas between")
    parser.add_argument("--model", default="dense-300-100")
    parser.add_argument("--counts", type=int, default=10, help="how often steps are counted, two or more [10]")
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


class Running:
    """A job without an end, and the processes that train it."""

    def __init__(self, controller: int, events: Path) -> None:
        self._controller, self._events, self._read, self._steps = controller, events, 0, dict[tuple[str, int], int]()
        self._wait_for_steps()
        self._processes = self._training_processes()
        if not self._processes:
            raise RunError("its training processes cannot be found")

    def _wait_for_steps(self) -> None:
        limit = time.monotonic() + START_SECONDS
        while self.steps() < 1:
            if time.monotonic() > limit:
                raise RunError(f"no step within {START_SECONDS:.0f} s")
            time.sleep(0.2)

    def _training_processes(self) -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError, IndexError):
                if entry.name.isdigit() and b"--rank" in (entry / "cmdline").read_bytes().split(b"\0"):
                    status = (entry / "stat").read_text().rpartition(")")[2].split()
                    if int(status[1]) == self._controller:
                        found.append(int(entry.name))
        return found

    def steps(self) -> int:
        """Steps that the process which reports most of them has made so far."""
        with suppress(FileNotFoundError), self._events.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                if b'"progress"' in line and (event := json.loads(line)).get("kind", "progress") == "progress":
                    self._steps[f"{event.get('role')} {event.get('rank')}", event["epoch"]] = event["step"]
        made: dict[str, int] = {}
        for (process, _), steps in self._steps.items():
            made[process] = made.get(process, 0) + steps
        return max(made.values(), default=0)

    def compute(self, seconds: float) -> None:
        self.signal(signal.SIGCONT)
        time.sleep(seconds)
        self.signal(signal.SIGSTOP)

    def signal(self, number: signal.Signals) -> None:
        for process in self._processes:
            try:
                os.kill(process, number)
            except ProcessLookupError:
                raise RunError("one of its processes has ended") from None


@contextmanager
def training(entry: str, model: str, checkout: Path, folder: Path) -> Iterator[Running]:
    """A job that trains during the block, until it is stopped."""
    engine, strategy = entry.split()
    workers = "1" if strategy == "single" else "2"
    command = [
        sys.executable, "-m", "velodrome", "train", "--runs", str(folder), "--name", "run", "--dataset",
        "fashion-mnist", "--model", model, "--engine", engine, "--strategy", strategy, "--workers", workers,
        "--batch-size", str(BATCH), "--batch-scope", "per-worker", "--epochs", "100000", "--threads", "1",
        "--no-checkpoints",
    ]  # fmt: skip
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(checkout / "src")}
    with background(command, environment) as process:
        yield Running(process.pid, folder / "run" / "events.jsonl")


def compare(entry: str, options: argparse.Namespace, console: Console) -> Estimate:
    """Steps of this version over those of the other one, in equal time."""
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        jobs = [
            stack.enter_context(training(entry, options.model, checkout, Path(scratch) / name))
            for name, checkout in (("other", options.checkout), ("this", HERE))
        ]
        for job in jobs:  # not before both train: TensorFlow's processes give up on a peer that is silent for long
            job.signal(signal.SIGSTOP)
        take_turns(jobs, 2, options.turn)
        made: list[list[int]] = [[], []]
        before = [job.steps() for job in jobs]
        for number in range(options.counts):
            take_turns(jobs if number % 2 else jobs[::-1], TURNS_PER_COUNT, options.turn)
            after = [job.steps() for job in jobs]
            for which in (0, 1):
                made[which].append(after[which] - before[which])
            before = after
            console.print(f"{entry} {number + 1}/{options.counts}: other {made[0][-1]:,}, this {made[1][-1]:,} steps")
    return ratio(made[1], made[0])


def take_turns(jobs: Sequence[Running], turns: int, seconds: float) -> None:
    for _ in range(turns):
        for job in jobs:
            job.compute(seconds)
    time.sleep(0.3)  # the controllers write down what was reported last


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
