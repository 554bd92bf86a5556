"""Reasons to doubt the figures of a race: other programs on the machine, and speedups that are too good to be true.

Pure functions from rows to sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from velodrome.analysis.compare import Row
from velodrome.analysis.foreign import foreign_note
from velodrome.analysis.statistics import Ratio

#: A smaller change of a machine's speed is not worth a word.
LEAST_DRIFT = 0.1
#: Without repetitions the noise is not known: an efficiency up to this may be noise.
MOST_OF_ONE_RUN = 1.2
#: Up to this, an efficiency above 100 % is no reason for doubt.
_LEVEL = 1.05


def doubts(rows: Sequence[Row]) -> list[str]:
    """Sentences, without their full stop, on everything that makes these rows unreliable; empty if nothing does."""
    note = foreign_note([result for row in rows for result in row.results])
    return [*([note] if note else []), *(_too_good(row, *found) for row in rows if (found := _excess(row)))]


def as_sentence(reason: str) -> str:
    """A reason with its capital, unless it begins with the name of a configuration, and with its full stop."""
    first = reason.split(" ", 1)[0]
    return f"{reason if '/' in first else reason[0].upper() + reason[1:]}."


def drift_note(rates: Sequence[float]) -> str:
    """A sentence on how much the machine's own speed changed between calibrations; empty if it hardly did.

    Medians of three leave out a single calibration that something disturbed.
    """
    smooth = [median(rates[place : place + 3]) for place in range(len(rates) - 2)]
    if not smooth or (change := 1 - min(smooth) / max(smooth)) < LEAST_DRIFT:
        return ""
    return (f"The machine's speed changed by {100 * change:.0f} % during the race (calibration). Every repetition ran "
            "all configurations in a new order, so this alone makes no comparison unreliable.")


def is_too_good(place: Ratio) -> bool:
    """Whether an efficiency is above 100 % beyond noise: N workers do not do the work of more than N."""
    if not place.has_interval:
        return place.estimate > MOST_OF_ONE_RUN
    return place.above_one and place.estimate > _LEVEL


def _excess(row: Row) -> tuple[Ratio, str] | None:
    """An efficiency that is too good to be true, and its baseline in words."""
    if row.workers < 2:
        return None
    alone = row.scaling and row.scaling.divided_by(row.workers)
    for place, baseline in ((row.efficiency, "its engine's single run"), (alone, "its own run with one worker")):
        if place is not None and is_too_good(place):
            return place, baseline
    return None


def _too_good(row: Row, place: Ratio, baseline: str) -> str:
    return (f"{row.name} is {place.estimate * row.workers:.1f} times as fast as {baseline}, an efficiency of "
            f"{100 * place.estimate:.0f} %: more than 100 % is suspect, most likely something slowed the baseline; "
            "repeat both on an idle machine")
