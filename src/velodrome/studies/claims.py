"""The conclusions of a document, judged by our runs: agrees, disagrees, inconclusive, or not checkable here.

Pure functions on plain data, no input or output. Times and rates count only of runs that have a core for each of their
processes, or leave most of their cores idle; accuracies and times of a training count only if it is as long as the
published one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

from velodrome.judge.blocks import FIRST_LOOK
from velodrome.judge.compare import Row
from velodrome.judge.measures import BY_NAME
from velodrome.judge.phrases import counted
from velodrome.studies.contrasts import Contrasts, Lead
from velodrome.studies.format import Claim
from velodrome.studies.plan import StudyPlan
from velodrome.studies.quantities import Quantity, quantity_named
from velodrome.studies.questions import Question, cores_of, questions_of, workers_of
from velodrome.studies.settings import Setting, other_experiment, row_of

Verdict = Literal["agrees", "disagrees", "inconclusive", "not checkable here"]
#: A claim falls with any of its parts, and stands only with all; so the first of these that a part has is the claim's.
_FALLING: tuple[Verdict, ...] = ("disagrees", "not checkable here", "inconclusive", "agrees")
#: In the order in which a reader wants them: what our runs refute is most interesting.
_SHOWN: tuple[Verdict, ...] = ("disagrees", "agrees", "inconclusive", "not checkable here")
#: Share of all cores that the processes of a run may use and still not compete for them.
_IDLE = 0.25
#: Parts of a claim that its reason lists; the rest is counted.
_MOST_PARTS = 12


@dataclass(frozen=True)
class Finding:
    """A claim and whether our runs confirm it."""

    claim: Claim
    verdict: Verdict
    why: str

    @property
    def explanations(self) -> Sequence[str]:
        """What could explain that our runs disagree; empty if they do not."""
        return self.claim.explanations if self.verdict == "disagrees" else ()

    @property
    def sentence(self) -> str:
        because = ", because " if self.verdict == "not checkable here" else ": "
        return f"{self.verdict}{because}{self.why}"

    def as_json(self) -> dict[str, Any]:
        return {"claim": self.claim.text, "place": self.claim.place, "verdict": self.verdict, "why": self.why,
                "explanations": [*self.explanations]}


@dataclass(frozen=True)
class _Answer:
    verdict: Verdict
    text: str
    lead: Lead | None = None


def findings(plan: StudyPlan, rows: Sequence[Row], cores: int) -> list[Finding]:
    """Every claim of a study with its verdict, what our runs refute first."""
    asked = {place: [*questions_of(claim, plan.settings)] for place, claim in enumerate(plan.study.claims)}
    runs = _Runs(plan, rows, cores)
    counts = [sum(runs.reason(question) is None for question in questions) for questions in asked.values()]
    contrasts = {
        measure: Contrasts(measure, rows, cores, sum(counts), sum(map(bool, counts)))
        for measure in {question.measure for questions in asked.values() for question in questions}
    }
    judged = [_judge(claim, asked[place], runs, contrasts) for place, claim in enumerate(plan.study.claims)]
    return sorted(judged, key=lambda finding: _SHOWN.index(finding.verdict))


class _Runs:
    """Our runs of a study's configurations, and why one of them says nothing about a quantity."""

    def __init__(self, plan: StudyPlan, rows: Sequence[Row], cores: int) -> None:
        self._rows = {id(setting): row_of(setting, rows) for setting in plan.settings}
        self._cores = cores

    def row(self, setting: Setting) -> Row | None:
        return self._rows[id(setting)]

    def reason(self, question: Question) -> str | None:
        """Why a question cannot be asked of our runs; None if it can."""
        quantity = quantity_named(question.measure)
        for setting in (question.first, question.second, *chain.from_iterable(question.without)):
            if setting is not None and (reason := self._unusable(setting, quantity)) is not None:
                return reason
        return None

    def _unusable(self, setting: Setting, quantity: Quantity) -> str | None:
        if setting.missing is not None:
            return setting.missing.partition(" (")[0]  # the plan has the whole sentence
        row = self.row(setting)
        if quantity.timed and (needed := cores_of(setting)) > self._cores and not self._leaves_cores(row):
            workers = counted(workers_of(setting), "worker")
            servers = f" and {counted(needed - workers_of(setting), 'server')}" if needed > workers_of(setting) else ""
            return f"{workers}{servers} with a core each are needed, but there are {self._cores} cores"
        if changed := other_experiment(setting, steady=quantity.steady):
            return f"our runs differ: {', '.join(changed)}"
        if row is None:
            return "it was not run at this scale"
        return None

    def _leaves_cores(self, row: Row | None) -> bool:
        """Whether all processes of the runs together use so little that they hardly compete for a core."""
        used = [] if row is None else [BY_NAME["cpu_percent"].read(result) for result in row.results]
        return bool(used) and all(percent is not None and percent <= _IDLE * 100 * self._cores for percent in used)


def _judge(
    claim: Claim, questions: Sequence[Question], runs: _Runs, contrasts: Mapping[str, Contrasts]
) -> Finding:
    if claim.unchecked:
        return Finding(claim, "not checkable here", claim.unchecked)
    if not questions:
        return Finding(claim, "not checkable here", "this scale leaves out the configurations that it is about")
    reasons = [runs.reason(question) for question in questions]
    answers = [
        _answer(question, runs, contrasts[question.measure])
        for question, reason in zip(questions, reasons, strict=True) if reason is None
    ]
    missing = [reason for reason in reasons if reason is not None]
    needed = [reason for question, reason in zip(questions, reasons, strict=True) if reason and not question.optional]
    verdicts = {answer.verdict for answer in answers} | ({"not checkable here"} if needed or not answers else set())
    verdict = next(verdict for verdict in _FALLING if verdict in verdicts)
    return Finding(claim, verdict, _why(verdict, answers, [*needed, *missing], len(questions)))


def _why(verdict: Verdict, answers: Sequence[_Answer], missing: Sequence[str], count: int) -> str:
    """What our runs measured, and what is lacking to say more."""
    parts = [*dict.fromkeys(missing)][:2] if verdict == "not checkable here" else []
    decisive = [answer for answer in answers if answer.verdict == verdict] or answers
    shown = [answer.text for answer in decisive[:_MOST_PARTS]]
    if shown:
        parts.append(", ".join(shown) + (f" and {len(decisive) - _MOST_PARTS} more" if len(decisive) > _MOST_PARTS
                                         else ""))
    if missing and answers and verdict != "not checkable here":
        parts.append(f"{len(answers)} of {count} comparisons could be made here")
    if verdict == "inconclusive":
        parts.append(_open(answers))
    return "; ".join(parts)


def _open(answers: Sequence[_Answer]) -> str:
    """What would decide an open question."""
    leads = [answer.lead for answer in answers if answer.verdict == "inconclusive" and answer.lead is not None]
    if any(lead.looks < FIRST_LOOK for lead in leads):
        return f"it takes at least {FIRST_LOOK} runs of each: --repeat {FIRST_LOOK}"
    if any(lead.slowed for lead in leads):
        return "other programs used the cores, too: repeat it on an idle machine"
    return "it may be chance: add repetitions"


def _answer(question: Question, runs: _Runs, contrasts: Contrasts) -> _Answer:
    first = runs.row(question.first)
    second = runs.row(question.second) if question.second is not None else None
    assert first is not None, "the runs that it needs do not exist"
    rows = [row for row in (first, second) if row is not None]
    if not all(map(contrasts.measured, rows)):
        return _Answer("not checkable here", f"{question.label}: {contrasts.quantity.heading} was not measured")
    if second is None:
        lead = contrasts.level(first, question.value)
        value = contrasts.quantity.read(first, 1) or 0.0
        text = f"{question.label}: {contrasts.quantity.heading} {format(value, contrasts.quantity.form)}"
    else:
        lead = contrasts.lead(first, second)
        for pair in question.without:
            lead = _without(lead, pair, runs, contrasts)
        text = f"{question.label}: {lead.text()}"
        if lead.is_ratio:
            lead = lead.minus(math.log(question.factor))
    so = lead.is_so(question.sense, question.within)
    verdict: Verdict = "inconclusive" if so is None else "agrees" if so else "disagrees"
    if so is None:
        text += ", as published so far" if lead.seems(question.sense, question.within) else ", against it so far"
    return _Answer(verdict, text, lead)


def _without(lead: Lead, pair: tuple[Setting, Setting], runs: _Runs, contrasts: Contrasts) -> Lead:
    """A lead without that of another pair."""
    first, second = (runs.row(setting) for setting in pair)
    assert first is not None, "the runs that it needs do not exist"
    assert second is not None, "the runs that it needs do not exist"
    return lead.plus(contrasts.lead(second, first))
