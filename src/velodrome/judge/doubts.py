"""Reasons to doubt the figures of a race: speedups that are too good to be true, scripts that train otherwise with more
workers, and runs that did not run with the others of their repetition.

Pure functions from rows to sentences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from velodrome.job.script import divided_batch
from velodrome.judge.compare import Row
from velodrome.judge.foreign import slowdown
from velodrome.judge.measures import Result
from velodrome.judge.repetition import Block
from velodrome.judge.statistics import Ratio

#: A smaller change of a machine's speed is not worth a word.
LEAST_DRIFT = 0.1
#: Without repetitions the noise is not known: an efficiency up to this may be noise.
MOST_OF_ONE_RUN = 1.2
#: Up to this, an efficiency above 100 % is no reason for doubt.
_LEVEL = 1.05
#: The next step where a script trains otherwise with more workers.
KEEP_BATCH = ("race again with an argument that keeps the global batch, as --script-args \"--batch-size {64/workers}\" "
              "does, with the name and number that your script has for it.")
#: Batches that differ by less are the same: the last one of an epoch is smaller.
_SAME_BATCH = 1.25


def doubts(rows: Sequence[Row]) -> list[str]:
    """Sentences, without their full stop, on configurations that are another training, or faster than can be."""
    others = other_trainings(rows)
    return [*others.values(), *(_too_good(row, *found) for row in rows
                                if row.name not in others and (found := _excess(row, _allowed(rows))))]


def _allowed(rows: Sequence[Row]) -> float:
    """What other programs may have slowed a baseline by is no reason for doubt: ranges allow for it."""
    return math.exp(max((slowdown(result) for row in rows for result in row.results), default=0.0))


def other_trainings(rows: Sequence[Row]) -> dict[str, str]:
    """Why scripts train otherwise with more workers, by the name of their rows: their steps take more examples."""
    fewest: dict[str, Row] = {}
    for row in sorted((row for row in rows if row.is_script), key=lambda row: row.workers):
        fewest.setdefault(row.configuration.key_without(frozenset({"workers"})), row)
    found = {}
    for row in rows if fewest else ():
        base = fewest.get(row.configuration.key_without(frozenset({"workers"})), row)
        mine, least = _examples_per_step(row), _examples_per_step(base)
        if base is not row and mine and least and mine > _SAME_BATCH * least:
            found[row.name] = (
                f"{row.name} trains on {mine:,.0f} examples a step, and with {_workers(base)} it is {least:,.0f}: that "
                "is another training, whose accuracy and speed do not compare; keep the global batch by an argument "
                f"such as {divided_batch(str(row.configuration.fields.get('script_args') or ''))}"
            )
    return found


def suspects(rows: Sequence[Row]) -> dict[str, str]:
    """What to write beside speedup and scaling of rows that they do not hold for, by name."""
    implausible = {row.name: "implausible" for row in rows if _excess(row, _allowed(rows))}
    return implausible | dict.fromkeys(other_trainings(rows), "another training")


def _examples_per_step(row: Row) -> float | None:
    """Examples that all workers of a script train on in a step, as it reported them."""
    examples, steps = row.mean("examples_per_second"), row.mean("batches_per_second")
    return examples / steps if examples and steps else None


def _workers(row: Row) -> str:
    return f"{row.workers} worker{'' if row.workers == 1 else 's'}"


def late_note(rows: Sequence[Row]) -> str:
    """A sentence, without its full stop, on configurations that mostly ran after their repetitions; empty if none did.

    Comparing within repetitions removes what changed on the machine only for those that ran in them. One or two late
    runs just scatter more; where most are late, all of the change would count as theirs.
    """
    began: dict[Block, float] = {}
    for row in rows:
        for block, result in zip(row.blocks, row.results, strict=False):
            began[block] = min(began.get(block, math.inf), _started(result))
    latest = {block: min((began[later] for later in began if later > block), default=math.inf) for block in began}
    counts = {row.name: (sum(_started(result) > latest[block]
                             for block, result in zip(row.blocks, row.results, strict=False)), row.runs)
              for row in rows}
    name, (late, runs) = max(counts.items(), key=lambda item: item[1][0] / item[1][1], default=("", (0, 1)))
    if 2 * late <= runs:
        return ""
    return (f"{late} of {runs} runs of {name} ran after later repetitions of others had begun, so machine drift biases "
            "these runs")


def _started(result: Result) -> float:
    return float(result.get("started") or -math.inf)


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


def _excess(row: Row, allowed: float) -> tuple[Ratio, str] | None:
    """An efficiency that is too good to be true, and its baseline in words."""
    if row.workers < 2:
        return None
    alone = row.scaling and row.scaling.divided_by(row.workers)
    for place, baseline in ((row.efficiency, "its engine's single run"), (alone, "its own run with one worker")):
        if place is not None and is_too_good(place.divided_by(allowed)):
            return place, baseline
    return None


def _too_good(row: Row, place: Ratio, baseline: str) -> str:
    why = ("either its batch is another one, or it trains on other data than with one worker, or something slowed the "
           "baseline; compare what they print" if row.is_script
           else "most likely something slowed the baseline; repeat both on an idle machine")
    return (f"{row.name} is {place.estimate * row.workers:.1f} times as fast as {baseline}, an efficiency of "
            f"{100 * place.estimate:.0f} %: more than 100 % is suspect, {why}")
