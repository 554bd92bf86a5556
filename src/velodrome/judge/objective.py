"""Objectives: the quantity that decides for every configuration, and which configurations are eligible.

An objective turns rows into candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from velodrome.errors import BadRequest
from velodrome.job.values import Target
from velodrome.judge.accuracy import has_one_seed
from velodrome.judge.accuracy_guard import Guarded, accuracy_contest, guard
from velodrome.judge.attempts import Attempts, contest_of_attempts, prices_of, times_to
from velodrome.judge.blocks import error_of_look
from velodrome.judge.compare import Row, measure_of, metric_of, quality_of
from velodrome.judge.conditions import slowdown
from velodrome.judge.configuration import Baselines
from velodrome.judge.criteria import OBJECTIVES, Criteria
from velodrome.judge.measures import Spread
from velodrome.judge.question import Candidate, Question


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
        for row in rows for result in row.results for entry in result.history
        if (value := entry.value(f"validation_{target.metric}")) is not None
    ]
    if not seen:
        return f"no run has a validation {target.metric}"
    value, name = pick(seen)
    return f"the best validation {target.metric} was {value:.4f}, by {name}"


def _per_success(
    rows: Sequence[Row], tried: Callable[[Row], Attempts], criteria: Criteria
) -> tuple[tuple[Candidate, ...], dict[str, Any]]:
    """Candidates by what a success costs them, their contest, and words on those that had none."""
    goal = criteria.goal
    found = [(row, tried(row)) for row in rows]
    missed = any(attempts.successes and not attempts.always for _, attempts in found)
    candidates = tuple(
        Candidate(row, Spread(tuple(values.values()), geometric=True), values, attempts if missed else None)
        for row, attempts in found
        if (values := {block: attempts.amounts[block] for block in sorted(attempts.succeeded)})
    )
    words: dict[str, Any] = {} if goal is None else {"success": f"reached {goal}"}
    if not candidates and goal is not None:
        return (), words | {
            "no_candidates": f"no configuration reached {goal}; {_best_seen(rows, Target.parse(goal))}",
            "fix": "train for more epochs, change the learning rate, or ask for a target that was reached",
        }
    if missed or any(attempts.cut for _, attempts in found):
        words["contest"] = contest_of_attempts([attempts for _, attempts in found if attempts.successes],
                                               criteria.tolerances.tolerance)
    never = [f"{row.name} reached {goal} in {attempts.count_text}" for row, attempts in found if not attempts.successes]
    if never and goal is not None:
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


def ask(rows: Sequence[Row], criteria: Criteria, *, every: bool = False) -> Question:
    """Make an objective ready for these rows, which were compared with the same target.

    With `every` all are candidates: also those that are less accurate, and one worker that trains just as `single`.
    """
    if criteria.chosen not in OBJECTIVES:
        raise BadRequest(f"--objective {criteria.chosen!r} is unknown: choose one of {', '.join(OBJECTIVES)}")
    twins = {} if every else twins_of(rows)
    rows = [row for row in rows if row.name not in twins]
    one_seed = tuple(row.name for row in rows if has_one_seed(row.results))
    if criteria.chosen == "accuracy":  # which no other program changes
        return replace(_accuracy(rows, criteria), one_seed=one_seed)
    by = {"time-to-accuracy": _time_to_target, "throughput": _throughput, "cost": _cost}[criteria.chosen]
    question = by(rows, criteria, every=every)
    timed = tuple(replace(candidate, slowed=candidate.row.by_block(slowdown)) for candidate in question.candidates)
    tolerance = criteria.tolerances.tolerance
    return replace(question, candidates=timed, twins=twins, one_seed=one_seed, tolerance=tolerance)


def _accuracy(rows: Sequence[Row], criteria: Criteria) -> Question:
    quality, metric = quality_of(rows), metric_of(rows)
    candidates = tuple(map(_one_training, _of_measure(rows, quality.name)))
    question = Question(
        "accuracy", candidates, quality.better or "more", lambda value: f"{quality.heading} {quality.text(value)}",
    )
    if not metric.fraction:
        return question
    margin = metric.margin if criteria.tolerances.accuracy is None else criteria.tolerances.accuracy
    contest = accuracy_contest([candidate.row for candidate in candidates], metric, margin)
    return replace(question, contest=contest, scale="points", tolerance=margin)


def _one_training(candidate: Candidate) -> Candidate:
    """A candidate whose repetitions are one training counts with the first of them."""
    if not has_one_seed(candidate.row.results):
        return candidate
    first = min(candidate.blocks)
    return replace(candidate, blocks={first: candidate.blocks[first]})


def _time_to_target(rows: Sequence[Row], criteria: Criteria, *, every: bool) -> Question:
    goal = criteria.goal
    if goal is None:
        raise BadRequest(
            "--objective 'time-to-accuracy' needs a target, and this race has none: add --target \"accuracy>=0.97\""
        )
    target = Target.parse(goal)
    candidates, words = _per_success(rows, lambda row: times_to(row, target), criteria)
    return Question("time-to-accuracy", candidates, "less", lambda value: f"{value:,.2f} s to {goal}", **words)


def _throughput(rows: Sequence[Row], criteria: Criteria, *, every: bool) -> Question:
    accurate = Guarded(tuple(rows), len(rows)) if every else accurate_enough(rows, criteria.tolerances.accuracy)
    candidates = _of_measure(accurate.eligible, "examples_per_second")
    if candidates or not all(row.is_script for row in rows):
        return Question("throughput", candidates, "more", _rate, accurate.notes, **_set_aside(accurate))
    # Scripts that did not report how many examples they trained on: how long their runs took is all that is known.
    note = "no run reported examples, so the time of whole runs decides"
    return Question("throughput", _of_measure(accurate.eligible, "total_seconds"), "less",
                    lambda value: f"{value:,.2f} s in total", (*accurate.notes, note), **_set_aside(accurate))


def _cost(rows: Sequence[Row], criteria: Criteria, *, every: bool) -> Question:
    price, goal = criteria.price, criteria.goal
    target = Target.parse(goal) if goal else None
    guarded = target is None and not every
    accurate = accurate_enough(rows, criteria.tolerances.accuracy) if guarded else Guarded(tuple(rows), len(rows))
    factor = 1.0 if price.per_hour is None else price.per_hour
    candidates, words = _per_success(
        accurate.eligible, lambda row: prices_of(row, target, price.per, factor), criteria
    )
    if target is None:
        words |= {"notes": accurate.notes, **_set_aside(accurate)}

    def shown(value: float) -> str:
        if price.per_hour is None:
            return f"{value * 3600:,.1f} instance-seconds a run"
        return f"{Decimal(f'{value:.4g}'):f} a run"

    return Question("cost", candidates, "less", shown, **words)


def _set_aside(accurate: Guarded) -> dict[str, Any]:
    """What a question knows of configurations that are not accurate enough, or may not be."""
    return {"less_accurate": len(accurate.aside), "lost_accuracy": accurate.lost, "seen_worse": accurate.seen_worse}


def _rate(value: float) -> str:
    return f"{value:,.0f} examples/s" if value >= 10 else f"{value:.3g} examples/s"
