"""The command as a process of its own. Not in `conftest.py`: there are several of that name, and one is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def start_velodrome(*words: object, cwd: Path | None = None, **environment: str) -> subprocess.Popen[str]:
    """Start the command as a process of its own, to be killed or interrupted."""
    return subprocess.Popen(
        [sys.executable, "-m", "velodrome", *map(str, words)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=cwd, start_new_session=True,
        env={**os.environ, **environment},
    )
