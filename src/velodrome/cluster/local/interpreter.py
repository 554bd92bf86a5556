"""Which Python runs an engine's processes on this machine."""

from __future__ import annotations

import sys
from pathlib import Path


def interpreter_of(engine: str) -> Path:
    """The interpreter of the environment that an engine is installed in."""
    return Path(sys.executable)
