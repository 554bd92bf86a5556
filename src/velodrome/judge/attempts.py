"""What a success costs: the time or price of all runs, crashed and unsuccessful ones included, per success.

Turns the runs of configurations into a contest for `judge/decide.py`, and says after which training time a run is ended
because it cannot win any more. Pure functions on plain data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from velodrome.job.result import Result
from velodrome.job.values import Target
from velodrome.judge.blocks import ERROR_RATE, Array, Block, Fit, Mask, fit
from velodrome.judge.compare import Row, has_crashed, tasks_of
from velodrome.judge.decide import Contest
from velodrome.judge.measures import reached_epoch, time_to_target
from velodrome.judge.phrases import counted

Counts = NDArray[np.int_]
#: The least number of successes that is divided by when a run is left out.
_LEAST = 0.5


@dataclass(frozen=True)
class Attempts:
    """What the runs of a configuration cost, by repetition, and which of them succeeded."""

    #: The cost of all runs of a repetition: one that crashed may have been run again.
    amounts: Mapping[Block, float]
    succeeded: frozenset[Block]
    #: The repetition of every run that did not succeed.
    failed: tuple[Block, ...] = ()
    #: Successes that were ended early, so that they cost at least what they did.
    cut: frozenset[Block] = frozenset()

    @property
    def tries(self) -> int:
        return len(self.succeeded) + len(self.failed)

    @property
    def successes(self) -> int:
        return len(self.succeeded)

    @property
    def always(self) -> bool:
        """Whether every run succeeded."""
        return not self.failed

    @property
    def per_success(self) -> float | None:
        """The expected cost of a success: all that was spent divided by the successes; None without one."""
        return math.fsum(self.amounts.values()) / self.successes if self.successes else None

    @property
    def count_text(self) -> str:
        """`4 of 5 runs`."""
        return f"{self.successes} of {counted(self.tries, 'run')}"


def attempts_of(row: Row, cost: Callable[[Result], float | None], lost: Callable[[Result], float]) -> Attempts:
    """The attempts of a row: `cost` is that of a success, or None; `lost` that of any other run.

    A run that was interrupted is no attempt. One that was ended early because it could not win any more counts as if
    it had succeeded then, or, if no run ever succeeded, as another that did not.
    """
    amounts: dict[Block, float] = {}
    succeeded, failed, cut = set(), [], []
    for place, (block, result) in enumerate(zip(row.blocks, (*row.results, *row.failures), strict=True)):
        finished = place < row.runs
        value = cost(result) if finished else None
        if value is not None:
            succeeded.add(block)
        elif finished or has_crashed(result):
            failed.append(block)
        elif result.ended_early:
            cut.append(block)
        else:
            continue
        amounts[block] = amounts.get(block, 0.0) + (lost(result) if value is None else value)
    if not succeeded:
        return Attempts(amounts, frozenset(), (*failed, *cut))
    if cut:  # what is known of all of them is that they take at least so long; more of one would only look like noise
        most = max(amounts[block] for block in cut)
        amounts |= {block: min(amounts[block], most) for block in succeeded}
    return Attempts(amounts, frozenset(succeeded).union(cut), tuple(failed), frozenset(cut))


def times_to(row: Row, target: Target) -> Attempts:
    """Training seconds to a target; a run that missed it costs all of its training, a crash all of its time."""

    def lost(result: Result) -> float:
        if result.ended_early:
            return sum(row.seconds for row in result.history)
        return (result.seconds.total if has_crashed(result) else result.seconds.train) or 0.0

    return attempts_of(row, lambda result: time_to_target(result, target), lost)


def instances(result: Result, per: Literal["process", "host"] = "process") -> int:
    """The number of instances to pay for: processes, or hosts."""
    return max(1, len({node.host for node in result.nodes} if per == "host" else result.nodes))


def instance_hours(result: Result, target: Target | None, per: Literal["process", "host"]) -> float | None:
    """Instances × hours of the whole run; with a target, until the end of the epoch that reached it."""
    seconds = result.seconds.total
    if target is not None:
        epochs = reached_epoch(result, target)
        if epochs is None:
            return None
        seconds = result.seconds.startup + sum(row.seconds + row.evaluate_seconds for row in result.history[:epochs])
    return None if not seconds else instances(result, per) * seconds / 3600


def prices_of(row: Row, target: Target | None, per: Literal["process", "host"], factor: float = 1.0) -> Attempts:
    """Instance-hours, times a price, to a target or of a whole run."""

    def cost(result: Result) -> float | None:
        hours = instance_hours(result, target, per)
        return None if hours is None else factor * hours

    def lost(result: Result) -> float:
        return factor * instances(result, per) * result.seconds.total / 3600

    return attempts_of(row, cost, lost)


def pseudo_values(amounts: Array, successes: Counts) -> Array:
    """Jackknife pseudo-values of the logarithm of cost per success: their scatter is its error.

    Their mean is the logarithm itself, without the jackknife's correction of its bias, which few runs overdo. The last
    axis are blocks, NaN where there was no attempt. Without a success all are NaN.
    """
    present = ~np.isnan(amounts)
    count = present.sum(-1, keepdims=True)
    spent = np.nansum(amounts, axis=-1, keepdims=True)
    won = successes.sum(-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        whole = np.log(spent) - np.log(won)
        without = np.log(spent - amounts) - np.log(np.maximum(won - successes, _LEAST))
        centre = np.nansum(np.where(present, without, 0.0), axis=-1, keepdims=True) / np.maximum(count, 1)
        values = np.where(count > 1, whole + (count - 1) * (centre - without), np.where(present, whole, np.nan))
    finite: Array = np.where(np.isfinite(values), values, np.nan)
    return finite


def contest_of_attempts(entries: Sequence[Attempts], tolerance: float) -> Contest:
    """A contest in cost per success, of which less is better.

    As long as every run succeeded, the runs are compared as any others. Once one has not, each configuration is
    represented by pseudo-values, none of them counts as a straggler, and what was claimed before a configuration first
    failed is withdrawn: nobody knew then that it can. One that has not failed yet may still do so: compared with one
    that failed, it is allowed for what that may cost.
    """
    amounts, won, lost = _tables(entries)
    failing: Mask = np.asarray(lost.any(1))

    def fit_at(look: int) -> Fit:
        spent = amounts[:, :look]
        if (lost[:, :look].any(1) != failing).any():
            return _unknown(*spent.shape)
        with np.errstate(divide="ignore", invalid="ignore"):  # zeros, and looks before the first success
            values = -pseudo_values(spent, won[:, :look]) if failing.any() else -np.log(spent)
            fitted = fit(np.where(np.isfinite(values), values, np.nan)[None], robust=not failing.any())
        unseen = _unseen(won[:, :look].sum(1), failing, _failures_cost(spent, won[:, :look]))
        # One that was ended early takes longer than it seems, nobody knows how much: it can lose, but not win.
        unseen[[bool(entry.cut) for entry in entries]] = np.inf
        return replace(fitted, unseen=unseen[None])

    return Contest(len(entries), amounts.shape[1], math.log1p(tolerance), fit_at)


def cost_of_unseen(successes: int, configurations: int) -> float:
    """By how much failures that have not happened yet may raise the cost of a success: a logarithm.

    A configuration that succeeds with chance p does so n times in a row with chance p to the power of n. So if it costs
    less even with 1 / p times the cost, with p to the power of n its share of the error rate, it seems cheaper than it
    is in no more than that share of races, after however many runs one looks.
    """
    return math.log(configurations / ERROR_RATE) / max(successes, 1)


def _unseen(successes: Counts, failing: Mask, failures: Array) -> Array:
    """What failures to come may cost a configuration that never failed, compared with one that did: (first, second).

    Two that never failed are compared by the time of runs that succeed, and what is claimed is about those. The same
    can be claimed of one that failed, without its failures: so what these cost is the most that is allowed for.
    """
    cost = np.array([cost_of_unseen(int(count), len(successes)) for count in successes])
    return np.where(~failing[:, None] & failing[None, :], np.minimum(cost[:, None], failures[None, :]), 0.0)


def _failures_cost(spent: Array, won: Counts) -> Array:
    """By how much the failures of each configuration raised its cost of a success: a logarithm."""
    with np.errstate(divide="ignore", invalid="ignore"):
        whole = np.nansum(spent, axis=1) / won.sum(1)
        good = np.nansum(np.where(won > 0, spent, np.nan), axis=1) / won.sum(1)
        raised: Array = np.maximum(np.nan_to_num(np.log(whole) - np.log(good), nan=np.inf), 0.0)
    return raised


def _tables(entries: Sequence[Attempts]) -> tuple[Array, Counts, Counts]:
    """What was spent, and how many runs succeeded and failed, by configuration and block.

    A comparison of two uses the blocks that both have. So that no failure is lost, one in a block that others lack
    counts in the last block that all have.
    """
    blocks = sorted({block for entry in entries for block in entry.amounts})
    amounts = np.array([[entry.amounts.get(block, np.nan) for block in blocks] for entry in entries])
    won = np.array([[int(block in entry.succeeded) for block in blocks] for entry in entries])
    lost = np.array([[entry.failed.count(block) for block in blocks] for entry in entries])
    common = np.flatnonzero(~np.isnan(amounts).any(0))
    if len(common):
        moved = (lost > 0) & np.isnan(amounts).any(0)
        for table in (amounts, won, lost):
            table[:, common[-1]] += np.where(moved, table, 0).sum(1)
            table[moved] = 0
        amounts[moved] = np.nan
    held = ~np.isnan(amounts).all(0)
    return amounts[:, held], won[:, held], lost[:, held]


def _unknown(configurations: int, blocks: int) -> Fit:
    """What is known where nothing may be claimed."""
    square = (1, configurations, configurations)
    return Fit(np.zeros(square), np.full(square, np.inf), np.ones(square), np.zeros((1, configurations, blocks), bool))


#: How many times as long as the longest run of the best a run may train.
FACTOR = 2.0


@dataclass(frozen=True)
class Limit:
    """Training seconds after which the next run of a configuration is ended, and who needs less."""

    seconds: float
    best: str
    longest: float
    target: Target
    #: Names of the configuration's finished runs.
    runs: frozenset[str]

    def reason(self, seconds: float) -> str:
        """Why a run that trained for so long was ended."""
        return (f"ended early: {seconds:.1f} s of training without {self.target}, which {self.best} reached in "
                f"{self.longest:.1f} s at most")


def limits(rows: Sequence[Row], target: Target) -> list[Limit]:
    """Limits for configurations that needed longer than that in every run so far.

    One that was fast in any run has none: it may be the best, and all of its runs are needed to show that.
    """
    return [limit for members in tasks_of(rows).values() for limit in _of_task(members, target)]


def _of_task(rows: Sequence[Row], target: Target) -> list[Limit]:
    times = {row.name: [time_to_target(result, target) for result in row.results] for row in rows}
    steady = {row.name: max(reached) for row in rows
              if (reached := [time for time in times[row.name] if time is not None]) and len(reached) == row.attempts}
    if not steady:
        return []
    best = min(steady, key=lambda name: steady[name])
    seconds = FACTOR * steady[best]
    return [
        Limit(seconds, best, steady[best], target, frozenset(result.run for result in row.results))
        for row in rows if all(time is None or time > seconds for time in times[row.name])
    ]
