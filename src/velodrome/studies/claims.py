"""The conclusions of a document, judged by our runs: agrees, disagrees, inconclusive, or not checkable here.

Pure functions on plain data, no input or output. Times and rates count only of runs whose workers have a core each;
accuracies and times of a training count only if it is as long as the published one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from velodrome.judge.blocks import FIRST_LOOK
from velodrome.judge.compare import Row
from velodrome.studies.contrasts import Contrasts, Lead
from velodrome.studies.format import (
    Check,
    Claim,
    Compare,
    Fields,
    Flattens,
    Largest,
    Level,
    Scales,
    Sense,
    fits,
    fits_any,
)
from velodrome.studies.plan import StudyPlan
from velodrome.studies.quantities import Quantity, quantity_named
from velodrome.studies.settings import Setting, other_experiment, row_of

Verdict = Literal["agrees", "disagrees", "inconclusive", "not checkable here"]
#: A claim falls with any of its parts, and stands only with all; so the first of these that a part has is the claim's.
_FALLING: tuple[Verdict, ...] = ("disagrees", "not checkable here", "inconclusive", "agrees")
#: In the order in which a reader wants them: what our runs refute is most interesting.
_SHOWN: tuple[Verdict, ...] = ("disagrees", "agrees", "inconclusive", "not checkable here")
#: What follows from the choice of engine and strategy: pairs of them may differ in these, too.
_OF_STRATEGIES = frozenset({"engine", "strategy", "framework", "consistency", "servers", "implementation"})
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
class _Question:
    """One comparison that a check asks for: a lead, and which sign of it the document claims."""

    label: str
    measure: str
    first: Setting
    #: None if a configuration is compared with a value.
    second: Setting | None
    sense: Sense
    factor: float = 1.0
    within: float = 0.0
    value: float = 0.0
    #: For speedups: the configurations with one worker of both.
    alone: tuple[Setting, Setting] | None = None
    #: Whether the claim stands without it, if it cannot be asked here.
    optional: bool = True


@dataclass(frozen=True)
class _Answer:
    verdict: Verdict
    text: str
    lead: Lead | None = None


def findings(plan: StudyPlan, rows: Sequence[Row], cores: int) -> list[Finding]:
    """Every claim of a study with its verdict, what our runs refute first."""
    asked = {place: [*_questions(claim, plan.settings)] for place, claim in enumerate(plan.study.claims)}
    runs = _Runs(plan, rows, cores)
    comparisons = sum(runs.reason(question) is None for questions in asked.values() for question in questions)
    contrasts = {
        measure: Contrasts(measure, rows, cores, comparisons)
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

    def reason(self, question: _Question) -> str | None:
        """Why a question cannot be asked of our runs; None if it can."""
        quantity = quantity_named(question.measure)
        for setting in (question.first, question.second, *(question.alone or ())):
            if setting is not None and (reason := self._unusable(setting, quantity)) is not None:
                return reason
        return None

    def _unusable(self, setting: Setting, quantity: Quantity) -> str | None:
        if setting.missing is not None:
            return setting.missing.partition(" (")[0]  # the plan has the whole sentence
        workers = _workers(setting)
        if quantity.timed and workers > self._cores:
            return f"{workers} workers with a core each are needed, but there are {self._cores} cores"
        if changed := other_experiment(setting, steady=quantity.steady):
            return f"our runs differ: {', '.join(changed)}"
        if self.row(setting) is None:
            return "it was not run at this scale"
        return None


def _questions(claim: Claim, settings: Sequence[Setting]) -> Iterator[_Question]:
    for check in claim.checks:
        among = [
            setting for setting in settings if fits_any(_fields(setting), check.where)
            and not any(fits_any(_fields(setting), excluded) for excluded in check.exceptions)
            and (not setting.added or _names_added(check))
        ]
        yield from _questions_of(check, among, [setting for setting in settings if not setting.added])


def _fields(setting: Setting) -> Fields:
    """The published fields of a configuration, and whether it was added to the study."""
    return {**setting.published, **({"added": True} if setting.added else {})}


def _names_added(check: Check) -> bool:
    """Whether a check is about configurations that were added to the study: all others leave them out."""
    return "added" in check.where or (isinstance(check, Compare | Largest) and "added" in check.of)


def _questions_of(check: Check, among: Sequence[Setting], settings: Sequence[Setting]) -> Iterator[_Question]:
    match check:
        case Compare():
            yield from _pairs(check, among, settings)
        case Largest():
            winners = [setting for setting in among if fits(_fields(setting), check.of)]
            others = [setting for setting in among if setting not in winners]
            for winner in winners:
                for other in others:
                    yield _Question(f"over {other.label}", check.measure, winner, other, "more")
        case Level():
            for setting in among:
                yield _Question(setting.label, check.measure, setting, None, check.sense, value=check.value,
                                within=check.within)
        case Scales():
            for series in _series(among):
                for count, setting in series.items():
                    if 1 < count <= check.to and 1 in series:
                        yield _Question(f"{setting.label} over one worker", "throughput", setting, series[1], "more",
                                        check.share * count, optional=count != check.to)
        case Flattens():
            for series in _series(among):
                if check.beyond in series and check.to in series:
                    yield _Question(
                        f"{series[check.to].label} over {check.beyond} workers", "throughput", series[check.to],
                        series[check.beyond], "less", check.share * check.to / check.beyond, optional=False,
                    )


def _pairs(check: Compare, among: Sequence[Setting], settings: Sequence[Setting]) -> Iterator[_Question]:
    """Configurations of both groups that differ in nothing else."""
    for first in among:
        if not fits(_fields(first), check.of):
            continue
        second = _partner(first, check.of, check.than, settings)
        if second is None:
            continue
        alone = None
        if check.measure == "speedup":
            singles = tuple(_with_one_worker(setting, settings) for setting in (first, second))
            if first.published.get("workers", 1) == 1 or singles[0] is None or singles[1] is None:
                continue
            alone = (singles[0], singles[1])
        yield _Question(first.label, check.measure, first, second, check.sense, check.factor, check.within, alone=alone)


def _partner(first: Setting, of: Fields, than: Fields, settings: Iterable[Setting]) -> Setting | None:
    fixed = {*of, *than}
    if fixed & {"engine", "strategy"}:
        fixed |= _OF_STRATEGIES
    fixed -= than.keys()
    wanted = {name: value for name, value in first.published.items() if name not in fixed} | than
    for setting in settings:
        names = {*wanted, *setting.published} - fixed
        if all(setting.published.get(name) == wanted.get(name) for name in names):
            return setting
    return None


def _with_one_worker(setting: Setting, settings: Iterable[Setting]) -> Setting | None:
    """The same configuration with one worker; where every worker comes with a server, with one of both."""
    wanted = ({**setting.published, "workers": 1}, {**setting.published, "workers": 1, "servers": 1})
    return next((each for each in settings if dict(each.published) in wanted), None)


def _series(settings: Sequence[Setting]) -> list[dict[int, Setting]]:
    """Configurations that differ in their number of workers alone, by that number; every worker may have a server."""
    alike: dict[str, list[Setting]] = {}
    for setting in settings:
        rest = {name: repr(value) for name, value in setting.published.items() if name not in ("workers", "servers")}
        alike.setdefault(repr(sorted(rest.items())), []).append(setting)
    series = []
    for group in alike.values():
        servers = dict.fromkeys(setting.published.get("servers") for setting in group)
        lines = [[setting for setting in group if setting.published.get("servers") == count] for count in servers]
        lines.append([setting for setting in group if setting.published.get("servers") == _workers(setting)])
        series += [{_workers(setting): setting for setting in line} for line in lines
                   if len(line) > 1 or len(group) == 1]
    return series


def _workers(setting: Setting) -> int:
    return int(setting.published.get("workers", 1))


def _judge(
    claim: Claim, questions: Sequence[_Question], runs: _Runs, contrasts: Mapping[str, Contrasts]
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


def _answer(question: _Question, runs: _Runs, contrasts: Contrasts) -> _Answer:
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
        if question.alone is not None:
            lead = _of_speedups(lead, question.alone, runs, contrasts)
        text = f"{question.label}: {lead.text()}"
        if lead.is_ratio:
            lead = lead.minus(math.log(question.factor))
    so = lead.is_so(question.sense, question.within)
    verdict: Verdict = "inconclusive" if so is None else "agrees" if so else "disagrees"
    if so is None:
        text += ", as published so far" if lead.seems(question.sense, question.within) else ", against it so far"
    return _Answer(verdict, text, lead)


def _of_speedups(lead: Lead, alone: tuple[Setting, Setting], runs: _Runs, contrasts: Contrasts) -> Lead:
    """The lead in throughput without that of one worker each."""
    one, other = (runs.row(setting) for setting in alone)
    assert one is not None, "the runs that it needs do not exist"
    assert other is not None, "the runs that it needs do not exist"
    back = contrasts.lead(other, one)
    return replace(lead.plus(back), looks=min(lead.looks, back.looks))
