"""Checkpoints: one safetensors file an epoch, written atomically, so that an incomplete one is never read."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from velodrome import files
from velodrome.worker.learner import State

KEEP = 2
#: What the names of arrays with states of generators begin with; the rank follows.
_GENERATORS = "generators."


@dataclass(frozen=True)
class Checkpoint:
    state: State
    history: list[dict[str, Any]]
    steps: int
    #: The states of the random number generators of each process, by rank; none in checkpoints of earlier versions.
    generators: list[bytes] = field(default_factory=list)


def write(
    folder: Path, epoch: int, state: State, history: list[dict[str, Any]], steps: int, generators: Sequence[bytes] = ()
) -> Path:
    """Write the checkpoint of an epoch and drop all but the newest few."""
    directory = folder / "checkpoints"
    directory.mkdir(exist_ok=True)  # without its parents: a run's folder that is gone is not made anew
    path = directory / f"epoch-{epoch:04d}.safetensors"
    arrays = {name: np.ascontiguousarray(value).reshape(np.shape(value)) for name, value in state.items()}
    arrays |= {f"{_GENERATORS}{rank}": np.frombuffer(states, np.uint8) for rank, states in enumerate(generators)}
    try:
        with files.atomic_path(path, sync=True) as partial:
            save_file(arrays, partial, metadata={"history": json.dumps(history), "steps": str(steps)})
    except SafetensorError as error:
        if number := re.search(r"\(os error (\d+)\)", str(error)):
            raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
        raise OSError(f"cannot write {path}: {error}") from error
    for old in _files(folder)[:-KEEP]:
        old.unlink(missing_ok=True)
    return path


def _rank(name: str) -> int:
    return int(name.removeprefix(_GENERATORS))


def _files(folder: Path) -> list[Path]:
    pattern = re.compile(r"epoch-\d+\.safetensors")
    found = (path for path in (folder / "checkpoints").glob("*.safetensors") if pattern.fullmatch(path.name))
    return sorted(found, key=lambda path: int(path.stem.removeprefix("epoch-")))


def latest(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that can be read whole."""
    for path in reversed(_files(folder)):
        try:
            files.check_regular(path, inside=folder)
            with safe_open(path, framework="numpy") as stored:
                metadata = stored.metadata()
                state = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 (not a mapping)
            names = sorted((name for name in state if name.startswith(_GENERATORS)), key=_rank)
            generators = [state.pop(name).tobytes() for name in names]
            return Checkpoint(state, json.loads(metadata["history"]), int(metadata["steps"]), generators)
        except (OSError, SafetensorError, KeyError, ValueError):
            continue
    return None
