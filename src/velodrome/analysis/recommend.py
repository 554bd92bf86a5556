"""Recommends a configuration in three lines: verdict, why, next. The rules are in `docs/reference/numbers.md`.

Pure functions from rows to sentences; which configuration beats which is decided in `analysis/decide.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

from velodrome.analysis.advice import against_what, more_workers, one_is_enough
from velodrome.analysis.compare import Row, tasks_of
from velodrome.analysis.data_versions import data_note
from velodrome.analysis.doubts import KEEP_BATCH, as_sentence, doubts, late_note, other_trainings
from velodrome.analysis.fairness import configurations_of, crashes, labelled
from velodrome.analysis.lead import Lead, in_list
from velodrome.analysis.margins import Margins
from velodrome.analysis.objective import Candidate, Price, Question, ask, objective_of, target_of
from velodrome.analysis.one_worker import (
    baseline_is_out,
    default_among,
    effort,
    in_its_place,
    no_distribution,
    single_instead,
)
from velodrome.analysis.reliability import misses_note
from velodrome.analysis.settling import Settling, settling
from velodrome.analysis.unreported import unreported_note

#: What to do about figures that are not reliable.
_IDLE = ("repeat those runs on an idle machine, then ask again: `velodrome runs rm` removes them from the race, and "
         "the same `velodrome race` command runs what is missing, or with --until-sure what is needed to be sure.")
_TOGETHER = "add repetitions in which all run together: run the same race again with --until-sure or a larger --repeat."

Decision = Literal["use", "do-not-distribute", "level", "open", "alone", "nothing"]


@dataclass(frozen=True)
class Recommendation:
    """An answer in three lines, and the same for scripts."""

    objective: str
    decision: Decision
    verdict: str
    why: str
    next: str
    best: str | None = None
    rival: str | None = None
    #: How much better the best is than the rival.
    lead: Lead | None = None
    #: Further repetitions that would probably settle an open question; None if none would within reason.
    more_runs: int | None = None
    #: Whether distributing pays; None where that is open, or was not asked.
    distribute: bool | None = None
    #: What it would cost to settle an open question.
    settle: Settling | None = None
    #: Why the figures behind it are not reliable; empty if they are.
    doubts: tuple[str, ...] = ()
    #: Runs, failures and update size of every configuration, by name.
    configurations: Mapping[str, Mapping[str, int]] = field(default_factory=dict, repr=False)

    @property
    def reliable(self) -> bool:
        return not self.doubts

    @property
    def lines(self) -> tuple[str, str, str]:
        return f"Verdict: {self.verdict}", f"Why: {self.why}", f"Next: {self.next}"

    def as_json(self) -> dict[str, Any]:
        lead = self.lead
        ratio = lead if lead is not None and lead.scale == "ratio" else None
        return {
            "objective": self.objective, "decision": self.decision, "verdict": self.verdict, "why": self.why,
            "next": self.next, "best": self.best, "rival": self.rival, "distribute": self.distribute,
            "ratio": ratio and ratio.estimate, "points": lead.estimate if lead is not None and ratio is None else None,
            "interval": None if lead is None or lead.low is None else [lead.low, lead.high],
            "more_runs": self.more_runs, "settle": self.settle and self.settle.as_json(),
            "doubts": list(self.doubts), "reliable": self.reliable,
            "configurations": {name: dict(counts) for name, counts in self.configurations.items()},
        }


def recommend(
    rows: Sequence[Row], objective: str = "throughput", target: str | None = None, price: Price | None = None,
    failed: int = 0, margins: Margins = Margins(),  # noqa: B008 - frozen
    crashed: Mapping[str, int] = MappingProxyType({}),
) -> Recommendation:
    """Answer for rows compared with the same target.

    `failed` counts all runs that gave no result, `crashed` those of configurations that always crashed, by name.
    """
    found = _answer(rows, objective, target, price, margins)
    lacking, changed = unreported_note(rows), data_note(result for row in rows for result in row.results)
    notes = [found.why, changed, _unfinished(rows, failed, crashed), lacking and f"({as_sentence(lacking)})"]
    found = replace(found, why=" ".join(note for note in notes if note),
                    configurations=configurations_of(rows, crashed, target))
    by_name = {row.name: row for row in rows}
    best = by_name.get(found.best or "")
    if best is not None:
        found = replace(found, verdict=labelled(found.verdict, best, by_name.get(found.rival or ""), rows))
    return _marked(found)


def _answer(
    rows: Sequence[Row], objective: str, target: str | None, price: Price | None, margins: Margins
) -> Recommendation:
    if not rows:
        return Recommendation(objective, "nothing", "no run finished, so there is nothing to compare.", "",
                              "look at `velodrome runs list` and the logs, then run the same race again.")
    question = ask(rows, objective, target, price, margins)
    aside = f"({question.aside}.)" if question.aside else ""
    if not question.candidates:
        reason = question.no_candidates or f"no run measured what {objective} needs"
        return Recommendation(objective, "nothing", f"{reason}.", aside or "every finished run was looked at.",
                              f"{question.way_out or 'choose another objective'}.")
    found = _decide(question)
    notes = [found.why, _not_per_success(question, found), aside, _missing_baseline(question)]
    # How accurate a model becomes does not depend on how busy the machine is.
    if objective == "accuracy":
        return replace(found, why=" ".join(filter(None, notes)))
    members = [candidate.row for candidate in question.candidates]
    reasons, late, other = doubts(members), late_note(members), other_trainings(members)
    return replace(found, why=" ".join(filter(None, notes)), doubts=(*reasons, *([late] if late else [])),
                   next=KEEP_BATCH if other else _IDLE if reasons else _TOGETHER if late else found.next)


def _not_per_success(question: Question, found: Recommendation) -> str:
    if found.decision in ("open", "alone"):
        return ""
    chosen = next(candidate for candidate in question.candidates if candidate.name == found.best)
    return misses_note(question, chosen, found.lead)


def _marked(found: Recommendation) -> Recommendation:
    """The same recommendation, marked as not reliable if there are reasons to doubt its figures."""
    if found.reliable:
        return found
    return replace(
        found, verdict=f"not reliable: {found.verdict}",
        why=" ".join([*map(as_sentence, found.doubts), f"As measured: {found.why}"]),
    )


def verdict(
    rows: Sequence[Row], target: str | None = None, objective: str | None = None,
    margins: Margins = Margins(),  # noqa: B008 - frozen
) -> str:
    """One line for the end of a race with its own target, or one for each of its tasks."""
    objective = objective_of(objective, None, target)
    wanted = target_of(objective, None, target)
    answers = {task: recommend(members, objective, wanted, margins=margins) for task, members in tasks_of(rows).items()}
    lines = [f"Verdict{f' for {task}' if task else ''}: {answer.verdict}" for task, answer in answers.items()]
    return "\n".join(filter(None, [*lines, data_note(result for row in rows for result in row.results)]))


def _unfinished(rows: Sequence[Row], failed: int, crashed: Mapping[str, int]) -> str:
    """Which configurations crashed, and how many runs did not finish for other reasons."""
    notes = [found for found in (crashes(rows, crashed), _ended(rows)) if found]
    others = failed - sum(row.crashed + row.ended for row in rows) - sum(crashed.values())
    if others > 0:
        notes.append(f"{others} run{' was' if others == 1 else 's were'} left out because "
                     f"{'it' if others == 1 else 'they'} did not finish")
    if notes:
        return f"({'; '.join(notes)}.)"
    return "" if rows else "the race has no finished run."


def _ended(rows: Sequence[Row]) -> str:
    count = sum(row.ended for row in rows)
    what = "1 run was ended early and counts" if count == 1 else f"{count} runs were ended early and count"
    return f"{what} with the time until then: more could not have won" if count else ""


def _missing_baseline(question: Question) -> str:
    if any(not candidate.distributed for candidate in question.candidates):
        return ""
    return "Everything here was distributed, so whether distributing pays at all is not known."


def _decide(question: Question) -> Recommendation:
    if len(question.candidates) == 1:
        return _alone(question, question.candidates[0])
    outcome = question.standing.outcome
    if outcome == "open":
        return _open(question)
    return _level(question) if outcome == "level" else _use(question)


def _alone(question: Question, leader: Candidate) -> Recommendation:
    verdict = f"only {leader.name} can be judged, so there is nothing to compare it with."
    way_out = against_what(leader.row)
    others = "train the others for more epochs or with another learning rate, or"
    if question.never:
        verdict = f"only {leader.name} {question.success}, so there is nothing to compare it with."
        way_out = f"{others} ask for a target that they reach."
    elif question.less_accurate:
        whom = "the other is not" if question.less_accurate == 1 else f"none of {question.less_accurate} others is"
        verdict = f"use {leader.name}: {whom} accurate enough."
        way_out = f"{others} accept less accurate ones with --accuracy-margin."
    return Recommendation(
        question.objective, "alone", verdict, f"{_measured(question, leader)}.", way_out, leader.name,
    )


def _best(question: Question, candidates: Sequence[Candidate]) -> Candidate | None:
    """The one that seems best."""
    pick = max if question.better == "more" else min
    return pick(candidates, key=lambda candidate: candidate.value, default=None)


def _is_mixed(question: Question) -> bool:
    """Whether some of the candidates were distributed and some were not."""
    return len({candidate.distributed for candidate in question.candidates}) == 2


def _use(question: Question) -> Recommendation:
    """One is left: it has beaten all others."""
    winner = question.survivors[0]
    others = [candidate for candidate in question.candidates if candidate is not winner]
    mixed = _is_mixed(question)
    if mixed and not winner.distributed:
        rival = _best(question, [candidate for candidate in others if candidate.distributed])
        assert rival is not None
        chosen = single_instead(question, winner)
        ahead = _ahead(question, winner, rival, "the best distributed one")
        why = f"{_measured(question, winner)} is {ahead}, {_measured(question, rival)}."
        return Recommendation(
            question.objective, "do-not-distribute", f"{no_distribution([chosen])}: use {chosen.name}.",
            " ".join(filter(None, [why, in_its_place(question, winner, chosen)])),
            one_is_enough(question, chosen), chosen.name, rival.name, question.lead(chosen, rival), distribute=False,
        )
    runner = _best(question, others)
    assert runner is not None
    lead = question.lead(winner, runner)
    plain = _best(question, [candidate for candidate in others if not candidate.distributed])
    gain = ""
    if plain is not None and plain is not runner and winner.distributed:
        gain = f", {_ahead(question, winner, plain, plain.name)}, and"
    return Recommendation(
        question.objective, "use",
        f"use {winner.name}: the {question.praise} of {len(question.candidates)} configurations.",
        f"{_measured(question, winner)}{gain or ','} {_ahead(question, winner, runner, _next(others))}, "
        f"{_measured(question, runner)}.",
        more_workers(question, winner), winner.name, runner.name, lead, distribute=True if mixed else None,
    )


def _ahead(question: Question, first: Candidate, second: Candidate, called: str) -> str:
    """`62 % faster (at least 38 %) than the next`, and in which repetitions if one of them has more than the other."""
    words = question.lead(first, second).than(called, question.kind)
    both = len(first.blocks.keys() & second.blocks.keys())
    if first.attempts is not None or not both or both == max(len(first.blocks), len(second.blocks)):
        return words
    return f"{words} in the {both} repetitions that both ran"


def _next(others: Sequence[Candidate]) -> str:
    return "the other" if len(others) == 1 else "the next"


def _level(question: Question) -> Recommendation:
    """Those that are left are surely closer to one another than matters: the plainest is recommended."""
    left = question.survivors
    chosen = min(left, key=lambda candidate: effort(candidate.row))
    rival = left[0] if chosen is not left[0] else _best(question, left[1:])
    assert rival is not None
    names = in_list([candidate.name for candidate in left if candidate is not chosen])
    lead = question.lead(chosen, rival)
    why = (f"{_measured(question, chosen)} against {_measured(question, rival)}: {lead.size} apart, surely less than "
           f"{_tolerance(question)}.")
    if _is_mixed(question) and not chosen.distributed:
        return Recommendation(
            question.objective, "level", f"{no_distribution([chosen])}: use {chosen.name}; it is level with {names}.",
            why, one_is_enough(question, chosen), chosen.name, rival.name, lead, distribute=False,
        )
    return Recommendation(
        question.objective, "level", f"use {chosen.name}: level with {names}, and none of them is simpler.", why,
        more_workers(question, chosen), chosen.name, rival.name, lead,
        distribute=True if _is_mixed(question) else None,
    )


def _open(question: Question) -> Recommendation:
    """Several are left, and more runs are needed to tell them apart."""
    left = question.survivors
    leader = left[0]
    rival = _best(question, left[1:])
    assert rival is not None
    settle = settling(question)
    plain = [candidate for candidate in left if not candidate.distributed]
    names = in_list([candidate.name for candidate in left])
    among = f"which of {names} is best is open"
    distribute: bool | None = None
    best = leader
    if not _is_mixed(question) or baseline_is_out(question, plain):
        verdict = f"open: {leader.name} leads {_rest(left)}, but not beyond doubt."
    elif len(plain) == len(left):
        distribute, best = False, min(plain, key=lambda candidate: effort(candidate.row))
        verdict = f"{no_distribution(plain)}{default_among(plain, best)}; {among}."
    elif not plain:
        distribute, verdict = True, f"distributing pays; {among}."
    else:
        best = min(plain, key=lambda candidate: effort(candidate.row))
        ahead = f"{'it' if leader is best else leader.name} leads, but not beyond doubt"
        help_ = "help" if question.objective == "accuracy" else "pay"
        verdict = f"distributing is not shown to {help_}: by default use {best.name} ({ahead})."
    if examples := question.too_few_examples:
        best = min(left, key=lambda candidate: effort(candidate.row))
        verdict = f"level as far as {examples:,} test examples can tell: use {best.name}."
    against = rival if best is leader else best
    why = (f"{_measured(question, leader)} against {_measured(question, against)}: "
           f"{_unsure(question, leader, against)}.")
    other = rival if best is leader else leader
    return Recommendation(
        question.objective, "open", verdict, why, settle.sentence, best.name, other.name, question.lead(best, other),
        settle.repetitions, distribute=distribute, settle=settle,
    )


def _rest(left: Sequence[Candidate]) -> str:
    return left[1].name if len(left) == 2 else f"{len(left) - 1} others"


def _unsure(question: Question, leader: Candidate, rival: Candidate) -> str:
    lead = question.lead(leader, rival)
    fewest = min(leader.count, rival.count)
    if lead.low is None:
        runs = "one run" if fewest == 1 else f"{fewest} runs"
        return f"{lead.size} apart, but {runs} of each cannot tell whether that is chance"
    if not (span := lead.span(question.kind)):
        return f"{lead.size} apart, but the runs differ too much among themselves to tell"
    return f"{lead.size} apart, but as far as these runs show the first may be anything {span}"


def _tolerance(question: Question) -> str:
    points = "point" if question.tolerance == 0.01 else "points"
    return f"{100 * question.tolerance:g} {points if question.scale == 'points' else '%'}"


def _measured(question: Question, candidate: Candidate) -> str:
    if candidate.missed:
        return f"{question.per_success(candidate)} for {candidate.name} ({question.successes(candidate)})"
    count = candidate.count
    # The mean that leads are of: a reader who divides two of these finds the lead.
    runs = "1 run" if count == 1 else f"mean of {count} runs"
    if candidate.left_out:
        runs = f"mean of {count - candidate.left_out} of {count} runs, stragglers left out"
    return f"{question.text(candidate.value)} for {candidate.name} ({runs})"
