"""Objectives: the quantity that decides for every configuration, and which configurations are eligible.

An objective turns rows into candidates; `recommend` decides among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cached_property
from statistics import fmean
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from velodrome.errors import BadRequest
from velodrome.job.job import Target
from velodrome.judge.accuracy_contest import accuracy_contest, limited_by_test_set
from velodrome.judge.accuracy_guard import Guarded, guard
from velodrome.judge.attempts import Attempts, contest_of_attempts, prices_of, times_to
from velodrome.judge.blocks import error_of_look, fit
from velodrome.judge.compare import Row, measure_of
from velodrome.judge.configuration import Baselines
from velodrome.judge.decide import Contest, Outcome, Standing, contest_of, decide
from velodrome.judge.foreign import slowdown
from velodrome.judge.lead import Kind, Lead, Scale
from velodrome.judge.margins import TOLERANCE, Margins
from velodrome.judge.measures import QUALITIES, Measure, own_qualities
from velodrome.judge.paired import logarithms
from velodrome.judge.repetition import Block
from velodrome.judge.statistics import Spread
from velodrome.tasks.base import Better, Metric
from velodrome.tasks.registry import task_of_result

ObjectiveName = Literal["time-to-accuracy", "accuracy", "throughput", "cost"]
OBJECTIVES: tuple[str, ...] = get_args(ObjectiveName)
_KINDS: dict[str, Kind] = {"accuracy": "quality", "cost": "cost"}


@dataclass(frozen=True)
class Price:
    """Price of an instance per hour, and what counts as an instance: a process of the run or a host."""

    per_hour: float | None = None
    per: Literal["process", "host"] = "process"


@dataclass(frozen=True)
class Candidate:
    """A row with what its runs measured of the objective."""

    row: Row
    spread: Spread
    #: What counts in the contest, by repetition.
    blocks: Mapping[Block, float]
    #: All runs with what they cost, where some of the race were no success.
    attempts: Attempts | None = None
    #: For each repetition, by how much other programs may have slowed the run at most: a logarithm.
    slowed: Mapping[Block, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.row.name

    @property
    def value(self) -> float:
        """The mean of all runs, as tables have it; that of the runs of a lead is `Question.value`."""
        price = self.attempts.per_success if self.attempts is not None else None
        return self.spread.mean if price is None else price

    @property
    def count(self) -> int:
        """All runs."""
        return self.spread.count if self.attempts is None else self.attempts.tries

    @property
    def missed(self) -> bool:
        """Whether some of its runs were no success."""
        return self.attempts is not None and not self.attempts.always

    def mean_slowed(self, blocks: Iterable[Block] | None = None) -> float:
        """By how much other programs may have slowed its runs of these repetitions at most, on average: a logarithm."""
        found = [self.slowed.get(block, 0.0) for block in (self.blocks if blocks is None else blocks)
                 if block in self.blocks]
        return fmean(found) if found else 0.0

    @property
    def distributed(self) -> bool:
        """Whether it is spread over several workers or processes: one worker beside a parameter server is, too."""
        return self.row.workers > 1 or self.row.processes > 1


@dataclass(frozen=True)
class Compared:
    """The repetitions that two candidates are compared in, and how many there are with stragglers."""

    blocks: frozenset[Block]
    with_stragglers: int

    @property
    def count(self) -> int:
        return len(self.blocks)


@dataclass(frozen=True)
class Question:
    """An objective applied to rows: eligible candidates, the measure, and what was excluded and why."""

    objective: str
    candidates: tuple[Candidate, ...]
    better: Better
    #: Writes a value with its unit.
    text: Callable[[float], str]
    #: Sentences, without their full stop, on configurations that may not win and on what is not settled.
    notes: tuple[str, ...] = ()
    #: Why no configuration is eligible; empty if one is.
    no_candidates: str = ""
    #: What to do about it.
    way_out: str = ""

    #: Differences below this are too small to matter: a share, or points of accuracy where those decide.
    tolerance: float = TOLERANCE
    scale: Scale = "ratio"
    #: Every value counts as it is, stragglers too.
    exact: bool = False
    #: Where the contest is not in the candidates' blocks.
    contest: Contest | None = None
    #: What a run did that counts as a success: `reached accuracy>=0.97`.
    success: str = "finished"
    #: How many configurations were set aside because no run of theirs was one.
    never: int = 0
    #: How many were set aside because of their accuracy.
    less_accurate: int = 0
    #: What the worst of these measured, against the best.
    lost_accuracy: str = ""
    #: Candidates that seem to learn less than the best, which is not proven: `test accuracy 0.523 against 0.918`.
    seen_worse: Mapping[str, str] = field(default_factory=dict)
    #: One worker of a strategy that then trains just as its engine's `single` does, and that `single`, by name: for a
    #: user they are one answer, so they do not compete.
    twins: Mapping[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> Kind:
        """What a lead is in."""
        return _KINDS.get(self.objective, "speed")

    @property
    def better_word(self) -> str:
        return {"speed": "faster", "cost": "cheaper", "quality": "better"}[self.kind]

    @property
    def slowed(self) -> bool:
        """Whether other programs may have slowed some of the runs."""
        return any(amount > 0 for candidate in self.candidates for amount in candidate.slowed.values())

    @cached_property
    def idle(self) -> Question:
        """The question if other programs had slowed nothing: what they may have changed is the difference."""
        return replace(self, candidates=tuple(replace(candidate, slowed={}) for candidate in self.candidates))

    @property
    def idle_outcome(self) -> Outcome:
        return self.idle.standing.outcome

    @property
    def has_target(self) -> bool:
        """Whether runs may miss what decides."""
        return self.success != "finished"

    @cached_property
    def standing(self) -> Standing:
        """How the contest of the candidates stands; it speaks of them by their number."""
        return decide(self._contest())

    @cached_property
    def too_few_examples(self) -> int:
        """The size of a test set on which those that are left stay level however often they run; 0 if there is none."""
        if self.scale != "points" or self.contest is None or not limited_by_test_set(self.contest, self.standing):
            return 0
        results = [result for candidate in self.survivors for result in candidate.row.results]
        return min(int((result.get("test") or {}).get("total") or 0) for result in results)

    def _contest(self) -> Contest:
        contest = self.contest
        if contest is None:
            logs = logarithms([candidate.blocks for candidate in self.candidates])
            contest = contest_of(logs if self.better == "more" else -logs, self.tolerance, robust=not self.exact)
        return contest.with_slowed(self._slowed_at) if self.slowed else contest

    def _slowed_at(self, look: int) -> NDArray[np.float64]:
        """By how much other programs may have slowed each candidate in the first so many repetitions, at most."""
        blocks = self._blocks[:look]
        return np.array([candidate.mean_slowed(blocks) for candidate in self.candidates])

    def lead(self, first: Candidate, second: Candidate) -> Lead:
        """How much better the first is, whichever way is better."""
        return Lead.of(self.standing.lead(self.number(first), self.number(second)), self.scale)

    def _straggling_at(self, look: int) -> dict[str, frozenset[Block]]:
        """Of the first so many repetitions, those of each candidate, by name, that leads leave out as stragglers."""
        if self.exact or self.contest is not None:
            return {}
        logs = logarithms([candidate.blocks for candidate in self.candidates])
        found = fit(logs[None, :, :look]).stragglers[0]
        return {candidate.name: frozenset(block for block, out in zip(self._blocks, outs, strict=False) if out)
                for candidate, outs in zip(self.candidates, found, strict=True)}

    @cached_property
    def _blocks(self) -> list[Block]:
        """Every repetition."""
        return sorted({block for candidate in self.candidates for block in candidate.blocks})

    def compared(self, first: Candidate, second: Candidate) -> Compared:
        """The repetitions that a lead is of: those that both ran, until one beat the other, without stragglers."""
        standing = self.standing
        look = standing.look_of(self.number(first), self.number(second))
        early = set(self._blocks[:look])
        if self.scale == "points":  # accuracies are not compared within repetitions
            return Compared(frozenset(early), len(early))
        both = early & first.blocks.keys() & second.blocks.keys()
        straggling = self._straggling_at(look)
        out = frozenset[Block]().union(*(straggling.get(one.name, ()) for one in (first, second)))
        return Compared(frozenset(both - out), len(both))

    def value(self, candidate: Candidate, other: Candidate) -> float:
        """The mean of the runs that a lead over the other, or of the other, is of; where one was not always successful,
        that is what a success took it in all runs."""
        kept = self.compared(candidate, other).blocks
        values = tuple(value for block, value in candidate.blocks.items() if block in kept)
        if not values or candidate.attempts is not None or other.attempts is not None:
            return candidate.value
        return replace(candidate.spread, values=values).mean

    def ahead_in(self, first: Candidate, second: Candidate) -> tuple[int, int]:
        """In how many of the repetitions that both ran the first was better, and how many those are."""
        both = first.blocks.keys() & second.blocks.keys()
        sign = 1 if self.better == "more" else -1
        return sum(sign * first.blocks[block] > sign * second.blocks[block] for block in both), len(both)

    def amount(self, candidate: Candidate, other: Candidate | None = None) -> str:
        """What a candidate measured, with its unit, in the runs that are compared with the other, if there is one; per
        success where some of its runs were none."""
        if candidate.missed:
            return f"{self.per_success(candidate)} ({self.successes(candidate)})"
        return self.text(candidate.value if other is None else self.value(candidate, other))

    def successes(self, candidate: Candidate) -> str:
        """`reached accuracy>=0.97 in 4 of 5 runs`; empty where no success is asked for."""
        return "" if candidate.attempts is None else f"{self.success} in {candidate.attempts.count_text}"

    def per_success(self, candidate: Candidate) -> str:
        """`12.30 s of training per success`."""
        training = " of training" if self.objective == "time-to-accuracy" else ""
        amount = self.text(candidate.value).removesuffix(" a run").partition(" to ")[0]
        return f"{amount}{training} per success"

    def number(self, candidate: Candidate) -> int:
        """Where it stands among the candidates."""
        return next(number for number, other in enumerate(self.candidates) if other is candidate)

    @property
    def survivors(self) -> list[Candidate]:
        """The candidates that nobody has beaten, the one that seems best first."""
        standing = self.standing
        left = [self.candidates[number] for number in standing.survivors]
        left.sort(key=lambda one: self.number(one) != standing.leader)
        return left


def objective_of(objective: str | None, target: str | None, own: str | None) -> str:
    """What a race is judged by: as requested, else the time to its target if there is one, else throughput."""
    return objective or ("time-to-accuracy" if target or own else "throughput")


def target_of(objective: str, target: str | None, own: str | None) -> str | None:
    """The target that an objective is judged with: as requested; the race's own only for the time to it."""
    return target or (own if objective == "time-to-accuracy" else None)


def qualities_of(rows: Sequence[Row]) -> list[Measure]:
    """How good the models are, by every measure that runs report: a race may hold several tasks."""
    own = {measure.name: measure for row in rows for measure in own_qualities(row.results)}
    return [measure for measure in (*QUALITIES, *own.values()) if any(_decides(measure, row) for row in rows)]


def _decides(measure: Measure, row: Row) -> bool:
    """Whether it says how good a row's models are: a task may report others beside the metric that decides."""
    if measure.name not in row.spreads:
        return False
    named = row.results[0].get("task")  # results of earlier versions do not name it
    return not named or task_of_result(row.results[0]).metric.name == measure.name


def quality_of(rows: Sequence[Row]) -> Measure:
    """How good the models of one task are."""
    found = qualities_of(rows)
    return found[-1] if found else QUALITIES[0]


def metric_of(rows: Sequence[Row]) -> Metric:
    """The metric that decides among the models of one task."""
    metric = quality_of(rows).metric
    assert metric is not None, "every quality measures a metric"
    return metric


def accurate_enough(rows: Sequence[Row], margin: float | None = None) -> Guarded:
    """Rows that may win by speed or cost, with those that may not; `margin` replaces that of the task's metric."""
    metric = metric_of(rows)
    looks = max((row.runs for row in rows), default=0)
    return guard(rows, metric if margin is None else replace(metric, margin=margin), error_of_look(looks))


def _of_measure(rows: Sequence[Row], name: str) -> tuple[Candidate, ...]:
    read = measure_of(rows, name).read
    return tuple(Candidate(row, row.spreads[name], row.by_block(read)) for row in rows if name in row.spreads)


def _best_seen(rows: Sequence[Row], target: Target) -> str:
    """The closest value to a target that no run reached."""
    pick = max if target.comparison == ">=" else min
    seen = [
        (value, row.name)
        for row in rows for result in row.results for entry in result.get("history", ())
        if (value := entry.get(f"validation_{target.metric}")) is not None
    ]
    if not seen:
        return f"no run has a validation {target.metric}"
    value, name = pick(seen)
    return f"the best validation {target.metric} was {value:.4f}, by {name}"


def _per_success(
    rows: Sequence[Row], tried: Callable[[Row], Attempts], target: Target | None, text: str | None, tolerance: float
) -> tuple[tuple[Candidate, ...], dict[str, Any]]:
    """Candidates by what a success costs them, their contest, and words on those that had none."""
    found = [(row, tried(row)) for row in rows]
    missed = any(attempts.successes and not attempts.always for _, attempts in found)
    candidates = tuple(
        Candidate(row, Spread(tuple(values.values()), geometric=True), values, attempts if missed else None)
        for row, attempts in found
        if (values := {block: attempts.amounts[block] for block in sorted(attempts.succeeded)})
    )
    words: dict[str, Any] = {} if text is None else {"success": f"reached {text}"}
    if not candidates and target is not None:
        return (), words | {
            "no_candidates": f"no configuration reached {text}; {_best_seen(rows, target)}",
            "way_out": "train for more epochs, change the learning rate, or ask for a target that was reached",
        }
    if missed or any(attempts.cut for _, attempts in found):
        words["contest"] = contest_of_attempts([attempts for _, attempts in found if attempts.successes], tolerance)
    never = [f"{row.name} reached {text} in {attempts.count_text}" for row, attempts in found if not attempts.successes]
    if never and text is not None:
        words["never"] = len(never)
        words["notes"] = (f"{len(never)} of {len(rows)} configurations set aside: {never[0]}"
                          f"{', and others in none either' if never[1:] else ''}",)
    return candidates, words


def twins_of(rows: Sequence[Row]) -> dict[str, str]:
    """Configurations that train just as their engine's `single`, by name: one worker of an exact strategy, all else
    equal. Empty where nothing else would be left to compare."""
    baselines = Baselines(row.configuration for row in rows)
    names = {row.configuration.key: row.name for row in rows}
    found = {row.name: names[key] for row in rows
             if row.is_like_single and (key := baselines.single(row.configuration)) is not None}
    return found if len(rows) - len(found) > 1 else {}


def ask(
    rows: Sequence[Row], objective: str, target: str | None = None, price: Price | None = None,
    margins: Margins = Margins(), *, every: bool = False,  # noqa: B008 - frozen
) -> Question:
    """Make an objective ready for these rows, which were compared with the same target.

    With `every` all are candidates: also those that are less accurate, and one worker that trains just as `single`.
    """
    if objective not in OBJECTIVES:
        raise BadRequest(f"--objective {objective!r} is unknown: choose one of {', '.join(OBJECTIVES)}")
    parsed = Target.parse(target) if target else None
    twins = {} if every else twins_of(rows)
    rows = [row for row in rows if row.name not in twins]
    if objective == "time-to-accuracy":
        if parsed is None or target is None:
            raise BadRequest(
                "--objective 'time-to-accuracy' needs a target, and this race has none: add --target \"accuracy>=0.97\""
            )
        candidates, words = _per_success(rows, lambda row: times_to(row, parsed), parsed, target, margins.tolerance)
        found = Question(objective, candidates, "less", lambda value: f"{value:,.2f} s to {target}",
                         **words)
    elif objective == "accuracy":
        found = _accuracy(rows, margins)
    elif objective == "throughput":
        accurate = Guarded(tuple(rows), len(rows)) if every else accurate_enough(rows, margins.accuracy)
        found = Question(objective, _of_measure(accurate.eligible, "examples_per_second"), "more",
                         _rate, accurate.notes, less_accurate=len(accurate.aside), lost_accuracy=accurate.lost,
                         seen_worse=accurate.seen_worse)
        if not found.candidates and all(row.is_script for row in rows):
            found = _duration(accurate)
    else:
        found = _cost(rows, parsed, target, price or Price(), margins, every=every)
    if objective == "accuracy":  # what no other program changes
        return found
    timed = tuple(replace(candidate, slowed=candidate.row.by_block(slowdown)) for candidate in found.candidates)
    return replace(found, candidates=timed, twins=twins, tolerance=margins.tolerance)


def _rate(value: float) -> str:
    return f"{value:,.0f} examples/s" if value >= 10 else f"{value:.3g} examples/s"


def _duration(accurate: Guarded) -> Question:
    """Scripts that did not report how many examples they trained on: how long their runs took is all that is known."""
    aside = "no run reported examples, so the time of whole runs decides"
    return Question("throughput", _of_measure(accurate.eligible, "total_seconds"), "less",
                    lambda value: f"{value:,.2f} s in total",
                    (*accurate.notes, aside), less_accurate=len(accurate.aside), lost_accuracy=accurate.lost,
                    seen_worse=accurate.seen_worse)


def _accuracy(rows: Sequence[Row], margins: Margins) -> Question:
    quality, metric = quality_of(rows), metric_of(rows)
    candidates = _of_measure(rows, quality.name)
    found = Question(
        "accuracy", candidates, quality.better or "more", lambda value: f"{quality.heading} {quality.text(value)}",
    )
    if not metric.fraction:
        return found
    margin = metric.margin if margins.accuracy is None else margins.accuracy
    contest = accuracy_contest([candidate.row for candidate in candidates], metric, margin)
    return replace(found, contest=contest, scale="points", tolerance=margin)


def _cost(
    rows: Sequence[Row], target: Target | None, text: str | None, price: Price, margins: Margins, *, every: bool
) -> Question:
    guarded = target is None and not every
    accurate = accurate_enough(rows, margins.accuracy) if guarded else Guarded(tuple(rows), len(rows))
    factor = 1.0 if price.per_hour is None else price.per_hour
    candidates, words = _per_success(
        accurate.eligible, lambda row: prices_of(row, target, price.per, factor), target, text, margins.tolerance
    )
    if target is None:
        words |= {"notes": accurate.notes, "less_accurate": len(accurate.aside), "lost_accuracy": accurate.lost,
                  "seen_worse": accurate.seen_worse}

    def shown(value: float) -> str:
        if price.per_hour is None:
            return f"{value * 3600:,.1f} instance-seconds a run"
        return f"{Decimal(f'{value:.4g}'):f} a run"

    return Question("cost", candidates, "less", shown, **words)
