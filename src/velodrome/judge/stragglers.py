"""Stragglers: runs far slower or faster than their configuration and repetition lead to expect, in words.

Verdicts and ratios leave them out: `judge/outliers.py` finds them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from velodrome.judge.blocks import fit
from velodrome.judge.compare import Row, tasks_of
from velodrome.judge.measures import THROUGHPUT
from velodrome.judge.paired import logarithms
from velodrome.judge.repetition import Block

#: The most that are named one by one.
_NAMED = 4


@dataclass(frozen=True)
class Straggler:
    """One such run: its configuration, its repetition, and its throughput relative to what was to be expected."""

    name: str
    repetition: int
    factor: float

    def __str__(self) -> str:
        apart = max(self.factor, 1 / self.factor)
        size = f"{apart:.1f} times" if apart >= 1.95 else f"{100 * (apart - 1):.0f} %"
        return f"{self.name} in repetition {self.repetition} ({size} {'slower' if self.factor < 1 else 'faster'})"


def stragglers(rows: Sequence[Row]) -> list[Straggler]:
    """The stragglers among the runs of all tasks."""
    return [straggler for members in tasks_of(rows).values() for straggler in _of_task(members)]


def _of_task(rows: Sequence[Row]) -> list[Straggler]:
    values = [row.by_block(THROUGHPUT.read) for row in rows]
    blocks: list[Block] = sorted({block for found in values for block in found})
    if len(rows) < 2 or len(blocks) < 3:
        return []
    logs = logarithms(values)
    found = _blamed(logs, fit(logs[None]).stragglers[0])
    plain = np.where(found, math.nan, logs)
    with np.errstate(all="ignore"):
        # Relative to its configuration, and to what the others did in this repetition.
        own = plain - _mean(plain, 1)[:, None]
        expected = _mean(plain, 1)[:, None] + _mean(own, 0)[None, :]
    return [
        Straggler(rows[row].name, int(block) + 1, math.exp(logs[row, block] - expected[row, block]))
        for row, block in zip(*np.nonzero(found), strict=True) if math.isfinite(expected[row, block])
    ]


def _blamed(logs: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Of the runs of one repetition those that differ from their own configuration: two alone seem equally far off."""
    with np.errstate(all="ignore"):
        off = np.abs(logs - np.nanmedian(logs, axis=1, keepdims=True))
    largest = np.where(found, off, 0.0).max(0)
    return np.asarray(found & (off >= largest / 2))


def _mean(values: np.ndarray, axis: int) -> np.ndarray:
    counts = np.maximum((~np.isnan(values)).sum(axis), 1)
    found: np.ndarray = np.nansum(values, axis) / counts
    return found


def straggler_note(rows: Sequence[Row]) -> str:
    """A sentence, without its full stop, on the rate of stragglers and which they are; empty if there is none."""
    found = stragglers(rows)
    if not found:
        return ""
    total = sum(row.runs for row in rows)
    worst = sorted(found, key=lambda one: -abs(math.log(one.factor)))
    names = ", ".join(map(str, worst[:_NAMED])) + (f" and {len(found) - _NAMED} more" if found[_NAMED:] else "")
    what, who = ("was a straggler", "It is") if len(found) == 1 else ("were stragglers", "They are")
    return (f"{len(found)} of {total} runs {what} ({100 * len(found) / total:.0f} %): {names}. {who} left out of "
            "ratios and verdicts; means in tables of results have all runs")
