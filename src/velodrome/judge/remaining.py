"""How much longer running jobs will take: from their progress, or, of a script, from what it reports."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from velodrome.events.models import ProgressEvent
from velodrome.job.job import Job
from velodrome.judge.estimate import Estimate, in_words


def steps_done(job: Job, progress: ProgressEvent, per_epoch: int) -> tuple[int, int]:
    """Steps that a job has done at a progress event, and its total; 0 if that is not known."""
    if job.script is not None:
        return progress.step, 0
    total = job.epochs * per_epoch
    return (progress.epoch - 1) * per_epoch + progress.step, min(total, job.steps) if job.steps else total


@dataclass(frozen=True)
class Progress:
    """A job of a race, while the race runs: what it was expected to take, and what it took."""

    expected: float
    ended: bool
    #: Of its training, from 0 to 1.
    share: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True)
class Remaining:
    """What is left of a race."""

    jobs: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.jobs} to go, about {in_words(self.seconds)}"


def remaining(jobs: Iterable[Progress]) -> Remaining:
    """Jobs to come and the seconds that they will take, corrected by how the ones so far did against expectation."""
    members = list(jobs)
    ended = [one for one in members if one.ended]
    spent, expected = sum(one.seconds for one in ended), sum(one.expected for one in ended)
    ahead = [one.expected * (1 - one.share) for one in members if not one.ended]
    return Remaining(len(ahead), sum(ahead) * (spent / expected if expected > 0 and spent > 0 else 1.0))


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
