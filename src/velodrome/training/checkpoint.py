"""Checkpoints: one safetensors file an epoch, written atomically, so that an incomplete one is never read."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from velodrome import files
from velodrome.errors import BadRequest, raised, shown
from velodrome.events import sentences
from velodrome.events.fields import HistoryRow
from velodrome.models.checks import Generators, restore_states
from velodrome.training.learner import State

KEEP = 2
#: More than any training can make; larger numbers lose their last digits on the way.
_MOST_STEPS = 1 << 53
#: In a RuntimeError of a framework about an array that does not fit.
_OTHER_SHAPE = re.compile(r"size|shape|dtype|key", re.IGNORECASE)
_ROW: TypeAdapter[HistoryRow] = TypeAdapter(HistoryRow)
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
    directory.mkdir(exist_ok=True)  # without its parents: a run's folder that is gone is not created again
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
    paths = (path for path in (folder / "checkpoints").glob("*.safetensors") if pattern.fullmatch(path.name))
    return sorted(paths, key=lambda path: int(path.stem.removeprefix("epoch-")))


def latest(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that can be read whole; None if there is none."""
    return _newest(folder)[0]


def to_resume(folder: Path, warn: Callable[[str], object]) -> Checkpoint | None:
    """The newest checkpoint that can be read whole, with a warning of newer ones; None if there is no file at all.

    If none of them can be read, that is refused: to begin anew silently would lose what was trained.
    """
    saved, damaged = _newest(folder)
    if saved is None and damaged:
        raise BadRequest(
            f"no checkpoint in {str(folder / 'checkpoints')!r} can be read ({'; '.join(damaged)}): restore one, or "
            "remove them all to train from the beginning"
        )
    if saved is not None:
        for text in damaged:
            warn(f"a checkpoint cannot be read ({text}): the run resumes from that of epoch {len(saved.history)}")
    return saved


def _newest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that can be read, and why newer ones cannot."""
    damaged: list[str] = []
    for path in reversed(_files(folder)):
        try:
            return _read(path, folder), damaged
        except (OSError, SafetensorError, ValueError) as error:
            damaged.append(f"{path.name}: {shown(error)}")
    return None, damaged


def _read(path: Path, folder: Path) -> Checkpoint:
    """A checkpoint of one file; `ValueError` if it is not what `write` wrote."""
    files.check_regular(path, inside=folder)
    with safe_open(path, framework="numpy") as stored:
        metadata = stored.metadata() or {}
        state = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 (not a mapping)
    names = sorted((name for name in state if name.startswith(_GENERATORS)), key=_rank)
    generators = [state.pop(name).tobytes() for name in names]
    try:
        history, steps = json.loads(metadata.get("history", "null")), int(metadata.get("steps", "-1"))
    except RecursionError:
        raise ValueError("its history is nested too deeply") from None
    epochs = int(path.stem.removeprefix("epoch-"))
    if not isinstance(history, list) or len(history) != epochs:
        raise ValueError(f"its history is not that of {epochs:,} epochs")
    for epoch, row in enumerate(history, start=1):
        try:
            _ROW.validate_python(row)
        except ValidationError as error:
            raise ValueError(f"its history of epoch {epoch:,} {next(sentences(error))}") from None
        if row["epoch"] != epoch:
            raise ValueError(f"its history has epoch {shown(row['epoch'])} in place of {epoch:,}")
    if not 0 <= steps <= _MOST_STEPS:
        raise ValueError(f"it counts {shown(steps, 20)} steps")
    return Checkpoint(state, history, steps, generators)


def restored(saved: Checkpoint, load: Callable[[State], object], generators: Generators, rank: int) -> None:
    """Load a checkpoint into a learner and its generators; what does not fit them is refused in a sentence."""
    try:
        load(saved.state)
        if rank < len(saved.generators):
            restore_states(generators, saved.generators[rank])
    except (LookupError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        if type(error) is RuntimeError and not _OTHER_SHAPE.search(str(error)):  # of a transport
            raise
        raise BadRequest(
            f"the checkpoint of epoch {len(saved.history)} does not fit this job ({raised(error)}): restore it, or "
            "remove it to resume from the one before"
        ) from error
