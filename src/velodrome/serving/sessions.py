"""ONNX Runtime: how a graph is opened, and the limits on what one that came from elsewhere may take. Nothing here knows
what a model is for."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from velodrome.data.base import memory_budget
from velodrome.errors import BadRequest
from velodrome.printable import shown

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
            found: list[Any] = self._graph.run(None, fed, options)
        except Exception:
            if options.terminate:
                raise TooLong(f"it took more than {CALL_SECONDS:g} s") from None
            raise
        finally:
            del running[options]
        return found


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
