"""Which configuration is recommended, once it is known who beats whom. Pure rules; `verdict.py` has the words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from velodrome.judge.question import Candidate, Question

Decision = Literal["use", "do-not-distribute", "level", "open", "alone", "nothing"]


def is_settled(decision: str, *, reliable: bool) -> bool:
    """Whether a page may emphasise a verdict: the next run is not expected to change it."""
    return reliable and decision not in ("open", "alone", "nothing")


@dataclass(frozen=True)
class Choice:
    """The configuration that is recommended, and on what grounds."""

    decision: Decision
    chosen: Candidate
    #: The one that it is compared with; None if it is alone.
    rival: Candidate | None = None
    #: Whether distributing pays; None where that is open, or was not asked.
    distribute: bool | None = None

    @property
    def against(self) -> Candidate:
        """The rival of a choice that has one."""
        assert self.rival is not None
        return self.rival


def choose(question: Question) -> Choice:
    """Choose among the candidates, of which there is at least one."""
    if len(question.candidates) == 1:
        return Choice("alone", question.candidates[0])
    if leads_with_less_accuracy(question):
        candidates = [one for one in question.candidates if one.name not in question.seen_worse]
        return Choice("open", best(question, candidates), question.survivors[0])
    outcome = question.standing.outcome
    if outcome == "open":
        return _of_open(question)
    return _simplest(question) if outcome == "level" else _winner(question)


def leads_with_less_accuracy(question: Question) -> bool:
    """Whether the one that leads seems to learn less, so that another is recommended."""
    return question.survivors[0].name in question.seen_worse


def best(question: Question, candidates: Sequence[Candidate]) -> Candidate:
    """The one of these candidates that seems best."""
    pick = max if question.better == "more" else min
    return pick(candidates, key=lambda candidate: candidate.value)


def effort(candidate: Candidate) -> tuple[int, int, bool]:
    """What sorts the simplest to the front."""
    return candidate.row.processes, candidate.row.workers, not candidate.row.single


def is_mixed(question: Question) -> bool:
    """Whether some of the candidates were distributed and some were not."""
    return len({candidate.distributed for candidate in question.candidates}) == 2


def others_than(question: Question, chosen: Candidate) -> list[Candidate]:
    return [candidate for candidate in question.candidates if candidate is not chosen]


def _winner(question: Question) -> Choice:
    """One is left: it has beaten all others."""
    winner = question.survivors[0]
    others = others_than(question, winner)
    if not is_mixed(question):
        return Choice("use", winner, best(question, others))
    if winner.distributed:
        return Choice("use", winner, best(question, others), distribute=True)
    distributed = [candidate for candidate in others if candidate.distributed]
    return Choice("do-not-distribute", winner, best(question, distributed), distribute=False)


def _simplest(question: Question) -> Choice:
    """Those that are left are closer to one another than matters: the simplest is recommended."""
    chosen = min((one for one in question.survivors if one.name not in question.seen_worse), key=effort)
    rival = best(question, [one for one in question.survivors if one is not chosen])
    return Choice("level", chosen, rival, chosen.distributed if is_mixed(question) else None)


def _of_open(question: Question) -> Choice:
    """Several are left, and more runs are needed to tell them apart: what was seen leads."""
    left = question.survivors
    leader, simplest = left[0], min(left, key=effort)
    other = best(question, left[1:]) if simplest is leader else simplest
    ahead, both = question.ahead_in(leader, other)
    clear = question.lead(leader, other).exceeds(question.tolerance) and ahead == both > 0
    chosen = leader if clear and not question.too_few_examples else simplest
    distribute = leader.distributed if is_mixed(question) and len({one.distributed for one in left}) == 1 else None
    return Choice("open", chosen, other if chosen is leader else leader, distribute)
