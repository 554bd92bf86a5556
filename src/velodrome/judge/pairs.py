"""Comparisons of two: two runs with their repetitions, or two groups of a race over everything else that it varied.

Pure functions. Groups are compared where all else is equal, repetition by repetition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from velodrome.errors import BadRequest
from velodrome.job.result import Result
from velodrome.judge.accuracy import difference, scores_of
from velodrome.judge.accuracy_guard import TwoQualities
from velodrome.judge.blocks import RESOLUTION, Block
from velodrome.judge.candidates import ask
from velodrome.judge.choice import Commands
from velodrome.judge.conditions import load_note
from velodrome.judge.configuration import Configuration, text_of, varied
from velodrome.judge.decide import Range
from velodrome.judge.judge import Judgement
from velodrome.judge.measures import CONFIDENCE, QUALITIES, Measure, Ratio, Spread, measures_of, ratio, t_quantile
from velodrome.judge.phrases import Lead, as_sentence, counted, in_list, lead_json
from velodrome.judge.question import Candidate, Question
from velodrome.tasks.base import Metric

#: Measures that are judged.
_JUDGED = (*(measure.name for measure in QUALITIES), "examples_per_second", "train_seconds", "total_seconds")
_RATE = ("All of these statements hold together in 95 of 100 comparisons whose runs were not chosen by their results; "
         "only a race also accounts for rivals and for repeated checks (velodrome recommend).")


@dataclass(frozen=True)
class Line:
    """One measure of both."""

    measure: Measure
    #: What the runs of each measured; None where they have no value.
    spreads: tuple[Spread | None, Spread | None]

    @property
    def means(self) -> tuple[float | None, float | None]:
        first, second = (None if spread is None else spread.mean for spread in self.spreads)
        return first, second

    @property
    def ratio(self) -> Ratio | None:
        """A over B, with a 95 % interval for this measure alone."""
        return self.ratio_with(CONFIDENCE)

    def ratio_with(self, confidence: float) -> Ratio | None:
        """A over B; None where one of them has no value."""
        above, below = self.spreads
        return None if above is None or below is None else ratio(above, below, confidence)

    @property
    def judged(self) -> bool:
        """Whether a sentence says who is better in it."""
        place = self.ratio if self.measure.name in _JUDGED or self.measure.metric is not None else None
        return place is not None and place.has_interval


@dataclass(frozen=True)
class Pair:
    """A and B."""

    names: tuple[str, str]
    results: tuple[Sequence[Result], Sequence[Result]]
    differing: Mapping[str, tuple[Any, Any]]
    same: Mapping[str, Any]
    lines: tuple[Line, ...]

    def sentences(self) -> list[str]:
        """Which of the two is better in each measure, or why that cannot be decided or relied upon."""
        note = load_note([result for side in self.results for result in side])
        return [*self._judged(), *([f"Not reliable: {note}; repeat them on an idle machine."] if note else [])]

    def _judged(self) -> list[str]:
        counts = [len(side) for side in self.results]
        if min(counts) < 2:
            return [
                f"A is {self.names[0]}, B is {self.names[1]}. Not enough runs to decide whether one beats the other: "
                f"there are {counted(counts[0], 'run')} of A and {counted(counts[1], 'run')} of B, and at least two of "
                "each are needed."
            ]
        judged = [line for line in self.lines if line.judged]
        confidence = 1 - (1 - CONFIDENCE) / max(1, len(judged))  # all together as sure as one alone (Bonferroni)
        sentences = [self._sentence(line, confidence) for line in judged]
        return [*sentences, _RATE] if sentences else []

    def _sentence(self, line: Line, confidence: float) -> str:
        place, measure = line.ratio_with(confidence), line.measure
        assert place is not None
        if measure.metric is not None and measure.metric.fraction:
            return self._points(measure, measure.metric, confidence)
        between = f"ratio {place.estimate:.3f}, between {place.low:.3f} and {place.high:.3f}"
        if not place.above_one and not place.below_one:
            return f"{measure.heading}: no significant difference ({between})."
        wins = place.above_one if measure.better == "more" else place.below_one
        first, second = self.names if wins else reversed(self.names)
        return f"{measure.heading}: {first} beats {second} ({between})."

    def _points(self, measure: Measure, metric: Metric, confidence: float) -> str:
        """A fraction of the test examples is compared in points: seeds and a finite test set both leave doubt."""
        gap = difference(*(scores_of(side, metric.name, metric.fraction) for side in self.results))
        low, high = (100 * end for end in gap.interval(confidence))
        between = f"between {low:.1f} and {high:.1f}".replace("-", "−")
        if low <= 0 <= high:
            apart = f"{100 * gap.estimate:.1f}".replace("-", "−")
            return f"{measure.heading}: no significant difference (A − B is {apart} points, {between})."
        first, second = self.names if (low > 0) == (metric.better == "more") else reversed(self.names)
        apart = f"{100 * abs(gap.estimate):.1f}"
        return f"{measure.heading}: {first} beats {second} by {apart} points ({between})."

    def as_json(self) -> dict[str, Any]:
        return {
            "runs": list(self.names),
            "repetitions": [[result.run for result in side] for side in self.results],
            "differing": {name: list(values) for name, values in self.differing.items()},
            "measures": [
                {"name": line.measure.name, "values": list(line.means), "ratio": line.ratio and line.ratio.estimate,
                 "interval": [line.ratio.low, line.ratio.high] if line.ratio and line.ratio.has_interval else None}
                for line in self.lines
            ],
            "sentences": self.sentences(),
        }


def _spread(results: Sequence[Result], measure: Measure) -> Spread | None:
    values = tuple(value for result in results if (value := measure.read(result)) is not None)
    return Spread(values, measure.resolution(results[0]), measure.geometric) if values else None


def compare_pair(first: tuple[str, Sequence[Result]], second: tuple[str, Sequence[Result]]) -> Pair:
    """Put two named configurations, each with its finished repetitions, side by side."""
    fields = [Configuration.of(results[0]).fields for _, results in (first, second)]
    names = list(dict.fromkeys([*fields[0], *fields[1]]))
    differing = {name: (fields[0].get(name), fields[1].get(name)) for name in names
                 if fields[0].get(name) != fields[1].get(name)}
    lines = [Line(measure, (_spread(first[1], measure), _spread(second[1], measure)))
             for measure in measures_of([*first[1], *second[1]])]
    shared = ("dataset", "model", "engine", "strategy", "workers", "batch_size", "epochs", "optimizer", "learning_rate")
    return Pair(
        (first[0], second[0]), (first[1], second[1]), differing,
        {name: fields[0].get(name) for name in shared if name not in differing},
        tuple(line for line in lines if line.spreads != (None, None)),
    )


@dataclass(frozen=True)
class Between:
    """Which of two groups is better, over everything else."""

    names: tuple[str, str]
    objective: str
    verdict: str
    why: str
    #: What to do; empty where it is decided.
    next: str
    lead: Lead
    #: Sets of equal other fields in which both groups ran, and repetitions.
    cells: int
    repetitions: int
    #: What else a reader must know, as sentences.
    caveats: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "between": list(self.names), "objective": self.objective, "verdict": self.verdict, "why": self.why,
            "next": self.next, **lead_json(self.lead), "cells": self.cells, "repetitions": self.repetitions,
            "caveats": list(self.caveats),
        }


def between_tasks(judgement: Judgement, names: tuple[str, str]) -> dict[str, Between]:
    """Compare them for each task, by its name, that has runs of both; configurations that may not win count as well."""
    questions = {task.task: ask(task.rows, judgement.criteria, every=True) for task in judgement.tasks}
    commands = {task.task: task.commands for task in judgement.tasks}
    compared = {task: between(question, names, commands[task]) for task, question in questions.items()
             if all(any(map(_matcher(name), question.candidates)) for name in names)}
    if compared:
        return compared
    everywhere = [candidate for question in questions.values() for candidate in question.candidates]
    for name in names:
        _members(everywhere, name)
    raise BadRequest(f"--between {','.join(names)!r}: no data set and model was trained by both")


def between(question: Question, names: tuple[str, str], commands: Commands = Commands()) -> Between:  # noqa: B008
    """Compare the candidates that two names stand for; the first is `names[0]`."""
    groups = [_members(question.candidates, name) for name in names]
    if shared := [candidate.name for candidate in groups[0] if candidate in groups[1]]:
        raise BadRequest(f"--between {','.join(names)!r}: {in_list(shared)} belongs to both; name two that differ")
    cells = _cells(groups)
    differences, slowed = _differences(question, cells)
    if not differences:
        raise BadRequest(f"--between {','.join(names)!r}: no repetition has runs of both with all else equal")
    lead = _lead(question, differences, slowed)
    first, second = names if lead.estimate >= lead.equal else names[::-1]
    shown = lead if lead.estimate >= lead.equal else lead.inverted()
    decided = shown.shown
    words = shown.plain(second, question.wording)
    alone = _lead(question, differences, (0.0, 0.0))
    by_load = not decided and (alone.shown or alone.refuted)
    groups = groups if first == names[0] else groups[::-1]
    qualities = TwoQualities.of([[candidate.row for candidate in group] for group in groups])
    doubt = "which other programs may have caused" if by_load else "which may be chance"
    if shown.is_level and not decided:
        verdict = f"{first} and {second} were tied."
    elif decided and not question.objective.of_models and qualities.is_far_worse:
        verdict = f"{first} was {words}, but {qualities.against}."
    else:
        verdict = f"use {first}: it was {words}." if decided else f"{first} was {words}, {doubt}."
    span = f"{range_text} (95 % interval)" if (range_text := shown.range(question.wording)) else (
        "the range is not known with one repetition" if lead.low is None else "the range is too wide to tell")
    sizes = sorted({len(side) for cell in cells for side in cell})
    single_pair = "one pair of configurations" if sizes == [1] else (
        f"{len(groups[0])} and {len(groups[1])} configurations, whose means are compared")
    pairs = f"{len(cells)} pairs of configurations that differ in nothing else" if len(cells) > 1 else single_pair
    count = counted(len(differences), "repetition")
    looks = max(question.standing.looks, len(differences))
    how_to_fix = "" if decided else commands.more(max(looks + 3, 5), idle=question.slowed)
    return Between(names, question.objective.name, verdict, f"{span}, over {pairs}, in {count}.", how_to_fix, lead,
                   len(cells), len(differences), _caveats(question, (first, second), groups, qualities))


def _caveats(
    question: Question, names: tuple[str, str], groups: Sequence[Sequence[Candidate]], qualities: TwoQualities
) -> tuple[str, ...]:
    """The load of other programs, and whether the models of one group are more accurate."""
    rows = [candidate.row for group in groups for candidate in group]
    load = load_note([result for row in rows for result in row.results]) if question.slowed else ""
    caveats = [f"{load}, for which the range allows"] if load else []
    if not question.objective.of_models and qualities.differ:
        first, second = (qualities.quality.text(mean or 0.0) for mean in qualities.means)
        caveats.append(f"{qualities.quality.heading} {first} of {names[0]} against {second} of {names[1]}")
    return tuple(map(as_sentence, caveats))


def _members(candidates: Sequence[Candidate], name: str) -> list[Candidate]:
    """The candidates that a name stands for: a strategy, an engine, `engine/strategy`, or `field=value`."""
    matches = _matcher(name)
    members = [candidate for candidate in candidates if matches(candidate)]
    if not members:
        known = sorted({candidate.row.label for candidate in candidates})
        if len(known) == 1:
            values = [candidate.row.configuration.fields for candidate in candidates]
            field = next(iter(varied(candidate.row.configuration for candidate in candidates)), "workers")
            known = list(dict.fromkeys(f"{field.replace('_', '-')}={text_of(fields.get(field))}" for fields in values))
        raise BadRequest(f"--between: no configuration of this race is {name!r}: name a strategy, an engine or "
                         f"field=value, for example {' or '.join(known[:3])}")
    return members


def _matcher(name: str) -> Callable[[Candidate], bool]:
    field, equals, value = name.partition("=")
    if equals:
        key = field.strip().replace("-", "_")
        return lambda candidate: text_of(candidate.row.configuration.fields.get(key)) == value.strip()
    return lambda candidate: name in (candidate.row.label, candidate.name, candidate.row.configuration.fields["engine"],
                                      candidate.row.configuration.fields["strategy"])


def _cells(groups: Sequence[Sequence[Candidate]]) -> list[tuple[list[Candidate], list[Candidate]]]:
    """Members of both groups with all else equal; all of both together where nothing is."""
    fields = varied(candidate.row.configuration for group in groups for candidate in group)
    apart = {name for name in fields if not _values(groups[0], name) & _values(groups[1], name)}
    rest = [name for name in fields if name not in apart]

    def key(candidate: Candidate) -> tuple[str, ...]:
        return tuple(text_of(candidate.row.configuration.fields.get(name)) for name in rest)

    keys = dict.fromkeys(key(candidate) for candidate in groups[0])
    cells = [([candidate for candidate in groups[0] if key(candidate) == each],
              [candidate for candidate in groups[1] if key(candidate) == each]) for each in keys]
    matched = [cell for cell in cells if cell[1]]
    return matched or [(list(groups[0]), list(groups[1]))]


def _values(group: Sequence[Candidate], name: str) -> set[str]:
    return {text_of(candidate.row.configuration.fields.get(name)) for candidate in group}


def _differences(
    question: Question, cells: Sequence[tuple[list[Candidate], list[Candidate]]]
) -> tuple[list[float], tuple[float, float]]:
    """First minus second of every repetition, over the cells that ran in it; and how much load may have slowed each."""
    blocks = sorted({block for cell in cells for group in cell for candidate in group for block in candidate.blocks})
    differences = []
    for block in blocks:
        inside = [(first, second) for cell in cells
                  if (first := _mean(question, cell[0], block)) is not None
                  and (second := _mean(question, cell[1], block)) is not None]
        if inside:
            differences.append(fmean(first - second for first, second in inside))
    slowed = tuple(fmean(candidate.mean_slowed() for cell in cells for candidate in cell[side]) for side in (0, 1))
    return differences, (slowed[0], slowed[1])


def _mean(question: Question, group: Sequence[Candidate], block: Block) -> float | None:
    values = [candidate.blocks[block] for candidate in group if block in candidate.blocks]
    if question.scale != "points":
        values = [math.log(value) for value in values if value > 0]
    sign = 1 if question.better == "more" else -1
    return sign * fmean(values) if values else None


def _lead(question: Question, differences: Sequence[float], slowed: tuple[float, float]) -> Lead:
    """The mean difference with its interval, widened by what other programs may have changed."""
    estimate, count = fmean(differences), len(differences)
    reach = math.inf
    if count > 1:
        deviation = max(stdev(differences), RESOLUTION)
        reach = t_quantile((1 + CONFIDENCE) / 2, count - 1) * deviation / math.sqrt(count)
    return Lead.of(Range(estimate, estimate - reach - slowed[1], estimate + reach + slowed[0]), question.scale)


def groups_of(text: str) -> tuple[str, str]:
    """The two names of `--between A,B`."""
    names = [name.strip() for name in text.split(",")]
    if len(names) != 2 or not all(names) or names[0] == names[1]:
        raise BadRequest(f"--between {text!r}: name two groups, for example multi-worker-mirrored,parameter-server")
    return names[0], names[1]
