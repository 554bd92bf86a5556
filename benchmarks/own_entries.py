"""Who takes part in `own.py`: the same network built in and by `module:function`, bare loops, and peers, in groups that
train at the same time."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from entries import HERE, PEERS_ENVIRONMENT, Cell
from running import ENVIRONMENT
from turns import Trial, read_events, read_steps

#: Steps that no run reaches.
ENDLESS = 1_000_000_000
#: Examples (of a text: rows) per worker and step.
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
    """What the runs are given: where data lies, and where they may write."""

    images: Path
    words: Path
    text: Path
    scratch: Path

    def data(self, cell: Cell) -> Path:
        return self.words if cell.model == "gpt-mini" else self.images


@dataclass(frozen=True)
class OwnEntry:
    name: str
    cell: Cell
    trial: Callable[[Material], Trial]


@dataclass(frozen=True)
class Group:
    """Entries that are compared with one another, and therefore take turns."""

    name: str
    cell: Cell
    entries: tuple[OwnEntry, ...]


def _velodrome(cell: Cell, engine: str, strategy: str, own: Own = "velodrome") -> OwnEntry:
    name = f"{own} {engine} {strategy}"

    def trial(material: Material) -> Trial:
        model, paths, task = cell.model, [os.environ.get("PYTHONPATH", "")], list[str]()
        if own != "velodrome":
            model, paths = f"{ENGINES[engine]}:{cell.model.replace('-', '_')}", [str(HERE / "own"), *paths]
        if own == "own task":
            task = ["--task", f"{ENGINES[engine]}:Classify"]
        text = cell.model == "gpt-mini"
        runs, run = material.scratch / "runs", f"{cell}-{name}".translate(str.maketrans(" :", "--"))
        command = [
            sys.executable, "-m", "velodrome", "train", "--runs", str(runs), "--name", run,
            "--dataset", f"text:{material.text}" if text else "fashion-mnist", "--model", model, *task,
            "--engine", engine, "--strategy", strategy, "--workers", str(cell.workers),
            "--batch-size", str(BATCH[cell.model]), "--batch-scope", "per-worker", "--optimizer", "adam",
            "--learning-rate", "0.001", "--epochs", "1000000", "--threads", "1", "--no-checkpoints",
            "--weight-decay", "0", "--schedule", "constant",
            *(["--unroll", str(CONTEXT)] if text else ["--validation", "0"]),
        ]  # fmt: skip
        environment = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        return Trial(name, command, environment, runs / run / "events.jsonl", read_events())

    return OwnEntry(name, cell, trial)


def _script(name: str, cell: Cell, start: Sequence[str], script: Path) -> OwnEntry:
    def trial(material: Material) -> Trial:
        reports = material.scratch / f"{cell.model}-{cell.workers}-{name.replace(' ', '-')}.txt"
        command = [
            *start, str(script), "--model", cell.model, "--workers", str(cell.workers),
            "--steps", str(ENDLESS), "--batch", str(BATCH[cell.model]), "--data", str(material.data(cell)),
        ]
        environment = {**ENVIRONMENT, "HOME": str(material.scratch), "BENCHMARK_REPORTS": str(reports)}
        examples = BATCH[cell.model] * cell.workers * (CONTEXT if cell.model == "gpt-mini" else 1)
        return Trial(name, command, environment, reports, read_steps(examples))

    return OwnEntry(name, cell, trial)


def _groups() -> list[Group]:
    found = []
    for cell in CELLS:
        if cell.model in OWN:
            for engine, strategy in STRATEGIES[cell.workers]:
                entries = [_velodrome(cell, engine, strategy, own) for own in get_args(Own)]
                found.append(Group(f"{engine} {strategy}", cell, tuple(entries)))
        elif cell.workers == 1:
            for engine in ENGINES:
                loop = HERE / "bare" / f"{engine}_loop.py"
                bare = _script(f"bare {engine}", cell, [sys.executable], loop)
                found.append(Group(f"{engine} bare", cell, (_velodrome(cell, engine, "single"), bare)))
        else:
            entries = [_velodrome(cell, engine, strategy) for engine, strategy in PEER_STRATEGIES]
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
                entries.append(_script(name, cell, start, HERE / "peers" / script))
            found.append(Group("peers", cell, tuple(entries)))
    return found


GROUPS = _groups()
ENTRIES = [entry for group in GROUPS for entry in group.entries]


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
