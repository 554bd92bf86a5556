"""What every peer is asked to do: the command line, the data, a core per process, the timing, the answer.

Imports no framework, so that a peer can take its core before its framework counts them.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

WARMUP_STEPS = 20
LEARNING_RATE = 0.001
CLASSES = 10
#: Words that the language model reads at a time, and the words of its vocabulary.
CONTEXT, VOCABULARY = 64, 10_002
SHUFFLE_SEED = 1
SECONDS_PER_REPORT = 0.1


@dataclass(frozen=True)
class Task:
    model: str
    workers: int
    steps: int
    batch: int
    data: Path
    #: Of the rows in `bare/rows`, which each have several.
    strategy: str = "single"
    consistency: str = ""

    @property
    def reads_text(self) -> bool:
        return self.model == "gpt-mini"

    @property
    def examples(self) -> int:
        """Examples of a step, all workers together: images, or words."""
        return self.batch * self.workers * (CONTEXT if self.reads_text else 1)


def read_task() -> Task:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=("dense-300-100", "lenet5", "resnet20", "gpt-mini"), required=True)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--steps", type=int, required=True, help="training steps, the first 20 of which are not timed")
    parser.add_argument("--batch", type=int, default=128, help="examples per worker and step")
    parser.add_argument(
        "--data", type=Path, required=True, help=".npz with images (count, 28, 28, 1) and labels; or words"
    )
    parser.add_argument("--strategy", default="single", help="which of a script's strategies")
    parser.add_argument("--consistency", default="", help="bsp or asp, where the strategy has both")
    return Task(**vars(parser.parse_args()))


def read_data(task: Task) -> tuple[np.ndarray, np.ndarray]:
    """Images as float32 between 0 and 1 (count, height, width, channels), and labels; of a text, rows of words and the
    words after them."""
    with np.load(task.data, allow_pickle=False) as stored:
        if task.reads_text:
            words = stored["words"].astype(np.int64)
            rows = (len(words) - 1) // CONTEXT
            inputs, targets = (words[first : first + rows * CONTEXT].reshape(rows, CONTEXT) for first in (0, 1))
            return inputs, targets
        return stored["images"].astype(np.float32) / 255, stored["labels"].astype(np.int64)


def take_core(rank: int) -> None:
    """Stay on one core of those that the benchmark was given."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})


def reporter(rank: int) -> Callable[[int], None] | None:
    """Writes how many steps are done, a few times a second at most, where a benchmark of endless jobs reads it."""
    path = os.environ.get("BENCHMARK_REPORTS")
    if not path or rank:
        return None
    file, last = Path(path).open("w", buffering=1), [0.0]  # noqa: SIM115 (as long as the process)

    def report(steps: int) -> None:
        if (now := time.time()) - last[0] >= SECONDS_PER_REPORT:
            last[0] = now
            file.write(f"{now:.4f} {steps}\n")

    return report


class Clock:
    """Times the steps after the warm-up."""

    def __init__(self) -> None:
        self.began, self._report = 0.0, reporter(int(os.environ.get("RANK", "0")))

    def before_step(self, step: int) -> None:
        if self._report:
            self._report(step)
        if step == WARMUP_STEPS:
            self.began = time.perf_counter()

    def rate(self, task: Task) -> float:
        """Examples per second, all workers together. Call it right after the last step."""
        return (task.steps - WARMUP_STEPS) * task.examples / (time.perf_counter() - self.began)


def answer(examples_per_second: float) -> None:
    print(json.dumps({"examples_per_second": examples_per_second}), flush=True)


def run_cluster(roles: dict[str, int]) -> None:
    """Start this very script once for every task of a TensorFlow cluster on this machine, and wait for its end.

    The first task of `chief`, or of `worker` where there is no chief, says when it is over.
    """
    cluster = {role: [f"127.0.0.1:{_free_port()}" for _ in range(count)] for role, count in roles.items()}
    started = []
    for role, addresses in cluster.items():
        for index in range(len(addresses)):
            config = json.dumps({"cluster": cluster, "task": {"type": role, "index": index}})
            command = [sys.executable, *sys.argv]
            started.append((role, index, subprocess.Popen(command, env={**os.environ, "TF_CONFIG": config})))
    last = "chief" if "chief" in roles else "worker"
    try:
        code = next(process for role, index, process in started if (role, index) == (last, 0)).wait()
    finally:
        for role, _, process in started:
            if role == last:
                process.wait()
            process.kill()
            process.wait()
    sys.exit(code)


def _free_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        port: int = trial.getsockname()[1]
        return port
