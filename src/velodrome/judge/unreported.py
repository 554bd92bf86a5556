"""What scripts of the user's own did not report, in words: such figures are unknown, and no verdict rests on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from velodrome.job.script import fields_in
from velodrome.judge.compare import Row
from velodrome.judge.lead import in_list

_UNTESTED = "figures of a test set"
#: Stands before the option that reads a figure from what a script printed.
PRINTED = "; of what it printed, "


def untested(result: Mapping[str, Any]) -> str:
    """What follows from a script that reported no figures of a test set."""
    history = [dict(epoch) for epoch in result.get("history") or ()]
    validated = any(name.startswith("validation_") and epoch[name] is not None for epoch in history for name in epoch)
    known = "known on validation data only" if validated else "unknown"
    return f"{_UNTESTED}: the quality of the model is {known}"


def _pattern(sentence: str) -> str:
    """Which option reads such a figure from what the script printed; empty if none is known."""
    _, found, option = sentence.partition(PRINTED)
    return f"{found}{option}" if found else ""


def unreported_note(rows: Sequence[Row]) -> str:
    """`not reported by the script: examples (throughput is unknown)`, without a full stop; empty if nothing lacks."""
    lacking: dict[str, list[str]] = {}
    for row in rows:
        for sentence in dict.fromkeys(
            # Results of earlier versions have a sentence that did not ask for validation.
            f"{untested(result)}{_pattern(one)}" if one.startswith(_UNTESTED) else one
            for result in row.results for one in result.get("not_reported") or ()
        ):
            lacking.setdefault(sentence, []).append(row.name)
    found = []
    grows = len({row.workers for row in rows}) > 1 and not all(
        "workers" in fields_in(str(row.configuration.fields.get("script_args") or "")) for row in rows)
    for sentence, names in lacking.items():
        what, _, follows = sentence.partition(": ")
        if what == "examples" and grows:
            follows += ", and so is whether the global batch grows with the workers, which is another training"
        whose = "" if len(names) == len(rows) else f" by {in_list(names)}"
        follows, _, option = follows.partition(PRINTED)
        found.append(f"{what}{whose} ({follows}){f': {option} of what it printed' if option else ''}")
    return f"not reported by the script: {'; '.join(found)}" if found else ""
