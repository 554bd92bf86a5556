"""Estimates how long a script of the user's own will take, from earlier runs of it: pure functions, as
`judge/estimate.py` has them for models."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from velodrome.job.job import Job
from velodrome.judge.estimate import Estimate

#: Seconds that a script is taken to run of which nothing is known.
_UNKNOWN_SCRIPT = 60.0
#: Options of scripts that say how long they train.
_LENGTHS = re.compile(r"--?(?:(?:max|num|n)[-_]?)?(?:train[-_]?)?(?:steps?|epochs?|iters?|iterations?|batches)")


def estimate_script(job: Job, earlier: Iterable[tuple[Job, Mapping[str, Any]]]) -> Estimate:
    """As long as runs of the same script took, in proportion to its steps or epochs; a minute if it never ran."""
    found = []
    for other, result in earlier:
        factor = _longer(other, job) if (other.script, other.workers) == (job.script, job.workers) else None
        if factor is not None:
            seconds = result["seconds"]
            found.append(seconds["startup"] + (seconds["total"] - seconds["startup"]) * factor)
    if not found:
        return Estimate(_UNKNOWN_SCRIPT, "guess")
    return Estimate(median(found), "runs", len(found))


def _longer(one: Job, other: Job) -> float | None:
    """How many times as long the second of two jobs of a script trains; None if its arguments do not tell."""
    first, second = (_arguments(job.script_args) for job in (one, other))
    if first.keys() != second.keys():
        return None
    factor = 1.0
    for name, value in first.items():
        if value == second[name]:
            continue
        try:
            factor *= float(second[name]) / float(value) if _LENGTHS.fullmatch(name) else math.nan
        except (ValueError, ZeroDivisionError):
            return None
    return factor if 0 < factor < math.inf else None


def _arguments(text: str) -> dict[str, str]:
    """Options with their values; other words by their place."""
    try:
        words = shlex.split(text)
    except ValueError:
        return {"": text}
    found: dict[str, str] = {}
    name = ""
    for word in words:
        if word.startswith("-") and not re.fullmatch(r"-[\d.]+", word):
            name, _, value = word.partition("=")
            found[name] = value
        else:
            found[name or f"word {len(found)}"] = word
            name = ""
    return found
