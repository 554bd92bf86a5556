"""Stores the outputs of today as the expected ones: `python tests/golden/regenerate.py [NAMES OF TESTS, AS FOR -k]`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


def main(words: list[str]) -> int:
    if not words:
        for file in sorted((HERE / "expected").rglob("*.txt")):
            file.unlink()
    os.environ["VELODROME_REGENERATE_GOLDEN"] = "1"
    chosen = ["-k", " or ".join(words)] if words else []
    return int(pytest.main([str(HERE), "-q", "--durations=12", "-p", "no:cacheprovider", *chosen]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
