"""Who takes part in `own.py`: the same network built in and by `module:function`, bare loops, and peers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from entries import HERE, PEERS_ENVIRONMENT, VELODROME, Cell
from running import RunError, run_json

#: Steps of a run, the first 20 at most untimed, and examples (of a text: rows) per worker and step.
STEPS = {"dense-300-100": 1200, "lenet5": 300, "resnet20": 60, "gpt-mini": 60}
BATCH = {"dense-300-100": 128, "lenet5": 128, "resnet20": 64, "gpt-mini": 20}
CONTEXT, VOCABULARY = 64, 10_000
OWN = ("dense-300-100", "lenet5")
LARGE = ("resnet20", "gpt-mini")
CELLS = (*(Cell(model, workers) for model in (*OWN, *LARGE) for workers in (1, 2)),)
ENGINES = {"torch": "own_torch", "tensorflow": "own_keras"}
#: The strategies that a model by `module:function` is measured under, by the number of workers.
STRATEGIES = {
    1: (("torch", "single"), ("tensorflow", "single")),
    2: (
        ("torch", "ddp"), ("torch", "allreduce"), ("tensorflow", "multi-worker-mirrored"),
        ("tensorflow", "parameter-server"),
    ),
}
PEER_STRATEGIES = (
    ("torch", "ddp"), ("torch", "allreduce"), ("tensorflow", "multi-worker-mirrored"), ("tensorflow", "allreduce"),
)


#: Everything built in; the model by `module:function`; the model and the task by `module:name`.
Own = Literal["velodrome", "own model", "own task"]


@dataclass(frozen=True)
class Material:
    """What the runs are given: where data lies, and limits."""

    images: Path
    words: Path
    text: Path
    scratch: Path
    limit: float
    scale: float

    def data(self, cell: Cell) -> Path:
        return self.words if cell.model == "gpt-mini" else self.images

    def steps(self, cell: Cell) -> int:
        """Whole calls of ten steps, at least four of them: twice the warm-up of the bare loops and peers."""
        return max(40, round(STEPS[cell.model] * self.scale / 10) * 10)


@dataclass(frozen=True)
class OwnEntry:
    name: str
    cell: Cell
    measure: Callable[[Material], float]


def _velodrome(cell: Cell, engine: str, strategy: str, own: Own = "velodrome") -> OwnEntry:
    def measure(material: Material) -> float:
        model, paths, task = cell.model, [os.environ.get("PYTHONPATH", "")], list[str]()
        if own != "velodrome":
            model, paths = f"{ENGINES[engine]}:{cell.model.replace('-', '_')}", [str(HERE / "own"), *paths]
        if own == "own task":
            task = ["--task", f"{ENGINES[engine]}:Classify"]
        text = cell.model == "gpt-mini"
        # A step of an asynchronous strategy is one worker's: as many examples as elsewhere take so many more of them.
        steps = material.steps(cell) * (cell.workers if strategy == "parameter-server" else 1)
        command = [
            str(VELODROME), "train", "--json", "--runs", str(material.scratch / "runs"),
            "--dataset", f"text:{material.text}" if text else "fashion-mnist", "--model", model, *task,
            "--engine", engine, "--strategy", strategy, "--workers", str(cell.workers),
            "--batch-size", str(BATCH[cell.model]), "--batch-scope", "per-worker", "--optimizer", "adam",
            "--learning-rate", "0.001", "--epochs", "10000", "--steps", str(steps), "--threads", "1",
            "--no-checkpoints", "--weight-decay", "0", "--schedule", "constant",
            *(["--unroll", str(CONTEXT)] if text else []),
        ]  # fmt: skip
        path = os.pathsep.join(filter(None, paths))
        result = run_json(command, seconds=material.limit, environment={"PYTHONPATH": path})
        rate = (result.get("throughput") or {}).get("examples_per_second")
        if not rate:
            raise RunError("the result holds no throughput")
        return float(rate)

    return OwnEntry(f"{own} {engine} {strategy}", cell, measure)


def _script(name: str, cell: Cell, start: Sequence[str], script: Path) -> OwnEntry:
    def measure(material: Material) -> float:
        command = [
            *start, str(script), "--model", cell.model, "--workers", str(cell.workers),
            "--steps", str(material.steps(cell)), "--batch", str(BATCH[cell.model]), "--data", str(material.data(cell)),
        ]
        found = run_json(command, seconds=material.limit, environment={"HOME": str(material.scratch)})
        return float(found["examples_per_second"])

    return OwnEntry(name, cell, measure)


def _entries() -> list[OwnEntry]:
    found = []
    for cell in CELLS:
        if cell.model in OWN:
            for engine, strategy in STRATEGIES[cell.workers]:
                found += [_velodrome(cell, engine, strategy, own) for own in get_args(Own)]
        elif cell.workers == 1:
            for engine in ENGINES:
                found.append(_velodrome(cell, engine, "single"))
                loop = HERE / "bare" / f"{engine}_loop.py"
                found.append(_script(f"bare {engine}", cell, [sys.executable], loop))
        else:
            found += [_velodrome(cell, engine, strategy) for engine, strategy in PEER_STRATEGIES]
            torchrun = [
                str(PEERS_ENVIRONMENT / "bin" / "torchrun"), "--nproc-per-node", str(cell.workers),
                "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1",
            ]
            python = [str(PEERS_ENVIRONMENT / "bin" / "python")]
            for name, start, script in (
                ("peer torch accelerate", torchrun, "accelerate_ddp.py"),
                ("peer torch lightning fabric", torchrun, "fabric_ddp.py"),
                ("peer tensorflow tf_keras fit", python, "tf_keras_mirrored.py"),
            ):
                found.append(_script(name, cell, start, HERE / "peers" / script))
    return found


ENTRIES = _entries()


def write_text(folder: Path, words: Path, *, count: int = 400_000) -> None:
    """A text of so many words, drawn by Zipf's law from a full vocabulary, for Velodrome and, as numbers, for the
    others: speed does not depend on what it says."""
    random = np.random.default_rng(1)
    chances = 1 / np.arange(1, VOCABULARY + 1)
    drawn = random.choice(VOCABULARY, count, p=chances / chances.sum())
    drawn[:VOCABULARY] = random.permutation(VOCABULARY)  # each occurs, so that the vocabulary is full
    folder.mkdir(parents=True)
    lines = [" ".join(f"w{word}" for word in line) for line in np.array_split(drawn, count // 20)]
    (folder / "train.txt").write_text("\n".join(lines) + "\n")
    for part in ("validation", "test"):
        (folder / f"{part}.txt").write_text("\n".join(lines[-100:]) + "\n")
    np.savez(words, words=drawn.astype(np.int32))
