"""How much a run trained on, counted from its events: its result leaves this out, and the theses' formula needs it."""

from __future__ import annotations

from pathlib import Path

from velodrome import files
from velodrome.events.lines import LONGEST_LINE, MOST_STRANGE, event_files, parse_stored
from velodrome.events.models import EpochEvent


def examples_trained(folder: Path) -> int | None:
    """Examples (words of a text) that all workers together trained on over all epochs; None if no event counts them."""
    trained: dict[int, int] = {}
    for path in event_files(folder):
        strange = 0
        try:
            for line in files.read_lines(path, LONGEST_LINE, inside=folder):
                # Most lines are not worth parsing.
                if '"epoch"' in line and '"validation"' in line:
                    event = parse_stored(line)
                    if isinstance(event, EpochEvent):
                        trained[event.epoch] = event.train.total
                    strange += event is None
                    if strange > MOST_STRANGE:
                        break
        except OSError:
            continue
    return sum(trained.values()) or None
