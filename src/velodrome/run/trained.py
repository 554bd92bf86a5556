"""How much a run trained on, counted from its events: what its result leaves out and the theses' formula needs."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path


def examples_trained(folder: Path) -> int | None:
    """Examples (words of a text) that all workers trained on together, over all epochs; None if nothing says so."""
    trained: dict[int, int] = {}
    # A run that was started by hand has a file for each process.
    for path in (folder / "events.jsonl", *sorted(folder.glob("events-*.jsonl"))):
        with suppress(OSError), path.open(encoding="utf-8", errors="replace") as stream:
            for line in stream:
                if '"epoch"' in line and '"validation"' in line:
                    with suppress(ValueError, KeyError, TypeError):
                        event = json.loads(line[line.index("{"):])
                        if event["kind"] == "epoch":
                            trained[event["epoch"]] = int(event["train"]["total"])
    return sum(trained.values()) or None
