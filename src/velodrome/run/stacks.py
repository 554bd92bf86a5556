"""The stack of a process that stopped: py-spy reads it from outside, so it works even on one that is paused."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path


def _py_spy() -> str | None:
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def stack_of(pid: int, limit: float = 10.0) -> str:
    """What every Python thread of a process is doing, or why that cannot be told."""
    program = _py_spy()
    if program is None:
        return "(no stack: py-spy is not installed)"
    try:
        done = subprocess.run(
            [program, "dump", "--nonblocking", "--pid", str(pid)], capture_output=True, text=True, timeout=limit
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"(no stack: {error})"
    return done.stdout.strip() or f"(no stack: {done.stderr.strip().splitlines()[-1:] or 'py-spy said nothing'})"


def main_thread(stack: str) -> str:
    """The part of a stack that matters most to a reader."""
    parts = stack.split("\nThread ")
    for part in parts[1:]:
        if '"MainThread"' in part.splitlines()[0]:
            return "Thread " + part.rstrip()
    return stack
