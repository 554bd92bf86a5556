"""The questions of each objective: what decides for every configuration, and which configurations are eligible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from velodrome.catalog.registry import load
from velodrome.errors import BadRequest
from velodrome.job.values import Target
from velodrome.judge.accuracy import has_one_seed
from velodrome.judge.accuracy_guard import Guarded, accuracy_contest, guard
from velodrome.judge.attempts import Attempts, contest_of_attempts, prices_of, times_to
from velodrome.judge.blocks import error_of_look
from velodrome.judge.compare import Row, measure_of, metric_of, quality_of
from velodrome.judge.conditions import slowdown
from velodrome.judge.configuration import Baselines
from velodrome.judge.criteria import Criteria, Objective, objective_of
from velodrome.judge.measures import Spread
from velodrome.judge.question import Candidate, Question


def accurate_enough(rows: Sequence[Row], margin: float | None = None) -> Guarded:
    """Rows that may win by speed or cost, with those that may not; `margin` replaces that of the task's metric."""
    metric = metric_of(rows)
    looks = max((row.runs for row in rows), default=0)
    return guard(rows, metric if margin is None else replace(metric, margin=margin), error_of_look(looks))


def _measured(rows: Sequence[Row], name: str) -> tuple[Candidate, ...]:
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
    attempted = [(row, tried(row)) for row in rows]
    missed = any(attempts.successes and not attempts.always for _, attempts in attempted)
    candidates = tuple(
        Candidate(row, Spread(tuple(values.values()), geometric=True), values, attempts if missed else None)
        for row, attempts in attempted
        if (values := {block: attempts.amounts[block] for block in sorted(attempts.succeeded)})
    )
    words: dict[str, Any] = {} if goal is None else {"success": f"reached {goal}"}
    if not candidates and goal is not None:
        return (), words | {
            "no_candidates": f"no configuration reached {goal}; {_best_seen(rows, Target.parse(goal))}",
            "fix": "train for more epochs, change the learning rate, or ask for a target that was reached",
        }
    if missed or any(attempts.cut for _, attempts in attempted):
        words["contest"] = contest_of_attempts([attempts for _, attempts in attempted if attempts.successes],
                                               criteria.tolerances.tolerance)
    never = [f"{row.name} reached {goal} in {attempts.count_text}" for row, attempts in attempted
             if not attempts.successes]
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
    twins = {row.name: names[key] for row in rows
             if row.is_like_single and (key := baselines.single(row.configuration)) is not None}
    return twins if len(rows) - len(twins) > 1 else {}


def ask(rows: Sequence[Row], criteria: Criteria, *, every: bool = False) -> Question:
    """Make an objective ready for these rows, which were compared with the same target.

    With `every` all are candidates: also those that are less accurate, and one worker that trains just as `single`.
    """
    objective = objective_of(criteria.chosen)
    twins = {} if every else twins_of(rows)
    rows = [row for row in rows if row.name not in twins]
    one_seed = tuple(row.name for row in rows if has_one_seed(row.results))
    question: Question = load(objective.question)(objective, rows, criteria, every=every)
    if objective.timed:
        timed = tuple(replace(candidate, slowed=candidate.row.by_block(slowdown)) for candidate in question.candidates)
        question = replace(question, candidates=timed)
    return replace(question, one_seed=one_seed, twins=twins)


def of_accuracy(objective: Objective, rows: Sequence[Row], criteria: Criteria, *, every: bool) -> Question:
    """Which configuration has the best models; all are candidates."""
    quality, metric = quality_of(rows), metric_of(rows)
    candidates = tuple(map(_one_training, _measured(rows, quality.name)))
    question = Question(
        objective, candidates, quality.better or "more", lambda value: f"{quality.heading} {quality.text(value)}",
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


def of_time_to_target(objective: Objective, rows: Sequence[Row], criteria: Criteria, *, every: bool) -> Question:
    """Which configuration reaches the target first, misses counted; all are candidates that ever reach it."""
    goal = criteria.goal
    if goal is None:
        raise BadRequest(
            f"--objective {objective.name!r} needs a target, and this race has none: add --target \"accuracy>=0.97\""
        )
    target = Target.parse(goal)
    candidates, words = _per_success(rows, lambda row: times_to(row, target), criteria)
    return Question(objective, candidates, "less", lambda value: f"{value:,.2f} s to {goal}",
                    text_per_success=lambda value: f"{value:,.2f} s of training",
                    tolerance=criteria.tolerances.tolerance, **words)


def of_measure(objective: Objective, rows: Sequence[Row], criteria: Criteria, *, every: bool) -> Question:
    """Which configuration is the best in the objective's measure, of those that are accurate enough."""
    measure = measure_of(rows, objective.measure)
    accurate = Guarded(tuple(rows), len(rows)) if every else accurate_enough(rows, criteria.tolerances.accuracy)
    return Question(
        objective, _measured(accurate.eligible, measure.name), measure.better or "more",
        lambda value: f"{measure.text(value)} {measure.unit}".rstrip(), accurate.notes,
        tolerance=criteria.tolerances.tolerance, **_set_aside(accurate),
    )


def of_throughput(objective: Objective, rows: Sequence[Row], criteria: Criteria, *, every: bool) -> Question:
    """Which configuration trains on most examples per second, of those that are accurate enough."""
    question = replace(of_measure(objective, rows, criteria, every=every), text=_rate)
    if question.candidates or not all(row.is_script for row in rows):
        return question
    # Scripts that did not report how many examples they trained on: how long their runs took is all that is known.
    question = of_measure(replace(objective, measure="total_seconds"), rows, criteria, every=every)
    note = "no run reported examples, so the time of whole runs decides"
    return replace(question, objective=objective, text=lambda value: f"{value:,.2f} s in total",
                   notes=(*question.notes, note))


def of_cost(objective: Objective, rows: Sequence[Row], criteria: Criteria, *, every: bool) -> Question:
    """Which configuration is the cheapest, of those that reach the target, or are accurate enough without one."""
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

    def text(value: float) -> str:
        return f"{value * 3600:,.1f} instance-seconds" if price.per_hour is None else f"{Decimal(f'{value:.4g}'):f}"

    return Question(objective, candidates, "less", lambda value: f"{text(value)} a run", text_per_success=text,
                    tolerance=criteria.tolerances.tolerance, **words)


def _set_aside(accurate: Guarded) -> dict[str, Any]:
    """What a question knows of configurations that are not accurate enough, or may not be."""
    return {"less_accurate": len(accurate.aside), "lost_accuracy": accurate.lost, "seen_worse": accurate.seen_worse}


def _rate(value: float) -> str:
    return f"{value:,.0f} examples/s" if value >= 10 else f"{value:.3g} examples/s"
