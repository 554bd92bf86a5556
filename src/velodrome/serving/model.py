"""An exported model in ONNX Runtime: named arrays in, scores out. No training framework is imported.

A graph may come from elsewhere: what a call of it may take is limited in time and memory.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome import files
from velodrome.data.base import memory_budget
from velodrome.data.sources.npz import NpzArray, npz_arrays
from velodrome.errors import BadRequest, VelodromeError, shown
from velodrome.models.description import CHECKED_EXAMPLES, EXAMPLES, ONNX, SERVED, Served

#: Seconds of a call after which it is ended: a graph may hold a loop.
CALL_SECONDS = 120.0
#: The share of the free memory that graphs may take: one of a few bytes may ask for any number of them.
_MEMORY = 1 / 2
_LOOK_SECONDS = 0.25


class TooLong(Exception):
    """A call was ended because it took too long."""


def runtime() -> Any:
    """ONNX Runtime, imported when it is first needed."""
    try:
        import onnxruntime
    except ImportError:
        raise BadRequest(
            'exported models run in ONNX Runtime, which is not installed: python -m pip install "velodrome[serve]"'
        ) from None
    return onnxruntime


def first_line(error: Exception) -> str:
    return shown(str(error).splitlines()[0] if str(error) else type(error).__name__, 300)


class Session:
    """An open graph."""

    def __init__(self, file: Path, threads: int | None) -> None:
        ort = runtime()
        _limit_memory()
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads or len(os.sched_getaffinity(0))
        options.inter_op_num_threads = 1
        options.log_severity_level = 4  # a failure is raised; the rest is for developers
        # Threads that spin between requests would take the cores from whoever decodes the next one.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.add_session_config_entry("session.use_env_allocators", "1")
        try:
            self._graph = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its exceptions have no common class
            raise BadRequest(f"ONNX Runtime cannot load {str(file)!r}: {first_line(error)}") from None
        self._options = ort.RunOptions
        self.inputs: list[Any] = self._graph.get_inputs()
        self.outputs: list[Any] = self._graph.get_outputs()

    def run(self, fed: Mapping[str, Any]) -> list[Any]:
        """Everything that the graph returns; `TooLong`, or any error of the runtime."""
        options, running = self._options(), _watch()
        running[options] = time.monotonic() + CALL_SECONDS
        try:
            outputs: list[Any] = self._graph.run(None, fed, options)
        except Exception:
            if options.terminate:
                raise TooLong(f"it took more than {CALL_SECONDS:g} s") from None
            raise
        finally:
            del running[options]
        return outputs


@cache
def _limit_memory() -> None:
    """Let all graphs of this process allocate from one arena that has an end."""
    ort = runtime()
    where = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    ort.create_and_register_allocator(where, ort.OrtArenaCfg({
        "max_mem": memory_budget(_MEMORY), "arena_extend_strategy": 0, "initial_chunk_size_bytes": -1,
        "max_dead_bytes_per_chunk": -1,
    }))


@cache
def _watch() -> dict[Any, float]:
    """The calls that run, with the time at which each is ended: by one thread, which costs a call nothing."""
    running: dict[Any, float] = {}

    def look() -> None:
        while True:
            time.sleep(_LOOK_SECONDS)
            for options, until in list(running.items()):
                if time.monotonic() > until:
                    options.terminate = True

    threading.Thread(target=look, name="velodrome-onnx", daemon=True).start()
    return running


Array = NDArray[Any]
NOT_FINITE = "the model's answer to this is not a finite number"
#: Examples of a call: more would need more memory and be no faster.
LARGEST_BATCH = 64
#: Seconds of one example on one core above which its answer is divided among all cores.
_LONG = 0.02
#: Bytes of all examples that are kept beside a model.
_LARGEST_EXAMPLES = 1 << 30


class BadInput(VelodromeError):
    """What was sent cannot be fed to the model; the sentence says why, the status is that of HTTP."""

    def __init__(self, message: str, status: int = 422) -> None:
        super().__init__(message)
        self.status = status

    exit_code = 2


def is_exported(folder: Path) -> bool:
    """Whether a model folder has a model that can be served, newer than what it was made of."""
    description = folder / SERVED
    try:
        made = description.stat().st_mtime_ns
        return (folder / ONNX).is_file() and made >= (folder / "model.json").stat().st_mtime_ns
    except OSError:
        return False


class LoadedModel:
    """A model that answers."""

    def __init__(self, folder: Path, name: str, *, threads: int | None = None) -> None:
        self.name, self.folder, self.threads = name, folder, threads
        try:
            files.check_regular(folder / ONNX, inside=folder.parent)
            self.about = Served.read(folder / SERVED)
        except (OSError, ValueError) as error:
            raise _unfit(folder / SERVED, name, error) from None
        self._session = Session(folder / ONNX, threads)
        self._types = {spec.name: _TYPES.get(spec.type, "float32") for spec in self._session.inputs}
        try:
            _check_graph(self.about, self._session)
        except ValueError as error:
            raise _unfit(folder / SERVED, name, error) from None

    def scores(self, inputs: Mapping[str, Array]) -> Array:
        """What the graph returns for some examples."""
        fed = {name: np.ascontiguousarray(array, self._types[name]) for name, array in inputs.items()}
        count, only = len(next(iter(fed.values()))), self.about.only_batch
        if only is None and count <= LARGEST_BATCH:
            return self._computed(fed)[0]
        size = only or LARGEST_BATCH
        parts = [self._part(fed, first, size, padded=only is not None) for first in range(0, count, size)]
        return np.concatenate(parts)[:count]

    def _part(self, fed: Mapping[str, Array], first: int, size: int, *, padded: bool) -> Array:
        part = {name: array[first : first + size] for name, array in fed.items()}
        if padded:
            part = {name: array[np.arange(size) % len(array)] for name, array in part.items()}
        return self._computed(part)[0]

    def run(self, fed: Mapping[str, Array]) -> list[Array]:
        """Everything that the graph returns."""
        return self._computed({name: np.ascontiguousarray(array, self._types[name]) for name, array in fed.items()})

    def _computed(self, fed: Mapping[str, Array]) -> list[Array]:
        try:
            outputs: list[Array] = self._session.run(fed)
        except Exception as error:  # those of the runtime have no common class
            raise BadInput(f"the model of {self.name!r} cannot compute this: {first_line(error)}") from None
        count = len(next(iter(fed.values())))
        least = {"language-model": 3, "classification": 2}.get(self.about.task, 1)
        first = np.asarray(outputs[0])
        if first.dtype.kind not in "fiub" or first.ndim < least or len(first) != count:
            raise BadInput(f"the model of {self.name!r} does not return a row of numbers for each example")
        return outputs

    def seconds_of_one(self) -> float:
        """How long one example of zeros takes; nothing where the graph has a state, which is read word by word."""
        if self.about.state or self.about.kind == "text":
            return 0.0
        seconds = []
        try:
            zeros = {spec.name: np.zeros((1, *spec.shape), spec.dtype) for spec in self.about.inputs}
            for _ in range(2):  # the first call also sets up
                began = time.perf_counter()
                self.scores(zeros)
                seconds.append(time.perf_counter() - began)
        except Exception:  # of the runtime: zeros may be no input of a user's own model
            return 0.0
        return min(seconds)

    @cached_property
    def examples(self) -> dict[str, Array]:
        """Examples of the test set: inputs as `in:NAME`, targets as `y:NAME`; none if the file is gone or damaged."""
        try:
            files.check_regular(self.folder / EXAMPLES, inside=self.folder.parent)
            stored = npz_arrays(self.folder / EXAMPLES, lambda name: name.startswith(("in:", "y:")))
            return {name: array.whole() for name, array in stored.items()} if _fit(self.about, stored) else {}
        except (OSError, BadRequest):
            return {}

    @property
    def image_input(self) -> tuple[int, int, int] | None:
        """Height, width and channels of a model that takes one image."""
        only = self.about.inputs[0]
        if len(self.about.inputs) != 1 or not only.image:
            return None
        height, width, channels = only.shape
        return height, width, channels


def load_for_requests(folder: Path, name: str, processes: int = 1) -> tuple[LoadedModel, int]:
    """A model for many requests, and how many calls of it run at a time in each of so many processes.

    Threads that share one call wait for one another; calls side by side do not, and answer more requests: one for each
    core, and in a single process one more, which is ready when another has to wait for Python's lock. A large model is
    divided among the cores nevertheless, because a lone request would take long.
    """
    cores = len(os.sched_getaffinity(0))
    model = LoadedModel(folder, name, threads=1)
    if cores == 1 or model.seconds_of_one() <= _LONG:
        return model, cores + 1 if processes == 1 else max(1, cores // processes)
    return LoadedModel(folder, name, threads=cores), 1


_TYPES = {
    "tensor(uint8)": "uint8", "tensor(float)": "float32", "tensor(double)": "float64", "tensor(int64)": "int64",
    "tensor(int32)": "int32", "tensor(bool)": "bool",
}


def _unfit(file: Path, name: str, error: Exception) -> BadRequest:
    return BadRequest(f"model of {name!r} cannot be read: {str(file)!r}: {error}; `velodrome export --again` writes it")


def _check_graph(about: Served, session: Session) -> None:
    """Refuse a description of another graph, as far as the graph says what it takes and returns."""
    taken = {spec.name: spec.shape for spec in session.inputs}
    named = {spec.name: spec.shape for spec in about.inputs}
    if taken.keys() != named.keys() | {spec.name for spec in about.state}:
        raise ValueError(f"the graph takes {', '.join(map(shown, taken)) or 'nothing'}, and not {', '.join(named)}")
    for name, shape in named.items():
        fixed = taken[name][1:]
        if taken[name] and about.kind != "text" and (len(fixed) != len(shape) or any(
            isinstance(axis, int) and axis != wanted for axis, wanted in zip(fixed, shape, strict=True)
        )):
            raise ValueError(f"the graph takes {name!r} of shape {tuple(fixed)}, and not {shape}")
    outputs = session.outputs
    if about.state and len(outputs) != 1 + len(about.state):
        raise ValueError(f"the graph returns {len(outputs)} arrays, and not the scores and {len(about.state)} states")
    width = (outputs[0].shape or [None])[-1]
    names = about.vocabulary or about.classes
    if about.task in ("classification", "language-model") and isinstance(width, int) and len(names) > width > 0:
        raise ValueError(f"the graph returns {width:,} numbers, and there are {len(names):,} names of classes")


def _fit(about: Served, stored: Mapping[str, NpzArray]) -> bool:
    """Whether arrays are examples of this model, and not many."""
    inputs = {f"in:{spec.name}": spec.shape for spec in about.inputs}
    if not inputs.keys() <= stored.keys() or sum(array.nbytes for array in stored.values()) > _LARGEST_EXAMPLES:
        return False
    shapes = {name: array.shape for name, array in stored.items()}
    return all(shape and shape[0] <= CHECKED_EXAMPLES for shape in shapes.values()) and all(
        -1 in wanted or shapes[name][1:] == wanted for name, wanted in inputs.items()
    )
