"""Compares two groups of configurations, such as two strategies, over everything else that a race varied.

Pure functions on rows. Both groups are compared where all else is equal, repetition by repetition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from velodrome.errors import BadRequest
from velodrome.judge.background_load import foreign_note
from velodrome.judge.blocks import RESOLUTION, Block
from velodrome.judge.caveats import as_sentence
from velodrome.judge.configuration import text_of, varied
from velodrome.judge.decide import Range
from velodrome.judge.lead import Lead, in_list
from velodrome.judge.objective import metric_of, quality_of
from velodrome.judge.question import Candidate, Question
from velodrome.judge.statistics import CONFIDENCE, t_quantile


@dataclass(frozen=True)
class Between:
    """Which of two groups is better, over everything else."""

    names: tuple[str, str]
    objective: str
    verdict: str
    why: str
    lead: Lead
    #: Sets of equal other fields in which both groups ran, and repetitions.
    cells: int
    repetitions: int
    #: What else a reader must know, as sentences.
    caveats: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        lead = self.lead
        return {
            "between": list(self.names), "objective": self.objective, "verdict": self.verdict, "why": self.why,
            "ratio": lead.estimate if lead.scale == "ratio" else None,
            "points": lead.estimate if lead.scale == "points" else None,
            "interval": None if lead.low is None else [lead.low, lead.high], "cells": self.cells,
            "repetitions": self.repetitions, "caveats": list(self.caveats),
        }


def between_tasks(questions: Mapping[str, Question], names: tuple[str, str]) -> dict[str, Between]:
    """Compare them for each task, by its name, that has runs of both."""
    found = {task: between(question, names) for task, question in questions.items()
             if all(any(map(_matcher(name), question.candidates)) for name in names)}
    if found:
        return found
    everywhere = [one for question in questions.values() for one in question.candidates]
    for name in names:
        _members(everywhere, name)
    raise BadRequest(f"--between {','.join(names)!r}: no data set and model was trained by both")


def between(question: Question, names: tuple[str, str]) -> Between:
    """Compare the candidates that two names stand for; the first is `names[0]`."""
    groups = [_members(question.candidates, name) for name in names]
    if shared := [one.name for one in groups[0] if one in groups[1]]:
        raise BadRequest(f"--between {','.join(names)!r}: {in_list(shared)} belongs to both; name two that differ")
    cells = _cells(groups)
    differences, slowed = _differences(question, cells)
    if not differences:
        raise BadRequest(f"--between {','.join(names)!r}: no repetition has runs of both with all else equal")
    lead = _lead(question, differences, slowed)
    first, second = names if lead.estimate >= lead.equal else names[::-1]
    shown = lead if lead.estimate >= lead.equal else lead.inverted()
    decided = shown.shown
    words = shown.plain(second, question.kind)
    alone = _lead(question, differences, (0.0, 0.0))
    by_load = not decided and (alone.shown or alone.refuted)
    doubt = "which other programs may have made" if by_load else "which may be chance"
    verdict = f"use {first}: it was {words}." if decided else (
        f"{first} was {words}, {doubt}." if not shown.is_level else f"{first} and {second} were tied.")
    span = f"{found} (95 % interval)" if (found := shown.range(question.kind)) else (
        "the range is not known with one repetition" if lead.low is None else "the range is too wide to tell")
    pairs = f"{len(cells)} pairs of configurations that differ in nothing else" if len(cells) > 1 else (
        "one pair of configurations")
    count = f"{len(differences)} repetition{'' if len(differences) == 1 else 's'}"
    groups = groups if first == names[0] else groups[::-1]
    return Between(names, question.objective, verdict, f"{span}, over {pairs}, in {count}.", lead,
                   len(cells), len(differences), _caveats(question, (first, second), groups))


def _caveats(question: Question, names: tuple[str, str], groups: Sequence[Sequence[Candidate]]) -> tuple[str, ...]:
    """What other programs used meanwhile, and that the models of one group are better."""
    rows = [one.row for group in groups for one in group]
    load = foreign_note([result for row in rows for result in row.results]) if question.slowed else ""
    found = [f"{load}, for which the range allows"] if load else []
    quality, metric = quality_of(rows), metric_of(rows)
    means = [[mean for one in group if (mean := one.row.mean(quality.name)) is not None] for group in groups]
    if question.objective != "accuracy" and all(means):
        first, second = map(fmean, means)
        better = max if metric.better == "more" else min
        if abs(first - second) > abs(metric.limit(best := better(first, second)) - best):
            found.append(f"{quality.heading} {quality.text(first)} of {names[0]} against {quality.text(second)} of "
                         f"{names[1]}")
    return tuple(map(as_sentence, found))


def _members(candidates: Sequence[Candidate], name: str) -> list[Candidate]:
    """The candidates that a name stands for: a strategy, an engine, `engine/strategy`, or `field=value`."""
    matches = _matcher(name)
    found = [one for one in candidates if matches(one)]
    if not found:
        known = sorted({one.row.label for one in candidates})
        if len(known) == 1:
            values = [one.row.configuration.fields for one in candidates]
            field = next(iter(varied(one.row.configuration for one in candidates)), "workers")
            known = list(dict.fromkeys(f"{field.replace('_', '-')}={text_of(fields.get(field))}" for fields in values))
        raise BadRequest(f"--between: no configuration of this race is {name!r}: name a strategy, an engine or "
                         f"field=value, for example {' or '.join(known[:3])}")
    return found


def _matcher(name: str) -> Callable[[Candidate], bool]:
    field, equals, value = name.partition("=")
    if equals:
        key = field.strip().replace("-", "_")
        return lambda one: text_of(one.row.configuration.fields.get(key)) == value.strip()
    return lambda one: name in (one.row.label, one.name, one.row.configuration.fields["engine"],
                                one.row.configuration.fields["strategy"])


def _cells(groups: Sequence[Sequence[Candidate]]) -> list[tuple[list[Candidate], list[Candidate]]]:
    """Members of both groups with all else equal; all of both together where nothing is."""
    fields = varied(one.row.configuration for group in groups for one in group)
    apart = {name for name in fields if not _values(groups[0], name) & _values(groups[1], name)}
    rest = [name for name in fields if name not in apart]

    def key(one: Candidate) -> tuple[str, ...]:
        return tuple(text_of(one.row.configuration.fields.get(name)) for name in rest)

    keys = dict.fromkeys(key(one) for one in groups[0])
    found = [([one for one in groups[0] if key(one) == each], [one for one in groups[1] if key(one) == each])
             for each in keys]
    matched = [cell for cell in found if cell[1]]
    return matched or [(list(groups[0]), list(groups[1]))]


def _values(group: Sequence[Candidate], name: str) -> set[str]:
    return {text_of(one.row.configuration.fields.get(name)) for one in group}


def _differences(
    question: Question, cells: Sequence[tuple[list[Candidate], list[Candidate]]]
) -> tuple[list[float], tuple[float, float]]:
    """First minus second of every repetition, over the cells that ran in it; and how much load may have slowed each."""
    blocks = sorted({block for cell in cells for group in cell for one in group for block in one.blocks})
    found = []
    for block in blocks:
        inside = [(first, second) for cell in cells
                  if (first := _mean(question, cell[0], block)) is not None
                  and (second := _mean(question, cell[1], block)) is not None]
        if inside:
            found.append(fmean(first - second for first, second in inside))
    slowed = tuple(fmean(one.mean_slowed() for cell in cells for one in cell[side]) for side in (0, 1))
    return found, (slowed[0], slowed[1])


def _mean(question: Question, group: Sequence[Candidate], block: Block) -> float | None:
    values = [one.blocks[block] for one in group if block in one.blocks]
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

