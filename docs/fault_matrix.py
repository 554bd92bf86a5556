"""The fault matrix of docs/reference/faults.md: what each fault led to under each launcher, as the tests recorded it.

`VELODROME_RECORD=1 pytest tests/e2e/test_fault_matrix.py` runs the faults and records them in docs/faults.json, from
which `make docs` writes the page. Without the variable, the tests only check that each cell ends as it should.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from pathlib import Path
from typing import Any

FILE = Path(__file__).resolve().parent / "faults.json"
#: What is broken, and how the page calls it.
FAULTS = {
    "kill worker": "a worker is killed (SIGKILL)",
    "kill server": "a parameter server is killed",
    "kill chief": "the chief is killed",
    "kill daemon": "the host's daemon is killed",
    "pause": "a worker is suspended (SIGSTOP)",
    "partition": "a host is cut off from the others",
    "full disk": "the disk is full",
    "other version": "a host has another version of a package",
    "clock": "a host's clock is an hour off",
    "kill controller": "the command itself is killed (`kill -9`)",
}
#: Launchers in the order of the columns, with what cannot happen to them and why.
LAUNCHERS: dict[str, dict[str, str]] = {
    "emulated": {
        "kill daemon": "there is none",
        "other version": "all hosts share one installation",
        "clock": "all hosts share one clock",
    },
    "ssh": {},
    "slurm": {},
    "ray": {},
    "k8s": {},
}


def recorded() -> dict[str, dict[str, Any]]:
    """Launcher to fault to cell; a cell has `sentence`, `seconds` and `limit`."""
    found: dict[str, dict[str, Any]] = json.loads(FILE.read_text()) if FILE.exists() else {}
    return found


def record(launcher: str, fault: str, sentence: str, seconds: float, limit: float) -> None:
    """Note how a cell ended, if cells are being recorded."""
    assert launcher in LAUNCHERS, launcher
    assert fault in FAULTS, fault
    if not os.environ.get("VELODROME_RECORD"):
        return
    with FILE.open("r+") as locked:  # tests of two launchers may record at once
        fcntl.flock(locked, fcntl.LOCK_EX)
        cells = recorded()
        cells.setdefault(launcher, {})[fault] = {
            "sentence": stable(sentence), "seconds": round(seconds, 1), "limit": limit,
        }
        FILE.write_text(json.dumps(cells, indent=2, sort_keys=True) + "\n")


def stable(sentence: str) -> str:
    """A sentence without what differs from run to run."""
    sentence = re.sub(r"its last event was .* at step \d+", "its last event was …", sentence)
    sentence = re.sub(r"/tmp/\S*/(?=runs)", "", sentence)
    sentence = re.sub(r"(?<=--runs )/tmp/[^\s`)]*", "runs", sentence)
    sentence = re.sub(r"(its clock is \d{3})\d", r"\g<1>0", sentence)
    return re.sub(r"\(/tmp/[^)]*\)", "(the run's folder)", sentence)


def matrix_page() -> str:
    cells = recorded()
    parts = ["""# Faults

What a run ends with when something breaks, under each launcher. What is recorded here was caused for real by a test,
and ended within its limit with the sentence shown: which process on which host, and what happened. Nothing was left
running.
"""]
    for fault, title in FAULTS.items():
        parts.append(f"## {title[0].upper()}{title[1:]}\n")
        rows = ["| launcher | ended after | limit | with |", "|---|---|---|---|"]
        for launcher, impossible in LAUNCHERS.items():
            cell = cells.get(launcher, {}).get(fault)
            if cell is not None:
                sentence = cell["sentence"].replace("|", "\\|")
                rows.append(f"| {launcher} | {cell['seconds']:g} s | {cell['limit']:g} s | {sentence} |")
            elif fault in impossible:
                rows.append(f"| {launcher} | | | cannot happen: {impossible[fault]} |")
            else:
                rows.append(f"| {launcher} | | | not recorded yet |")
        parts.append("\n".join(rows) + "\n")
    return "\n".join(parts)
