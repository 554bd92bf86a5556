"""The command as a process of its own. Not in `conftest.py`: there are several of that name, and one is imported."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def start_velodrome(*words: object, cwd: Path | None = None, **environment: str) -> subprocess.Popen[str]:
    """Start the command as a process of its own, to be killed or interrupted."""
    return subprocess.Popen(
        [sys.executable, "-m", "velodrome", *map(str, words)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=cwd, start_new_session=True,
        env={**os.environ, **environment},
    )


@contextmanager
def served(runs: Path, *names: str) -> Iterator[str]:
    """The address of a server of these models."""
    server = start_velodrome("serve", *names, "--runs", runs, "--port", 0, "--no-browser")
    try:
        assert server.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:\d+", server.stdout.readline())
        assert found
        yield found[0]
    finally:
        server.send_signal(signal.SIGINT)
        assert server.wait(60) == 130
