"""The verdict on a race as sentences: use, do not distribute, level, open."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from velodrome.judge.advice import Commands, Settling, against_what, more_workers, one_is_enough, settling
from velodrome.judge.caveats import (
    crash_note,
)
from velodrome.judge.phrases import Lead, in_list
from velodrome.judge.question import Candidate, Question

Decision = Literal["use", "do-not-distribute", "level", "open", "alone", "nothing"]


#: From this share of its time on, what a loser spent waiting and communicating explains why it lost.
_MUCH_WAITING = 0.2


#: A number with the words before and after it.
_AMOUNT = re.compile(r"(?P<before>\D*)(?P<number>[\d.,]+)(?P<after>.*)")


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
    #: What else a reader must know, as sentences; the doubts are among them.
    caveats: tuple[str, ...] = ()
    #: Runs, failures and update size of every configuration, by name.
    configurations: Mapping[str, Mapping[str, int]] = field(default_factory=dict, repr=False)

    @property
    def reliable(self) -> bool:
        return not self.doubts

    @property
    def lines(self) -> tuple[str, ...]:
        """The three lines; without the second where nothing can be said."""
        texts = (("Verdict", self.verdict), ("Why", self.why), ("Next", self.next))
        return tuple(f"{name}: {text}" for name, text in texts if text)

    def renamed(self, names: Mapping[str, str]) -> Recommendation:
        """The same for scripts under other names of configurations; the sentences stay."""
        settle = self.settle and replace(
            self.settle, seconds={names.get(name, name): took for name, took in self.settle.seconds.items()})
        counts = {names.get(name, name): counts for name, counts in self.configurations.items()}
        best, rival = (name and names.get(name, name) for name in (self.best, self.rival))
        return replace(self, best=best, rival=rival, settle=settle, configurations=counts)

    def as_json(self) -> dict[str, Any]:
        lead = self.lead
        ratio = lead if lead is not None and lead.scale == "ratio" else None
        return {
            "objective": self.objective, "decision": self.decision, "verdict": self.verdict, "why": self.why,
            "next": self.next, "caveats": list(self.caveats), "best": self.best, "rival": self.rival,
            "distribute": self.distribute, "ratio": ratio and ratio.estimate,
            "points": lead.estimate if lead is not None and ratio is None else None,
            "interval": None if lead is None or lead.low is None else [lead.low, lead.high],
            "more_runs": self.more_runs, "settle": self.settle and self.settle.as_json(),
            "doubts": list(self.doubts), "reliable": self.reliable,
            "configurations": {name: dict(counts) for name, counts in self.configurations.items()},
        }


def decide_verdict(question: Question, commands: Commands) -> Recommendation:
    if len(question.candidates) == 1:
        return _alone(question, question.candidates[0], commands)
    outcome = question.standing.outcome
    if question.survivors[0].name in question.seen_worse:
        return _less_accurate(question, commands)
    if outcome == "open":
        return _open(question, commands)
    return _level(question, commands) if outcome == "level" else _use(question, commands)


def _alone(question: Question, leader: Candidate, commands: Commands) -> Recommendation:
    verdict = f"only {leader.name} can be judged, so there is nothing to compare it with."
    way_out, why = against_what(leader.row), f"{_measured(question, leader)}."
    others = "train the others for more epochs or with another learning rate, or"
    if question.never:
        verdict = f"use {leader.name}: no other {question.success}."
        way_out = f"{others} ask for a target that they reach."
    elif question.less_accurate:
        whom = "the other is not" if question.less_accurate == 1 else f"none of {question.less_accurate} others is"
        verdict = f"use {leader.name}: {whom} accurate enough."
        way_out = f"{others} accept less accurate ones: `{commands.recommend('--accuracy-margin 0.05')}`."
        why = f"{question.lost_accuracy or _measured(question, leader)}."
    return Recommendation(question.objective, "alone", verdict, why, way_out, leader.name)


def _best(question: Question, candidates: Sequence[Candidate]) -> Candidate | None:
    """The one that seems best."""
    pick = max if question.better == "more" else min
    return pick(candidates, key=lambda candidate: candidate.value, default=None)


def _effort(candidate: Candidate) -> tuple[int, int, bool]:
    """What sorts the simplest to the front."""
    return candidate.row.processes, candidate.row.workers, not candidate.row.single


def _is_mixed(question: Question) -> bool:
    """Whether some of the candidates were distributed and some were not."""
    return len({candidate.distributed for candidate in question.candidates}) == 2


def _not_distributed(chosen: Candidate) -> str:
    """What is said where nothing distributed is recommended."""
    return "do not distribute this" if chosen.row.single else "one worker is enough"


def _use(question: Question, commands: Commands) -> Recommendation:
    """One is left: it has beaten all others."""
    winner = question.survivors[0]
    others = [candidate for candidate in question.candidates if candidate is not winner]
    runner = _best(question, others)
    assert runner is not None
    rival, mixed = runner, _is_mixed(question)
    decision: Decision = "use"
    crash = f"; it {note}" if (note := crash_note(winner.row)) else ""
    said = f"use {winner.name}{crash}."
    if mixed and winner.distributed:
        said = f"use {winner.name}: distributing pays off{crash}."
    elif mixed:
        decision, said = "do-not-distribute", f"use {winner.name}: {_not_distributed(winner)}{crash}."
        rival = _best(question, [candidate for candidate in others if candidate.distributed]) or runner
    lead = question.lead(winner, rival)
    what = "the best distributed one" if decision == "do-not-distribute" and rival is not runner else (
        "" if len(others) == 1 else "the next")
    why = f"{_ahead(question, winner, rival, what)}; {_lost_by(question, winner, rival, others)}."
    advice = one_is_enough(question, winner) if decision == "do-not-distribute" else more_workers(question, winner)
    return Recommendation(
        question.objective, decision, said, why, commands.after(advice), winner.name, rival.name, lead,
        distribute=winner.distributed if mixed else None,
    )


def _ahead(question: Question, first: Candidate, second: Candidate, what: str = "") -> str:
    """`62 % faster than torch/ddp, the next (38 % to 90 % in 3 repetitions)`."""
    called = f"{second.name}, {what}" if what else second.name
    compared = question.compared(first, second)
    kept, both = compared.count, compared.with_stragglers
    of_all = f"{kept} of {both}" if kept < both else f"{kept}"
    counted = f"in {of_all} repetition{'' if both == 1 else 's'}" if both and first.attempts is None else ""
    if counted and kept < both:
        counted += ", without stragglers"
    inside = " ".join(part for part in (question.lead(first, second).range(question.kind), counted) if part)
    return f"{question.lead(first, second).plain(called, question.kind)}{f' ({inside})' if inside else ''}"


def _lost_by(question: Question, winner: Candidate, rival: Candidate, others: Sequence[Candidate]) -> str:
    """One clause on what the others lost by: what the rival spent on waiting, or how far behind the last one is."""
    values = _against(question, winner, rival)
    spent = sum(rival.row.mean(name) or 0.0 for name in ("share_wait", "share_communicate"))
    if rival.distributed and spent >= _MUCH_WAITING:
        return f"{values}, {100 * spent:.0f} % of its time spent waiting and communicating"
    last = max(others, key=lambda one: question.lead(winner, one).estimate)
    if last is rival:
        return values
    return f"{values}, {question.lead(winner, last).size} ahead of the last of {len(others)} others"


def _against(question: Question, first: Candidate, second: Candidate) -> str:
    """`190 against 150 examples/s`: what two measured, words that both have once."""
    texts = question.amount(first, second), question.amount(second, first)
    mine, other = (_AMOUNT.match(text) for text in texts)
    if mine and other and mine.group("before", "after") == other.group("before", "after"):
        return f"{mine['before']}{mine['number']} against {other['number']}{mine['after']}"
    return " against ".join(texts)


def _level(question: Question, commands: Commands) -> Recommendation:
    """Those that are left are closer to one another than matters: the simplest is recommended."""
    left = [one for one in question.survivors if one.name not in question.seen_worse]
    chosen = min(left, key=_effort)
    rival = _best(question, [one for one in question.survivors if one is not chosen])
    assert rival is not None
    lead, most = question.lead(chosen, rival), _tolerance(question)
    names = in_list([candidate.name for candidate in question.survivors if candidate is not chosen])
    plain = _is_mixed(question) and not chosen.distributed
    gain = "distributing gains less than" if plain and all(
        one.distributed for one in question.survivors if one is not chosen) else ""
    said = (f"use {chosen.name}: {gain} {most}." if gain else
            f"use {chosen.name}: the simplest of {len(question.survivors)} that differ by less than {most}.")
    why = (f"{_against(question, chosen, rival)} for {names}: {lead.size} apart"
           f"{_between(lead, question)}.")
    advice = one_is_enough(question, chosen) if plain else more_workers(question, chosen)
    return Recommendation(
        question.objective, "level", said, why, commands.after(advice), chosen.name, rival.name, lead,
        distribute=chosen.distributed if _is_mixed(question) else None,
    )


def _between(lead: Lead, question: Question) -> str:
    found = lead.range(question.kind)
    return f" ({found})" if found else ""


def _open(question: Question, commands: Commands) -> Recommendation:
    """Several are left, and more runs are needed to tell them apart: what was seen leads."""
    left = question.survivors
    leader, simplest = left[0], min(left, key=_effort)
    rival = _best(question, left[1:])
    assert rival is not None
    other = rival if simplest is leader else simplest
    lead = question.lead(leader, other)
    ahead, both = question.ahead_in(leader, other)
    matters = lead.exceeds(question.tolerance)
    chosen = leader if simplest is leader or (matters and ahead == both > 0) else simplest
    settle = settling(question)
    if examples := question.too_few_examples:
        chosen = simplest
        said = f"use {chosen.name}: tied as far as {examples:,} test examples can tell."
    elif chosen is leader and not (matters and ahead == both):
        said = f"use {chosen.name} for now: nothing else was clearly {question.better_word}."
    elif chosen is leader:
        words = lead.plain(other.name, question.kind)
        seen = f"in one {_try(question)} of each, which may be chance"
        if both > 1:
            seen = f"in {_times(ahead, both)}{_not_yet(question, settle)}"
        said = f"use {chosen.name} for now: it was {words} {seen}."
    else:
        words = lead.plain("", question.kind).strip()
        but = f"only {words}" if ahead == both else f"{words} on average but ahead in only {_times(ahead, both)}"
        said = f"use {chosen.name} for now: {leader.name} was {but}."
        if lead.is_level:
            said = f"use {chosen.name} for now: nothing else was clearly {question.better_word}."
    survivors = {candidate.distributed for candidate in left}
    distribute = left[0].distributed if _is_mixed(question) and len(survivors) == 1 else None
    against = other if chosen is leader else leader
    whose = "" if other.name in said else f" for {other.name}"
    why = f"{_against(question, leader, other)}{whose}: {_unsure(question, leader, other)}."
    way_out = settle.sentence(commands)
    if _waits_for_load(question, settle):
        way_out = commands.idle(settle.so_far, settle.repetitions, question.anew)
    elif settle.repetitions is None and question.is_clouded and not question.too_few_examples:
        way_out = commands.unsettled()
    return Recommendation(
        question.objective, "open", said, why, way_out, chosen.name, against.name,
        question.lead(chosen, against), settle.repetitions, distribute=distribute, settle=settle,
    )


def _waits_for_load(question: Question, settle: Settling) -> bool:
    """Whether most of the repetitions that would settle it are needed because of other programs."""
    if not question.slowed or question.too_few_examples:
        return False
    idle = question.idle.standing
    if idle.outcome == "open" and idle.more is None:
        return False  # nor would repetitions without them settle it
    return settle.repetitions is None or 2 * (idle.more or 0) < settle.repetitions


def _try(question: Question) -> str:
    """What is compared: a script with one seed ran several times, but trained once."""
    return "training" if question.one_seed and question.scale == "points" else "run"


def _times(ahead: int, both: int) -> str:
    if ahead == both == 2:
        return "both repetitions"
    return f"all {both} repetitions" if ahead == both else f"{ahead} of {both} repetitions"


def _not_yet(question: Question, settle: Settling) -> str:
    """What would settle it; repetitions beside the same load would not."""
    more, anew = settle.repetitions, question.anew
    if _waits_for_load(question, settle) and anew is not None and (more is None or more > anew):
        return f"; {anew} repetitions on an idle machine would settle it"
    if more is None:
        return ", which is not certain"
    return f"; {more} more{' on an idle machine' if question.slowed else ''} would settle it"


def _less_accurate(question: Question, commands: Commands) -> Recommendation:
    """The one that leads seems to learn less: another is recommended, and the reader told what the choice is."""
    leader = question.survivors[0]
    left = [one for one in question.candidates if one.name not in question.seen_worse]
    chosen = _best(question, left)
    assert chosen is not None, "the most accurate one is not less accurate"
    lead = question.lead(leader, chosen)
    said = (f"use {chosen.name} for now: {leader.name} was {lead.plain('', question.kind).strip()}, but "
            f"{question.seen_worse[leader.name]}.")
    settle = settling(question)
    unproven = "one training of each does" if question.one_seed else "so few runs do"
    return Recommendation(
        question.objective, "open", said, f"{_ahead(question, leader, chosen)}; {unproven} not prove either accuracy.",
        _five_runs(question, commands), chosen.name, leader.name, question.lead(chosen, leader), settle=settle,
    )


def _five_runs(question: Question, commands: Commands) -> str:
    """Two more repetitions, and five at least: enough to tell what seems far apart in accuracy."""
    looks = question.standing.looks
    wanted = max(looks + 2, 5)
    return commands.again(wanted, wanted - looks)


def _unsure(question: Question, leader: Candidate, rival: Candidate) -> str:
    lead = question.lead(leader, rival)
    fewest = min(leader.count, rival.count)
    if lead.low is None:
        one = _try(question)
        runs = f"one {one}" if fewest == 1 or one == "training" else f"{fewest} runs"
        return f"{lead.size} apart, and {runs} of each cannot rule out chance"
    if not (span := lead.span(question.kind)):
        idle = question.idle.standing.lead(question.number(leader), question.number(rival))
        by_load = question.slowed and Lead.of(idle, question.scale).span(question.kind)
        why = "other programs may have made that difference" if by_load else "the runs scatter too much to tell"
        return f"{lead.size} apart, and {why}"
    return f"{lead.size} apart, and {leader.name} may be anything {span}"


def _tolerance(question: Question) -> str:
    points = "point" if question.tolerance == 0.01 else "points"
    return f"{100 * question.tolerance:g} {points if question.scale == 'points' else '%'}"


def _measured(question: Question, candidate: Candidate) -> str:
    runs = "1 run" if candidate.count == 1 else f"mean of {candidate.count} runs"
    return f"{question.amount(candidate)} ({runs})"
