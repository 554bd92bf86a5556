"""Recommends a configuration in three lines: verdict, why, next. The rules are in `docs/reference/numbers.md`.

Pure functions from rows to sentences. "Beats" always means that the 95 % interval of the ratio lies above one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from velodrome.analysis.compare import Row, tasks_of
from velodrome.analysis.doubts import doubts
from velodrome.analysis.hosts import cores_of
from velodrome.analysis.objective import Candidate, Price, Question, ask, objective_of, target_of
from velodrome.analysis.statistics import LEVEL, Ratio, is_level, more_runs

Decision = Literal["use", "do-not-distribute", "repeat", "level", "alone", "nothing"]
#: From this share of the ideal on, more workers are worth a try.
GOOD_EFFICIENCY = 0.7
_MORE_WORK = ("a larger model, data set or batch gives every message more work: race again with one of them before "
              "paying for more workers.")
_ONE_CORE = "there is one core here, so only more machines can show whether distributing pays"


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
    #: Best over rival, as "so many times better".
    ratio: Ratio | None = None
    #: Runs of each of the two that would tell them apart.
    more_runs: int | None = None
    #: Why the figures behind it are not reliable; empty if they are.
    doubts: tuple[str, ...] = ()

    @property
    def reliable(self) -> bool:
        return not self.doubts

    @property
    def lines(self) -> tuple[str, str, str]:
        return f"Verdict: {self.verdict}", f"Why: {self.why}", f"Next: {self.next}"

    def as_json(self) -> dict[str, Any]:
        found = {**vars(self), "doubts": list(self.doubts), "reliable": self.reliable,
                 "ratio": self.ratio and self.ratio.estimate, "interval": None}
        if self.ratio and self.ratio.has_interval:
            found["interval"] = [self.ratio.low, self.ratio.high]
        return found


def recommend(
    rows: Sequence[Row], objective: str = "throughput", target: str | None = None, price: Price | None = None,
    failed: int = 0,
) -> Recommendation:
    """Answer for rows compared with the same target; `failed` counts runs that gave no result."""
    if not rows:
        return Recommendation(objective, "nothing", "no run finished, so there is nothing to compare.",
                              f"{failed} runs failed." if failed else "the race has no finished run.",
                              "look at `velodrome runs list` and the logs, then run the same race again.")
    question = ask(rows, objective, target, price)
    if not question.candidates:
        reason = question.no_candidates or f"no run measured what {objective} needs"
        why = _aside(question, failed) or "every finished run was looked at."
        return Recommendation(objective, "nothing", f"{reason}.", why,
                              f"{question.way_out or 'choose another objective'}.")
    found = _decide(question)
    notes = [found.why, _aside(question, failed), _missing_baseline(question)]
    found = replace(found, why=" ".join(note for note in notes if note))
    # How accurate a model becomes does not depend on how busy the machine is.
    reasons = [] if objective == "accuracy" else doubts([candidate.row for candidate in question.candidates])
    return _marked(found, reasons)


def _marked(found: Recommendation, reasons: Sequence[str]) -> Recommendation:
    """The same recommendation, marked as not reliable if there are reasons to doubt its figures."""
    if not reasons:
        return found
    return replace(
        found, verdict=f"not reliable: {found.verdict}", doubts=tuple(reasons),
        why=" ".join([*(f"{reason[0].upper()}{reason[1:]}." for reason in reasons), f"As measured: {found.why}"]),
        next="repeat those runs on an idle machine, then ask again: `velodrome runs rm` removes them from the race, "
        "and the same `velodrome race` command runs what is missing.",
    )


def verdict(rows: Sequence[Row], target: str | None = None) -> str:
    """One line for the end of a race with its own target, or one for each of its tasks."""
    objective = objective_of(None, None, target)
    wanted = target_of(objective, None, target)
    answers = {task: recommend(members, objective, wanted) for task, members in tasks_of(rows).items()}
    return "\n".join(f"Verdict{f' for {task}' if task else ''}: {answer.verdict}" for task, answer in answers.items())


def _aside(question: Question, failed: int) -> str:
    notes = [question.aside] if question.aside else []
    if failed:
        notes.append(f"{failed} run{' was' if failed == 1 else 's were'} left out because "
                     f"{'it' if failed == 1 else 'they'} did not finish")
    return f"({'; '.join(notes)}.)" if notes else ""


def _missing_baseline(question: Question) -> str:
    if any(not candidate.distributed for candidate in question.candidates):
        return ""
    return "Everything here was distributed, so whether distributing pays at all is not known."


def _decide(question: Question) -> Recommendation:
    pick = -1 if question.better == "more" else 1
    ranked = sorted(question.candidates, key=lambda c: (pick * c.spread.centre, c.row.processes))
    leader = ranked[0]
    if len(ranked) == 1:
        return _alone(question, leader)
    plain = next((candidate for candidate in ranked if not candidate.distributed), None)
    spread = next((candidate for candidate in ranked if candidate.distributed), None)
    if plain is not None and spread is not None:
        simple = _plainest(question, plain, ranked)
        if leader is plain:
            return _stay(question, simple, spread)
        over = question.advantage(spread, simple)
        if over is None or over.above_one or not is_level(over):
            simple = plain
        if (open_question := _unproven(question, spread, simple)) is not None:
            return open_question
    return _first(question, leader, ranked[1:], plain)


def _alone(question: Question, leader: Candidate) -> Recommendation:
    return Recommendation(
        question.objective, "alone", f"only {leader.name} can be judged, so there is nothing to compare it with.",
        f"{_measured(question, leader)}.",
        _against_what(leader.row), leader.name,
    )


def _against_what(row: Row) -> str:
    others = [] if row.single else ["its engine's single run"]
    if cores_of(row.results) != 1:
        others.append("another number of workers")
    return f"race it against {' and '.join(others) or 'another engine, batch size or model'}."


def _plainest(question: Question, plain: Candidate, ranked: Sequence[Candidate]) -> Candidate:
    """The best of those in one process, or their engine's `single` that is level with it."""
    for other in [] if plain.row.single else ranked:
        place = question.advantage(plain, other)
        if other.row.single and place is not None and is_level(place):
            return other
    return plain


def _stay(question: Question, plain: Candidate, spread: Candidate) -> Recommendation:
    """One process leads: distributing must prove itself, so it is not worth it."""
    place = question.advantage(plain, spread)
    if place is None or not place.has_interval:
        return _repeat(question, plain, spread, place)
    proof, sure = "is", ""
    if not place.above_one:
        proof = "may be"
        more = more_runs(plain.spread, spread.spread)
        sure = f"to be sure, repeat these two {more} more time{'' if more == 1 else 's'}; "
    return Recommendation(
        question.objective, "do-not-distribute", f"do not distribute this: use {plain.name}.",
        f"{_measured(question, plain)} {proof} {_times(place)} better than the best distributed one, "
        f"{_measured(question, spread)}.",
        f"{sure}{_MORE_WORK}", plain.name, spread.name, place,
    )


def _unproven(question: Question, spread: Candidate, plain: Candidate) -> Recommendation | None:
    """A distributed leader that does not beat one process: a gain too small is not worth it, any other is repeated."""
    place = question.advantage(spread, plain)
    if place is not None and place.above_one:
        return None
    if place is None or not is_level(place):
        return _repeat(question, spread, plain, place)
    return Recommendation(
        question.objective, "do-not-distribute", f"do not distribute this: use {plain.name}.",
        f"{_measured(question, spread)} is {_times(place)} better than {_measured(question, plain)}: surely less than "
        f"{LEVEL - 1:.0%}.",
        _MORE_WORK, plain.name, spread.name, place.inverted(),
    )


def _first(
    question: Question, leader: Candidate, others: Sequence[Candidate], plain: Candidate | None
) -> Recommendation:
    places = [(other, question.advantage(leader, other)) for other in others]
    rivals = [(other, place) for other, place in places if place is None or not place.above_one]
    gain = ""
    if plain is not None and leader.distributed and (over := question.advantage(leader, plain)) is not None:
        gain = f", {_times(over)} better than {plain.name}"
    if not rivals:
        runner, place = places[0]
        return Recommendation(
            question.objective, "use", f"use {leader.name}: the {question.praise} of {len(places) + 1} configurations.",
            f"{_measured(question, leader)}{gain if runner is not plain else ''}, and {_times(place)} better than the "
            f"next, {_measured(question, runner)}.",
            _more_workers(question, leader), leader.name, runner.name, place,
        )
    for rival, place in rivals:
        if place is None or not is_level(place):
            return _repeat(question, leader, rival, place)
    level = [leader, *(other for other, _ in rivals)]
    simplest = min(level, key=lambda candidate: _effort(candidate.row))
    # Every number is of the recommended one: against the leader, or the leader against the next.
    rival, place = next((pair for pair in rivals if pair[0] is simplest), rivals[0])
    assert place is not None
    names = ", ".join(other.name for other in level if other is not simplest)
    return Recommendation(
        question.objective, "level", f"use {simplest.name}: level with {names}, and nothing is simpler.",
        f"{_measured(question, leader)} against {_measured(question, rival)} is a ratio of {_times(place)}: surely "
        f"less than {LEVEL - 1:.0%}.",
        _more_workers(question, simplest), simplest.name, (rival if simplest is leader else leader).name,
        place if simplest is leader else place.inverted(),
    )


def _effort(row: Row) -> tuple[int, int, bool]:
    """What sorts the simplest to the front."""
    return row.processes, row.workers, not row.single


def _repeat(question: Question, first: Candidate, second: Candidate, place: Ratio | None) -> Recommendation:
    more = more_runs(first.spread, second.spread)
    times = "once" if more == 1 else f"{more} times"
    why = f"{_measured(question, first)} against {_measured(question, second)}"
    if place is None:
        why += "; a value of zero has no ratio."
    elif not place.has_interval:
        fewest = min((first, second), key=lambda candidate: candidate.spread.count)
        why += f": {place.estimate:.2f}×, but {fewest.name} ran once, and one run gives no interval."
    else:
        why += f" is a ratio of {_times(place)}, which does not exclude 1."
    total = max(first.spread.count, second.spread.count) + more
    return Recommendation(
        question.objective, "repeat",
        f"not enough runs to tell: {first.name} leads {second.name}; repeat these two {more} more "
        f"time{'' if more == 1 else 's'}.",
        why, f"run each of the two {times} more (a race of them with --repeat {total}), then ask again.",
        first.name, second.name, place, more,
    )


def _more_workers(question: Question, leader: Candidate) -> str:
    """What to try next with the one that is recommended; never what this race has tried."""
    row = leader.row
    others = [other.row for other in question.candidates if other.row is not row]
    sizes = sorted({other.workers for other in others if other.label == row.label})
    more = [size for size in sizes if size > row.workers]
    place = row.efficiency or (row.scaling and row.scaling.divided_by(row.workers))
    if place is None:
        return "add the engine's single run and a one-worker run to the race: only they show whether distributing pays."
    if more:
        return f"{row.label} with {more[0]} workers did no better here: {_MORE_WORK}"
    cores = cores_of(row.results)
    sizes_to_add = "2" if cores == 2 else "2 and more"
    if row.workers == 1 and any(other.workers > 1 for other in others):
        if row.single or cores == 1:
            return _MORE_WORK
        return f"add runs of {row.label} with {sizes_to_add} workers: so far only others ran with them."
    if row.workers == 1:
        if cores == 1:
            return f"{_ONE_CORE}."
        return f"add runs with {sizes_to_add} workers: this race does not show whether distributing pays."
    if place.estimate >= GOOD_EFFICIENCY:
        return _larger(row.workers, place.estimate, cores)
    fewer = "" if any(size < row.workers for size in sizes) else " or fewer workers"
    return (f"try a larger batch{fewer}: {row.workers} workers reach {place.estimate:.0%} of the ideal, so much of "
            "what they cost is waiting and messages.")


def _larger(workers: int, efficiency: float, cores: int | None) -> str:
    """The next number of workers, never more than there are cores."""
    reached = f"{workers} still reach {efficiency:.0%} of the ideal"
    if cores is None or cores > workers:
        return f"try {2 * workers if cores is None else min(2 * workers, cores)} workers: {reached}."
    where = "one core" if cores == 1 else f"{cores} cores"
    return f"this is as many workers as {where} can carry ({reached}): more need more machines."


def _measured(question: Question, candidate: Candidate) -> str:
    spread = candidate.spread
    runs = "1 run" if spread.count == 1 else f"{spread.count} runs"
    # The mean that ratios are of: a reader who divides two of these finds the ratio.
    return f"{question.text(spread.centre)} for {candidate.name} ({'' if spread.count == 1 else 'mean of '}{runs})"


def _times(place: Ratio | None) -> str:
    if place is None:
        return "an unknown number of times"
    if place.low is None or place.high is None:
        return f"{place.estimate:.2f}× (no interval: one run)"
    return f"{place.estimate:.2f}× (95 %: {place.low:.2f}–{place.high:.2f})"
