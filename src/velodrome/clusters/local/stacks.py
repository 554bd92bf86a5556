"""Stacks of other processes of this machine, read by py-spy, also of a process that is stopped."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import psutil

from velodrome.models.own import is_users

#: Where the innermost Python frame of a process is that waits for others, under the frameworks that scripts use.
_COLLECTIVES = (
    "/torch/distributed/", "/torch/nn/parallel/distributed.py", "/torch/autograd/graph.py", "/horovod/",
    "/tensorflow/python/eager/execute.py", "/tensorflow/python/eager/context.py", "/mpi4py/",
)


def _py_spy() -> str | None:
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def stack_of(pid: int, limit: float = 10.0) -> str:
    """What every Python thread of a process is doing, or why that is not known."""
    program = _py_spy()
    if program is None:
        return "(no stack: py-spy is not installed)"
    try:
        done = subprocess.run(
            [program, "dump", "--nonblocking", "--full-filenames", "--pid", str(pid)],
            capture_output=True, text=True, timeout=limit,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"(no stack: {error})"
    errors = done.stderr.strip().splitlines() or ["py-spy printed nothing"]
    return done.stdout.strip() or f"(no stack: {errors[-1]})"


def is_stopped(pid: int) -> bool:
    """Whether a process is suspended (SIGSTOP): then it holds up the others, whatever their events look like."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    except psutil.Error:
        return False


def waits_for_others(stack: str) -> bool:
    """Whether the main thread is in a call that ends when other processes make theirs: a collective, or a backward
    pass, in which DistributedDataParallel sums gradients."""
    main = next((part for part in stack.split("\nThread ") if '"MainThread"' in part.partition("\n")[0]), "")
    innermost = main.partition("\n")[2].partition("\n")[0]
    return any(place in innermost for place in _COLLECTIVES)


def shows_users_code(stack: str) -> bool:
    """Whether any thread is in a line of the user's own files."""
    files = re.findall(r"^\s+.* \((/.*\.py):\d+\)$", stack, re.MULTILINE)
    return any(is_users(file) for file in files)


def most_relevant_thread(stack: str) -> str:
    """The thread that matters most to a reader: one in the user's code, or the main one."""
    threads = ["Thread " + part.rstrip() for part in stack.split("\nThread ")[1:]]
    main = [thread for thread in threads if '"MainThread"' in thread.splitlines()[0]]
    return next(iter([*filter(shows_users_code, threads), *main, *threads, stack]))
