"""What the columns of the fault matrix on several hosts share: how a fault is caused, and what a run must end with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs"))
from fault_matrix import record

#: A script whose second process fills the disk of its host.
FILL = """
import os, time
with open(os.environ['VELODROME_FOLDER'] + '/big', 'wb') as stream:
    for _ in range(100 if os.environ['RANK'] == '1' else 0):
        stream.write(bytes(4 << 20)); stream.flush()
time.sleep(1)
"""
#: A job that a host with another version or clock must not run.
JOB = ("--engine", "torch", "--strategy", "ddp", "--workers", 2)


def sentence_of(errors: str) -> str:
    return next(line for line in errors.splitlines() if line.startswith("velodrome: ")).removeprefix("velodrome: ")


def ended_as(launcher: str, fault: str, sentence: str, took: float, limit: float, *parts: str) -> None:
    """The sentence names host and cause, and came within the limit."""
    for part in parts:
        assert part in sentence
    assert took < limit, sentence
    record(launcher, fault, sentence, took, limit)


def other_numpy(folder: Path) -> Path:
    """A folder for PYTHONPATH with metadata of another version of a package."""
    path = folder / "other" / "numpy-9.9.9.dist-info"
    path.mkdir(parents=True)
    (path / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 9.9.9\n")
    return path.parent


def reported_by_the_next_command(runs: Path) -> str:
    """What a command prints about a run whose own command was killed."""
    words = ["train", "--runs", runs, "--name", "next", "--epochs", 1]
    done = subprocess.run([sys.executable, "-m", "velodrome", *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    sentence = next(line for line in done.stderr.splitlines() if "was interrupted" in line)
    return f"no process is left, and the next command prints: {sentence}"
