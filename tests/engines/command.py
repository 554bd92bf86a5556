"""Trains with the real command in a folder of the test's own, resumes what it trained, and hurts one of its workers."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from safetensors.numpy import load_file

COMMAND = [sys.executable, "-m", "velodrome", "train", "--json"]
#: Trains a job of the command line's words; its result, with the weights under "weights".
Train = Callable[..., dict[str, Any]]
#: Variables of the environment; None for those of the tests.
Variables = Mapping[str, str] | None
WEIGHTS = Path("model", "model.safetensors")
#: Batches of which no two or three workers have equal parts.
DENSE = ("--dataset", "digits", "--model", "dense-128", "--seed", 7, "--optimizer", "momentum", "--learning-rate",
         "0.05", "--batch-size", 97, "--steps", 20)
#: Every fourth step has one example, so all processes but one have none; weights of convolutions have four dimensions.
UNEVEN = ("--dataset", "digits", "--model", "vgg-small", "--optimizer", "adam", "--batch-size", 431, "--steps", 6)


def trainer(folder: Path, variables: Variables = None) -> Train:
    """Trains in a folder; its runs are in `runs`."""

    def train(*words: object) -> dict[str, Any]:
        command = [*COMMAND, "--runs", str(folder / "runs"), *map(str, words)]
        done = subprocess.run(command, env=variables, cwd=folder, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stderr
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return {**result, "weights": load_file(weights_of(result))}

    return train


def weights_of(result: Mapping[str, Any]) -> Path:
    return Path(result["path"]) / WEIGHTS


def difference(one: Mapping[str, Any], other: Mapping[str, Any], names: Collection[str] | None = None) -> float:
    """The largest one between the weights of two results: of all, which must be the same in both, or of some."""
    if names is None:
        names = one["weights"].keys()
        assert names == other["weights"].keys()
    return max(float(np.abs(one["weights"][name] - other["weights"][name]).max()) for name in names)


def resumed_after(epochs: int, run: Path, variables: Variables = None) -> dict[str, Any]:
    """What a finished run becomes that is resumed as if it had ended after so many epochs; its weights."""
    (run / "result.json").unlink()
    for checkpoint in sorted((run / "checkpoints").iterdir())[epochs:]:
        checkpoint.unlink()
    command = [sys.executable, "-m", "velodrome", "resume", run.name, "--runs", str(run.parent), "--json"]
    done = subprocess.run(
        command, env=variables, cwd=run.parents[1], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    return {"weights": load_file(run / WEIGHTS)}


def errors_after_hurting(
    folder: Path, rank: int, number: signal.Signals, *words: object, seconds: float = 120, variables: Variables = None,
    only_loopback: bool = True,
) -> str:
    """What a run without an end prints when a worker of it gets a signal once it trains.

    Asserts that it fails within `seconds`, that it names the worker, and that no worker is left; and before that, that
    workers listen on and are connected to addresses of this machine alone.
    """
    run = folder / "hurt"
    command = [*COMMAND, "--runs", str(folder), "--name", run.name, "--dataset", "digits", *map(str, words),
               "--workers", "2", "--epochs", "5000"]
    running = subprocess.Popen(
        command, env=variables, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        events, deadline = run / "events.jsonl", time.monotonic() + 120
        while not (events.exists() and '"progress"' in events.read_text()):
            assert running.poll() is None, running.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.2)
        workers = [_worker(run, each) for each in (0, 1)]
        if only_loopback:
            assert {address for pid in workers for address in _addresses(pid)} == {"127.0.0.1"}
        os.kill(workers[rank], number)
        _, errors = running.communicate(timeout=seconds)
    finally:
        running.kill()
    assert running.returncode == 1
    assert f"worker {rank}" in errors
    assert not [pid for pid in workers if psutil.pid_exists(pid)]
    return errors


def _worker(run: Path, rank: int) -> int:
    """The process that is a worker of the run in a folder."""
    for process in psutil.process_iter(["cmdline"]):
        given = dict(itertools.pairwise(process.info["cmdline"] or []))
        if (given.get("--folder"), given.get("--role"), given.get("--rank")) == (str(run), "worker", str(rank)):
            return int(process.pid)
    raise AssertionError(f"no worker {rank} of {run}")


def _addresses(pid: int) -> list[str]:
    """The addresses at which a process is connected or listens."""
    connections = psutil.Process(pid).net_connections(kind="tcp")
    return [connection.laddr.ip.removeprefix("::ffff:") for connection in connections]  # gRPC's are of IPv6


def write_words(folder: Path) -> None:
    """`words.txt`: 4,000 words of eight."""
    rows = np.random.default_rng(1).choice(list("abcdefgh"), (400, 10))
    (folder / "words.txt").write_text("\n".join(" ".join(row) for row in rows))


def write_photos(folder: Path) -> None:
    """`photos.npz`: coloured images of noise in three classes."""
    generator = np.random.default_rng(2)
    images, labels = generator.integers(0, 256, (104, 32, 32, 3), np.uint8), generator.integers(0, 3, 104)
    np.savez(folder / "photos.npz", x_train=images[:64], y_train=labels[:64], x_test=images[64:], y_test=labels[64:])
