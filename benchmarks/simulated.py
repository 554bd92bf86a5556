"""Simulated races with known answers, a batch at a time, judged by the product's own rule.

Speeds are logarithms: of a configuration, of its block, of the machine's drift, of noise. `follow` is a race that is
looked at after every repetition; each of its decisions is the one that `velodrome.judge.decide.decide` makes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from velodrome.judge.blocks import ERROR_RATE, Array, Mask, fit, margin, nominal
from velodrome.judge.decide import Margin, all_level, out, slowed_fit, step

#: The difference that is too small to matter, as a ratio: the default of `--tolerance`.
TOLERANCE = 0.05
#: Races that are computed at once: they fit into a processor's cache.
BATCH = 250
#: Drift is stated per this many full repetitions, and continues at that pace.
DRIFT_PERIOD = 5
STRAGGLER_SHARE, SLOWEST_STRAGGLER = 0.1, (1.3, 3.0)


@dataclass(frozen=True)
class World:
    """What is true of a race: how fast its configurations are, and what disturbs them. Shares, not per cent."""

    size: int
    noise: float
    #: How far the others are behind those that are best.
    lead: float = 0.0
    best: int = 1
    #: Whether each is behind the one before it by the lead, instead of all behind the first.
    ladder: bool = False
    drift: float = 0.0
    stragglers: float = 0.0
    missing: float = 0.0
    #: Deviation of what all runs of a repetition have in common.
    shared: float = 0.0
    #: How many configurations have more noise than the others, and how many times as much.
    noisy: int = 0
    times: float = 1.0
    #: Cores that other programs use during a run, on average, and whom that slows: the last so many configurations lose
    #: all of it, as the workers of a synchronous run do, and the others nothing.
    foreign: float = 0.0
    slowed: int = 0

    @property
    def undecided(self) -> bool:
        """Whether there is no single best, so that "use X" is always false."""
        return self.lead == 0 or self.best > 1

    def best_among(self, left: Mask) -> Mask:
        """In which races nobody is missing who is as good as the best: `left` is (race, configuration)."""
        return np.asarray(left[:, self.speeds() == 0].all(1))

    def speeds(self) -> Array:
        """Logarithms, the best first."""
        behind = np.arange(self.size) - self.best + 1
        steps = np.maximum(behind, 0) if self.ladder else behind > 0
        return -math.log1p(self.lead) * np.asarray(steps, float)

    def loads(self, draw: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """By how much other programs may have slowed each run at most, as the product bounds it: a logarithm."""
        if not self.foreign:
            return np.zeros(shape)
        return -np.log(1 - np.minimum(draw.uniform(0.0, 2 * self.foreign, shape), 0.99))

    def block(self, draw: np.random.Generator, before: Array, left: Mask, loads: Array | None = None) -> Array:
        """Speeds of one repetition, in random order: (race, configuration); NaN where a run is missing.

        `before` counts the runs that each race has made, `left` says who runs.
        """
        races = len(before)
        deviation = np.full(self.size, self.noise)
        deviation[self.size - self.noisy :] *= self.times
        place = np.where(left, draw.random((races, self.size)), np.inf).argsort(1).argsort(1)
        when = (before[:, None] + place) / (DRIFT_PERIOD * self.size)
        found = self.speeds() + deviation * draw.normal(size=place.shape) - np.log1p(self.drift * when)
        found += self.shared * draw.normal(size=(races, 1))
        if self.stragglers:
            slower = np.log(draw.uniform(*SLOWEST_STRAGGLER, size=place.shape))
            found -= np.where(draw.random(place.shape) < self.stragglers, slower, 0.0)
        if loads is not None:
            found[:, self.size - self.slowed :] -= loads[:, self.size - self.slowed :]
        if self.missing:
            found[draw.random(place.shape) < self.missing] = np.nan
        return np.where(left, found, np.nan)


@dataclass(frozen=True)
class Ends:
    """How the races of a world ended: one value per race, the first axis."""

    #: Whether anything that was said about who beats whom is wrong.
    false: Mask
    #: After how many repetitions that was first so; 0 if it never was.
    false_since: Array
    #: The best is left alone, and it is the best.
    right: Mask
    level: Mask
    #: Whether "level" was said of configurations that differ by more than the tolerance.
    wrong_level: Mask
    #: The best was found, or those that are left were called level, rightly, and the best is among them.
    answered: Mask
    #: Who is left: (race, configuration).
    survivors: Mask
    repetitions: Array
    runs: Array
    #: Time that the runs took, with that of an undisturbed run of the best as unit.
    seconds: Array

    @property
    def open(self) -> Mask:
        """Neither one left nor level; one that is left alone wrongly counts as false."""
        return ~(self.right | self.level | self.false)


def joined(parts: list[Ends]) -> Ends:
    names = Ends.__dataclass_fields__
    return Ends(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def follow(
    world: World,
    draw: np.random.Generator,
    races: int,
    repetitions: int,
    *,
    until_sure: bool,
    most_runs: int = 10**9,
    margin_at: Margin = margin,
) -> tuple[Ends, Array]:
    """Races looked at after every repetition, and their values: (race, configuration, block).

    With `until_sure` who is out does not run any more, and a race ends when it is decided or its next repetition would
    take more than `most_runs`; otherwise every configuration runs in every repetition. `margin_at` replaces the
    product's own margin.
    """
    size, speeds = world.size, world.speeds()
    apart = speeds[:, None] - speeds[None, :]
    values = np.full((races, size, repetitions), np.nan)
    loads = world.loads(draw, values.shape)
    alive, left = np.ones((races, size), bool), np.ones((races, size), bool)
    false, one, even, wrong_level = (np.zeros(races, bool) for _ in range(4))
    runs, seconds, taken, since = (np.zeros(races) for _ in range(4))
    for look in range(1, repetitions + 1):
        racing = left.any(1)
        if not racing.any():
            break
        values[:, :, look - 1] = block = world.block(draw, runs, left, loads[:, :, look - 1])
        runs += (~np.isnan(block)).sum(1)
        seconds += np.nansum(np.exp(-block), axis=1)
        taken[racing] = look
        found = fit(values[racing, :, :look])
        if world.foreign:
            ran = ~np.isnan(values[racing, :, :look])
            found = slowed_fit(found, (loads[racing, :, :look] * ran).sum(2) / np.maximum(ran.sum(2), 1))
        survive = alive[racing]
        reach, ahead = step(found, look, survive, math.log1p(TOLERANCE), margin_at)
        false[racing] |= ((ahead > 0) & (apart <= 0)).any((1, 2))
        since[false & (since == 0)] = look
        survive = survive & ~out(ahead)
        alive[racing] = survive
        same = all_level(found.estimate, reach, survive, math.log1p(TOLERANCE)) & (survive.sum(1) > 1)
        compared = survive[:, :, None] & survive[:, None, :]
        one[racing], even[racing] = survive.sum(1) == 1, same
        wrong_level[racing] = same & (compared & (np.abs(apart) > math.log1p(TOLERANCE))).any((1, 2))
        if until_sure:
            over = one | even | (runs + alive.sum(1) > most_runs)
            left = alive & ~over[:, None] & racing[:, None]
    right = one & alive[:, 0] & (not world.undecided)
    answered = right | (even & ~wrong_level & world.best_among(alive))
    return Ends(false, since, right, even, wrong_level, answered, alive, taken, runs, seconds), values


def simulated(
    world: World,
    seed: int,
    races: int,
    repetitions: int,
    *,
    until_sure: bool,
    most_runs: int = 10**9,
    margin_at: Margin = margin,
) -> Ends:
    """The ends of so many races; those of a seed are always the same."""
    draw = np.random.default_rng(seed)
    return joined([
        follow(world, draw, count, repetitions, until_sure=until_sure, most_runs=most_runs, margin_at=margin_at)[0]
        for count in batches(races)
    ])


def batches(races: int) -> Iterator[int]:
    for first in range(0, races, BATCH):
        yield min(BATCH, races - first)


def grid(world: World, draw: np.random.Generator, races: int, repetitions: int) -> Array:
    """The values of full grids: (race, configuration, block)."""
    everyone = np.ones((races, world.size), bool)
    before = [np.full(races, float(look * world.size)) for look in range(repetitions)]
    return np.stack([world.block(draw, runs, everyone) for runs in before], axis=2)


def grid_curve(
    world: World, seed: int, races: int, counts: Sequence[int], enough: float
) -> tuple[dict[int, float], float]:
    """How often a full grid of so many repetitions gives the right answer; and run-seconds of one repetition.

    The grid is looked at once, at its end, with the same fit and Bonferroni's margin for all pairs at the same error
    rate. Grids larger than one that is right often enough are taken to be right always.
    """
    draw = np.random.default_rng(seed)
    parts = [grid(world, draw, count, max(counts)) for count in batches(races)]
    found: dict[int, float] = {}
    for count in counts:
        if max(found.values(), default=0.0) >= enough:
            found[count] = 1.0
            continue
        found[count] = sum(answered_by_grid(world, values[:, :, :count]) for values in parts) / races
    seconds = sum(float(np.nansum(np.exp(-values[:, :, :DRIFT_PERIOD]))) for values in parts) / DRIFT_PERIOD
    return found, seconds / races


def answered_by_grid(world: World, values: Array) -> int:
    """How many grids give the right answer: who is not beaten is the best alone, or those who are not are level."""
    found, speeds, tolerance = fit(values), world.speeds(), math.log1p(TOLERANCE)
    apart = speeds[:, None] - speeds[None, :]
    distinct, place = np.unique(found.freedom.ravel(), return_inverse=True)
    quantiles = -stdtrit(distinct, ERROR_RATE / (world.size * (world.size - 1) / 2) / 2)
    with np.errstate(invalid="ignore"):
        reach = quantiles[place].reshape(found.error.shape) * found.error
    reach = np.where(np.isnan(reach), np.inf, reach)
    others = ~np.eye(world.size, dtype=bool)
    ahead = np.where(others & (found.estimate + reach >= tolerance), found.estimate - reach, -np.inf)
    left = ~out(ahead)
    one = (left.sum(1) == 1) & left[:, 0] & (not world.undecided)
    level = all_level(found.estimate, reach, left, tolerance) & (left.sum(1) > 1)
    wrong = (left[:, :, None] & left[:, None, :] & (np.abs(apart) > tolerance)).any((1, 2))
    return int((one | (level & ~wrong & world.best_among(left))).sum())


def coverage(world: World, seed: int, races: int, repetitions: int) -> float:
    """How often the plain 95 % interval of the first and the last, by their own runs, contains the true difference."""
    draw, inside = np.random.default_rng(seed), 0
    truth = world.speeds()[0] - world.speeds()[-1]
    for count in batches(races):
        found = fit(grid(world, draw, count, repetitions)[:, [0, -1]], plain=True)
        freedom = found.freedom[:, 0, 1]
        levels = np.array([nominal(one) for one in freedom])
        reach = -stdtrit(freedom, (1 - levels) / 2) * found.error[:, 0, 1]
        inside += int((np.abs(found.estimate[:, 0, 1] - truth) <= reach).sum())
    return inside / races
