"""What is recommended where one worker is best: the engine's `single`, in words that do not contradict themselves."""

from __future__ import annotations

from collections.abc import Sequence

from velodrome.analysis.compare import Row
from velodrome.analysis.lead import Lead
from velodrome.analysis.objective import Candidate, Question


def effort(row: Row) -> tuple[int, int, bool]:
    """What sorts the simplest to the front."""
    return row.processes, row.workers, not row.single


def single_instead(question: Question, winner: Candidate) -> Candidate:
    """Its engine's `single` in place of a strategy with one worker, unless that gains enough to matter."""
    for other in question.candidates:
        same_engine = other.row.configuration.fields["engine"] == winner.row.configuration.fields["engine"]
        if other.row.single and same_engine and not winner.row.single:
            lead = question.lead(winner, other)
            if other.row.batch_size == winner.row.batch_size and not _matters(question, lead):
                return other
    return winner


def _matters(question: Question, lead: Lead) -> bool:
    """Whether a lead is surely larger than the tolerance."""
    least = 100 * question.tolerance if lead.scale == "points" else 1 + question.tolerance
    return lead.low is not None and lead.low > least


def in_its_place(question: Question, winner: Candidate, chosen: Candidate) -> str:
    """A sentence on the `single` beside a strategy with one worker that won; empty if there is none."""
    engine = winner.row.configuration.fields["engine"]
    if chosen is not winner:
        least = f"{100 * question.tolerance:g} {'points' if question.scale == 'points' else '%'}"
        return (f"{chosen.name} does the same without a strategy ({question.text(chosen.value)}), and a difference of "
                f"more than {least} is not shown.")
    single = next((other for other in question.candidates if other.row.single and other is not winner
                   and other.row.configuration.fields["engine"] == engine), None)
    if winner.row.single or single is None:
        return ""
    return f"It is {question.lead(winner, single).than(single.name, question.kind)}."


def no_distribution(chosen: Sequence[Candidate]) -> str:
    """What is said where nothing distributed is recommended.

    "Do not distribute this: use ddp with 1 worker" would leave readers wondering which of the two is meant.
    """
    return "do not distribute this" if any(one.row.single for one in chosen) else "one worker is enough"


def default_among(left: Sequence[Candidate], plainest: Candidate) -> str:
    """Which to use meanwhile, where `single` and strategies with one worker are left; empty if all are of one kind."""
    kinds = {one.row.single for one in left}
    return f": by default use {plainest.name}" if len(kinds) == 2 else ""


def baseline_is_out(question: Question, plain: Sequence[Candidate]) -> bool:
    """Whether `single` was beaten, and only other strategies with one worker are left beside distributed ones."""
    return (bool(plain) and len(plain) < len(question.survivors) and not any(one.row.single for one in plain)
            and any(candidate.row.single for candidate in question.candidates))
