"""Whether the figures of a race are plausible: speedups that are too good, scripts that train otherwise with more
workers, runs that did not run with the others of their repetition, stragglers, and a machine whose speed changed.

Pure functions from rows to facts and sentences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from velodrome.job.result import Result
from velodrome.job.script import divided_batch
from velodrome.judge.blocks import Block, fit, logarithms
from velodrome.judge.compare import Row, tasks_of
from velodrome.judge.conditions import slowdown
from velodrome.judge.measures import THROUGHPUT, Ratio
from velodrome.judge.phrases import counted, in_list

#: A smaller change of a machine's speed is not worth a word.
LEAST_DRIFT = 0.1
#: Without repetitions the noise is not known: an efficiency up to this may be noise.
MOST_OF_ONE_RUN = 1.2
#: Up to this, an efficiency above 100 % is no reason for doubt.
_LEVEL = 1.05
#: The next step where a script trains otherwise with more workers.
KEEP_BATCH = ("race again with an argument that keeps the global batch, as --script-args \"--batch-size {64/workers}\" "
              "does, with the name and number that your script has for it.")
#: The next step where a script sets its own seed, so that only its speed was repeated.
OTHER_SEEDS = ("give each repetition of the script another seed, by an argument such as --script-args "
               "\"--seed {seed}\" or from the variable VELODROME_SEED, and race again.")
#: Batches that differ by less are the same: the last one of an epoch is smaller.
_SAME_BATCH = 1.25


def implausible(rows: Sequence[Row]) -> list[str]:
    """Sentences, without their full stop, on configurations that are another training, or faster than can be."""
    others = other_trainings(rows)
    return [*others.values(), *(_too_good(row, *excess) for row in rows
                                if row.name not in others and (excess := _excess(row, _allowed(rows))))]


def _allowed(rows: Sequence[Row]) -> float:
    """What other programs may have slowed a baseline by is no reason for doubt: ranges allow for it."""
    return math.exp(max((slowdown(result) for row in rows for result in row.results), default=0.0))


def other_trainings(rows: Sequence[Row]) -> dict[str, str]:
    """Why scripts train otherwise with more workers, by the name of their rows: their steps take more examples."""
    fewest: dict[str, Row] = {}
    for row in sorted((row for row in rows if row.is_script), key=lambda row: row.workers):
        fewest.setdefault(row.configuration.key_without(frozenset({"workers"})), row)
    reasons = {}
    for row in rows if fewest else ():
        base = fewest.get(row.configuration.key_without(frozenset({"workers"})), row)
        mine, least = _examples_per_step(row), _examples_per_step(base)
        if base is not row and mine and least and mine > _SAME_BATCH * least:
            reasons[row.name] = (
                f"{row.name} trains on {mine:,.0f} examples a step, and with {counted(base.workers, 'worker')} it is "
                f"{least:,.0f}: that is not the same training, so accuracy and speed do not compare; keep the global "
                f"batch by an argument such as {divided_batch(str(row.configuration.fields.get('script_args') or ''))}"
            )
    return reasons


def suspects(rows: Sequence[Row]) -> dict[str, str]:
    """What to write beside speedup and scaling of rows that they do not hold for, by name."""
    implausible = {row.name: "implausible" for row in rows if _excess(row, _allowed(rows))}
    return implausible | dict.fromkeys(other_trainings(rows), "not the same training")


def _examples_per_step(row: Row) -> float | None:
    """Examples that all workers of a script train on in a step, as it reported them."""
    examples, steps = row.mean("examples_per_second"), row.mean("batches_per_second")
    return examples / steps if examples and steps else None


def one_seed_note(names: Sequence[str]) -> str:
    """A sentence, without its full stop, on scripts whose repetitions are one training; empty if there is none."""
    if not names:
        return ""
    return (f"all repetitions of {in_list(list(names))} reported the same figures, as a script does that sets its own "
            "seed, so they show the quality of one training only")


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
    return result.started or -math.inf


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
    blocks: list[Block] = sorted({block for measured in values for block in measured})
    if len(rows) < 2 or len(blocks) < 3:
        return []
    logs = logarithms(values)
    blamed = _blamed(logs, fit(logs[None]).stragglers[0])
    plain = np.where(blamed, math.nan, logs)
    with np.errstate(all="ignore"):
        # Relative to its configuration, and to what the others did in this repetition.
        own = plain - _mean(plain, 1)[:, None]
        expected = _mean(plain, 1)[:, None] + _mean(own, 0)[None, :]
    return [
        Straggler(rows[row].name, int(block) + 1, math.exp(logs[row, block] - expected[row, block]))
        for row, block in zip(*np.nonzero(blamed), strict=True) if math.isfinite(expected[row, block])
    ]


def _blamed(logs: np.ndarray, straggling: np.ndarray) -> np.ndarray:
    """Of the runs of one repetition those that differ from their own configuration: two alone seem equally far off."""
    with np.errstate(all="ignore"):
        off = np.abs(logs - np.nanmedian(logs, axis=1, keepdims=True))
    largest = np.where(straggling, off, 0.0).max(0)
    return np.asarray(straggling & (off >= largest / 2))


def _mean(values: np.ndarray, axis: int) -> np.ndarray:
    counts = np.maximum((~np.isnan(values)).sum(axis), 1)
    means: np.ndarray = np.nansum(values, axis) / counts
    return means


def straggler_note(rows: Sequence[Row]) -> str:
    """A sentence, without its full stop, on the rate of stragglers and which they are; empty if there is none."""
    outliers = stragglers(rows)
    if not outliers:
        return ""
    total = sum(row.runs for row in rows)
    worst = sorted(outliers, key=lambda straggler: -abs(math.log(straggler.factor)))
    names = ", ".join(map(str, worst[:_NAMED])) + (f" and {len(outliers) - _NAMED} more" if outliers[_NAMED:] else "")
    what, who = ("was a straggler", "It is") if len(outliers) == 1 else ("were stragglers", "They are")
    return (f"{len(outliers)} of {total} runs {what} ({100 * len(outliers) / total:.0f} %): {names}. {who} left out "
            "of ratios and verdicts; the means in results tables include all runs")
