"""A choice in words: the verdict, why, and what to do next."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from velodrome.judge.caveats import caveats_of, configurations_of, crash_note, unfinished, unreliable
from velodrome.judge.choice import (
    Choice,
    Commands,
    Decision,
    RunsNeeded,
    against_what,
    best,
    choose,
    is_mixed,
    leads_with_less_accuracy,
    more_workers,
    one_is_enough,
    others_than,
    runs_needed,
)
from velodrome.judge.compare import Row
from velodrome.judge.conditions import data_note
from velodrome.judge.criteria import Criteria
from velodrome.judge.phrases import Lead, as_sentence, in_list, lead_json
from velodrome.judge.plausibility import KEEP_BATCH, OTHER_SEEDS, other_trainings
from velodrome.judge.question import Candidate, Question

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
    needed: RunsNeeded | None = None
    #: Why the figures behind it are not reliable; empty if they are.
    unreliable: tuple[str, ...] = ()
    #: What else a reader must know, as sentences; why it is not reliable is among them.
    caveats: tuple[str, ...] = ()
    #: Runs, failures and update size of every configuration, by name.
    configurations: Mapping[str, Mapping[str, int]] = field(default_factory=dict, repr=False)

    @property
    def reliable(self) -> bool:
        return not self.unreliable

    @property
    def lines(self) -> tuple[str, ...]:
        """The three lines; without the second where nothing can be said."""
        texts = (("Verdict", self.verdict), ("Why", self.why), ("Next", self.next))
        return tuple(f"{name}: {text}" for name, text in texts if text)

    def renamed(self, names: Mapping[str, str]) -> Recommendation:
        """The same for scripts under other names of configurations; the sentences stay."""
        needed = self.needed and replace(
            self.needed, seconds={names.get(name, name): took for name, took in self.needed.seconds.items()})
        counts = {names.get(name, name): counts for name, counts in self.configurations.items()}
        best, rival = (name and names.get(name, name) for name in (self.best, self.rival))
        return replace(self, best=best, rival=rival, needed=needed, configurations=counts)

    def as_json(self) -> dict[str, Any]:
        return {
            "objective": self.objective, "decision": self.decision, "verdict": self.verdict, "why": self.why,
            "next": self.next, "caveats": list(self.caveats), "best": self.best, "rival": self.rival,
            "distribute": self.distribute, **lead_json(self.lead), "more_runs": self.more_runs,
            "settle": self.needed and self.needed.as_json(), "doubts": list(self.unreliable), "reliable": self.reliable,
            "configurations": {name: dict(counts) for name, counts in self.configurations.items()},
        }


def recommend(
    question: Question | None, rows: Sequence[Row], criteria: Criteria, failed: int, crashed: Mapping[str, int],
    commands: Commands,
) -> Recommendation:
    """Answer the question about these rows, which there is if there are any.

    `failed` counts all runs that gave no result, `crashed` those of configurations that always crashed, by name.
    """
    counts, left_out = configurations_of(rows, crashed, criteria.goal), unfinished(rows, failed, crashed)
    if question is None:
        return Recommendation(
            criteria.chosen, "nothing", "no run finished, so there is nothing to compare.", "",
            "`velodrome runs list` and the logs of the runs show why.", caveats=tuple(left_out), configurations=counts)
    if not question.candidates:
        reason = question.no_candidates or f"no run measured what {question.objective.name} needs"
        return Recommendation(
            question.objective.name, "nothing", f"{reason}.", "", f"{question.fix or 'choose another objective'}.",
            caveats=(*map(as_sentence, question.notes), *left_out), configurations=counts)
    choice = choose(question)
    answer, reasons = _worded(question, choice, commands), unreliable(question, choice)
    if question.one_seed and choice.decision == "open" and (question.objective.of_models or question.seen_worse):
        answer = replace(answer, next=OTHER_SEEDS)
    if reasons:
        answer = replace(answer, verdict=_doubted(question, answer), next=_next_if_doubted(question, answer, commands))
    changed = data_note(result for row in rows for result in row.results)
    caveats = [*([changed] if changed else []), *map(as_sentence, reasons),
               *caveats_of(question, choice, rows, reasons), *left_out]
    return replace(answer, unreliable=reasons, caveats=tuple(dict.fromkeys(caveats)), configurations=counts)


class Words(NamedTuple):
    """A choice in three sentences, and what would settle it if it is open."""

    verdict: str
    why: str
    next: str
    needed: RunsNeeded | None = None


def _worded(question: Question, choice: Choice, commands: Commands) -> Recommendation:
    """A choice as an answer."""
    form = {"alone": _alone, "level": _level, "open": _open}.get(choice.decision, _use)
    unsure = choice.decision == "open" and leads_with_less_accuracy(question)
    words = (_less_accurate if unsure else form)(question, choice, commands)
    more_runs = None if unsure or words.needed is None else words.needed.repetitions
    answer = Recommendation(
        question.objective.name, choice.decision, words.verdict, words.why, words.next, choice.chosen.name,
        more_runs=more_runs, distribute=choice.distribute, needed=words.needed,
    )
    if choice.rival is None:
        return answer
    return replace(answer, rival=choice.rival.name, lead=question.lead(choice.chosen, choice.rival))


def _alone(question: Question, choice: Choice, commands: Commands) -> Words:
    leader = choice.chosen
    verdict = f"only {leader.name} can be judged, so there is nothing to compare it with."
    following, why = against_what(leader.row), f"{_measured(question, leader)}."
    others = "train the others for more epochs or with another learning rate, or"
    if question.never:
        verdict = f"use {leader.name}: no other {question.success}."
        following = f"{others} ask for a target that they reach."
    elif question.less_accurate:
        whom = "the other is not" if question.less_accurate == 1 else f"none of {question.less_accurate} others is"
        verdict = f"use {leader.name}: {whom} accurate enough."
        following = f"{others} accept less accurate ones: `{commands.recommend('--accuracy-margin 0.05')}`."
        why = f"{question.lost_accuracy or _measured(question, leader)}."
    return Words(verdict, why, following)


def _use(question: Question, choice: Choice, commands: Commands) -> Words:
    winner, rival = choice.chosen, choice.against
    others = others_than(question, winner)
    crash = f"; it {note}" if (note := crash_note(winner.row)) else ""
    what = "" if len(others) == 1 else "the next"
    advice = more_workers(question, winner)
    reason = ": distributing pays off" if choice.distribute else ""
    if choice.decision == "do-not-distribute":
        reason = ": do not distribute this" if winner.row.single else ": one worker is enough"
        what = what if rival is best(question, others) else "the best distributed one"
        advice = one_is_enough(question, winner)
    why = f"{_ahead(question, winner, rival, what)}; {_lost_by(question, winner, rival, others)}."
    return Words(f"use {winner.name}{reason}{crash}.", why, commands.after(advice))


def _ahead(question: Question, first: Candidate, second: Candidate, what: str = "") -> str:
    """`62 % faster than torch/ddp, the next (38 % to 90 % in 3 repetitions)`."""
    called = f"{second.name}, {what}" if what else second.name
    compared = question.compared(first, second)
    kept, both = compared.count, compared.with_stragglers
    of_all = f"{kept} of {both}" if kept < both else f"{kept}"
    repetitions = f"in {of_all} repetition{'' if both == 1 else 's'}" if both and first.attempts is None else ""
    if repetitions and kept < both:
        repetitions += ", without stragglers"
    inside = " ".join(part for part in (question.lead(first, second).range(question.wording), repetitions) if part)
    return f"{question.lead(first, second).plain(called, question.wording)}{f' ({inside})' if inside else ''}"


def _lost_by(question: Question, winner: Candidate, rival: Candidate, others: Sequence[Candidate]) -> str:
    """One clause on what the others lost by: what the rival spent on waiting, or how far behind the last one is."""
    values = _against(question, winner, rival)
    spent = sum(rival.row.mean(name) or 0.0 for name in ("share_wait", "share_communicate"))
    if rival.distributed and spent >= _MUCH_WAITING:
        return f"{values}, {100 * spent:.0f} % of its time spent waiting and communicating"
    last = max(others, key=lambda candidate: question.lead(winner, candidate).estimate)
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


def _level(question: Question, choice: Choice, commands: Commands) -> Words:
    chosen, rival = choice.chosen, choice.against
    lead, most = question.lead(chosen, rival), _tolerance(question)
    others = [candidate for candidate in question.survivors if candidate is not chosen]
    plain = is_mixed(question) and not chosen.distributed
    reason = f"the simplest of {len(question.survivors)} that differ by less than {most}"
    if plain and all(candidate.distributed for candidate in others):
        reason = f"distributing gains less than {most}"
    names, span = in_list([candidate.name for candidate in others]), lead.range(question.wording)
    why = f"{_against(question, chosen, rival)} for {names}: {lead.size} apart{f' ({span})' if span else ''}."
    advice = one_is_enough(question, chosen) if plain else more_workers(question, chosen)
    return Words(f"use {chosen.name}: {reason}.", why, commands.after(advice))


def _open(question: Question, choice: Choice, commands: Commands) -> Words:
    chosen, leader = choice.chosen, question.survivors[0]
    other = choice.against if chosen is leader else chosen
    lead = question.lead(leader, other)
    ahead, both = question.ahead_in(leader, other)
    needed = runs_needed(question)
    if examples := question.too_few_examples:
        verdict = f"use {chosen.name}: tied as far as {examples:,} test examples can tell."
    elif chosen is leader and lead.exceeds(question.tolerance) and ahead == both:
        seen = f"in one {_try(question)} of each, which may be chance"
        if both > 1:
            seen = f"in {_times(ahead, both)}{_not_yet(question, needed)}"
        verdict = f"use {chosen.name} for now: it was {lead.plain(other.name, question.wording)} {seen}."
    elif chosen is leader or lead.is_level:
        verdict = f"use {chosen.name} for now: nothing else was clearly {question.wording.better}."
    else:
        words = lead.plain("", question.wording).strip()
        but = f"only {words}" if ahead == both else f"{words} on average but ahead in only {_times(ahead, both)}"
        verdict = f"use {chosen.name} for now: {leader.name} was {but}."
    whose = "" if other.name in verdict else f" for {other.name}"
    why = f"{_against(question, leader, other)}{whose}: {_unsure(question, leader, other)}."
    following = needed.sentence(commands)
    if _waits_for_load(question, needed):
        following = commands.idle(needed.so_far, needed.repetitions, question.anew)
    elif needed.repetitions is None and question.is_clouded and not question.too_few_examples:
        following = commands.unsettled()
    return Words(verdict, why, following, needed)


def _waits_for_load(question: Question, needed: RunsNeeded) -> bool:
    """Whether most of the repetitions that would settle it are needed because of other programs."""
    if not question.slowed or question.too_few_examples:
        return False
    idle = question.idle.standing
    if idle.outcome == "open" and idle.more is None:
        return False  # nor would repetitions without them settle it
    return needed.repetitions is None or 2 * (idle.more or 0) < needed.repetitions


def _try(question: Question) -> str:
    """What is compared: a script with one seed ran several times, but trained once."""
    return "training" if question.one_seed and question.scale == "points" else "run"


def _times(ahead: int, both: int) -> str:
    if ahead == both == 2:
        return "both repetitions"
    return f"all {both} repetitions" if ahead == both else f"{ahead} of {both} repetitions"


def _not_yet(question: Question, needed: RunsNeeded) -> str:
    """What would settle it; repetitions beside the same load would not."""
    more, anew = needed.repetitions, question.anew
    if _waits_for_load(question, needed) and anew is not None and (more is None or more > anew):
        return f"; {anew} repetitions on an idle machine would settle it"
    if more is None:
        return ", which is not certain"
    return f"; {more} more{' on an idle machine' if question.slowed else ''} would settle it"


def _less_accurate(question: Question, choice: Choice, commands: Commands) -> Words:
    """The leader seems less accurate: recommend another one, and state both, so that the reader can choose."""
    chosen, leader = choice.chosen, choice.against
    words = question.lead(leader, chosen).plain("", question.wording).strip()
    verdict = f"use {chosen.name} for now: {leader.name} was {words}, but {question.seen_worse[leader.name]}."
    unproven = "one training of each does" if question.one_seed else "so few runs do"
    why = f"{_ahead(question, leader, chosen)}; {unproven} not prove either accuracy."
    looks = question.standing.looks
    wanted = max(looks + 2, 5)  # enough to tell what seems far apart in accuracy
    return Words(verdict, why, commands.again(wanted, wanted - looks), runs_needed(question))


def _unsure(question: Question, leader: Candidate, rival: Candidate) -> str:
    lead = question.lead(leader, rival)
    fewest = min(leader.count, rival.count)
    if lead.low is None:
        what = _try(question)
        runs = f"one {what}" if fewest == 1 or what == "training" else f"{fewest} runs"
        return f"{lead.size} apart, and {runs} of each cannot rule out chance"
    if not (span := lead.span(question.wording)):
        idle = question.idle.standing.lead(question.number(leader), question.number(rival))
        by_load = question.slowed and Lead.of(idle, question.scale).span(question.wording)
        why = "other programs may have made that difference" if by_load else "the runs scatter too much to tell"
        return f"{lead.size} apart, and {why}"
    return f"{lead.size} apart, and {leader.name} may be anything {span}"


def _tolerance(question: Question) -> str:
    points = "point" if question.tolerance == 0.01 else "points"
    return f"{100 * question.tolerance:g} {points if question.scale == 'points' else '%'}"


def _measured(question: Question, candidate: Candidate) -> str:
    runs = "1 run" if candidate.count == 1 else f"mean of {candidate.count} runs"
    return f"{question.amount(candidate)} ({runs})"


def _doubted(question: Question, answer: Recommendation) -> str:
    """The verdict of an answer that may be wrong. One that trains otherwise than what it beat shows nothing about
    distributing."""
    rows = [candidate.row for candidate in question.candidates]
    if answer.decision == "use" and answer.best in other_trainings(rows):
        return (f"use {answer.best} for now, if its models are as accurate: its steps use more examples, which is not "
                "the same training.")
    return _for_now(answer.verdict)


def _for_now(verdict: str) -> str:
    """`use torch/ddp for now: …`, for a verdict that does not say so yet."""
    head, colon, rest = verdict.removesuffix(".").partition(": ")
    if not head.startswith("use ") or head.endswith(" for now"):
        return verdict
    return f"{head} for now{colon}{rest}."


def _next_if_doubted(question: Question, answer: Recommendation, commands: Commands) -> str:
    """What removes the doubts: a race that has its answer ends at once if it runs until it is sure, and nobody closes
    other programs who has none."""
    if other_trainings([candidate.row for candidate in question.candidates]):
        return KEEP_BATCH
    if answer.decision != "open":
        return commands.more(question.standing.looks + 3, idle=question.slowed)
    standing = question.standing
    return commands.idle(standing.looks, standing.more, question.anew) if question.slowed else answer.next
