"""Runs one command of a benchmark: a time limit, its own session, and nothing of it left afterwards."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

#: One thread per process, no chatter, and no address but this machine's own.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "",
    "GLOO_SOCKET_IFNAME": "lo",
    "RAY_USAGE_STATS_ENABLED": "0",
    "PYTHONWARNINGS": "ignore",
}
_MARK = "BENCHMARK_RUN"


class RunError(Exception):
    """Why a run gave no figure, in one line."""


def end_in_order() -> None:
    """Let SIGTERM and SIGHUP unwind like Ctrl-C does: what a benchmark started must not outlive it."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, frame: sys.exit(128 + received))


def own_network() -> bool:
    """Move this process, and so all that it starts, into a network with nothing but loopback; whether that could be.

    Frameworks listen on all interfaces, and the bytes that its loopback counts are then those of this benchmark.
    """
    clone_newnet = 0x40000000
    if sys.platform != "linux" or os.geteuid() != 0 or ctypes.CDLL(None, use_errno=True).unshare(clone_newnet) != 0:
        return False
    return subprocess.run(["ip", "link", "set", "lo", "up"], timeout=30, check=False).returncode == 0


def run_json(command: Sequence[str], *, seconds: float, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The JSON object in the last line of the command's output that is one."""
    for line in reversed(run(command, seconds=seconds, environment=environment).splitlines()):
        if line.startswith("{"):
            with contextlib.suppress(ValueError):
                found = json.loads(line)
                if isinstance(found, dict):
                    return found
    raise RunError("it printed no JSON object")


def run(command: Sequence[str], *, seconds: float, environment: Mapping[str, str] | None = None) -> str:
    """The command's output; `RunError` if it fails or takes longer than `seconds`."""
    mark = uuid.uuid4().hex
    variables = {**os.environ, **ENVIRONMENT, **(environment or {}), _MARK: mark}
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, env=variables, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        )
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise RunError(f"no end after {seconds:.0f} s") from None
        finally:
            _end(process.pid, mark)
            process.wait()
        if process.returncode:
            errors.seek(0)
            said = [line.strip() for line in (errors.read() + output).splitlines() if line.strip()]
            raise RunError(f"exit code {process.returncode}: {said[-1][:300] if said else 'it said nothing'}")
        return output


@contextlib.contextmanager
def background(
    command: Sequence[str], environment: Mapping[str, str] | None = None, output: IO[str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Run a command during the block, with exactly this environment, and end it with all that it started."""
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        command, env={**(os.environ if environment is None else environment), _MARK: mark}, text=True,
        stdin=subprocess.DEVNULL, stdout=output or subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        _end(process.pid, mark)
        process.wait()


def _end(leader: int, mark: str) -> None:
    """End the session of a command, and whatever of it moved to a session of its own: only that carries the mark."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
    wanted = f"{_MARK}={mark}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)
