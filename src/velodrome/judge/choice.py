"""Which configuration is recommended, once it is known who beats whom, and what to try next: more workers, more work
for them, or a baseline, never what a race has tried already. Pure rules; `verdict.py` has the other words."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from velodrome.judge.compare import Row
from velodrome.judge.conditions import cores_of
from velodrome.judge.decide import MOST_MORE
from velodrome.judge.phrases import as_option, in_words
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
        candidates = [candidate for candidate in question.candidates if candidate.name not in question.seen_worse]
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
    eligible = [candidate for candidate in question.survivors if candidate.name not in question.seen_worse]
    chosen = min(eligible, key=effort)
    rival = best(question, [candidate for candidate in question.survivors if candidate is not chosen])
    return Choice("level", chosen, rival, chosen.distributed if is_mixed(question) else None)


def _of_open(question: Question) -> Choice:
    """Several are left, and more runs are needed to tell them apart: what was seen leads."""
    left = question.survivors
    leader, simplest = left[0], min(left, key=effort)
    other = best(question, left[1:]) if simplest is leader else simplest
    ahead, both = question.ahead_in(leader, other)
    clear = question.lead(leader, other).exceeds(question.tolerance) and ahead == both > 0
    chosen = leader if clear and not question.too_few_examples else simplest
    alike = len({candidate.distributed for candidate in left}) == 1
    distribute = leader.distributed if is_mixed(question) and alike else None
    return Choice("open", chosen, other if chosen is leader else leader, distribute)


#: Repetitions for which there is time where it is not known how many are needed.
_SOME_MORE = 3


@dataclass(frozen=True)
class Commands:
    """Commands on a race, as they would be typed; of one that is not stored, the same in words."""

    race: Path | None = None
    #: Seconds that its runs may take together; None if there is no limit.
    budget: float | None = None
    #: What a repetition of all that are compared takes.
    repetition: float = 0.0

    def _on(self, name: str, options: str = "") -> str:
        if self.race is None:
            return f"velodrome {name} RACE{options and f' {options}'}"
        runs = "" if self.race.parent == Path("runs") else f" --runs {shlex.quote(str(self.race.parent))}"
        return f"velodrome {name} {shlex.quote(self.race.name)}{runs}{options and f' {options}'}"

    def recommend(self, options: str) -> str:
        return self._on("recommend", options)

    def _time(self, seconds: float) -> str:
        """An option for as much more time than the race had, without which its budget would end it at once."""
        return "" if self.budget is None else f" --budget {as_option(self.budget + seconds)}"

    def again(self, repetitions: int, more: int) -> str:
        """Run the same race with more repetitions, so many at most and so many more than before: the name of a stored
        race stands for all of it."""
        options = f"--until-sure --max-repeat {repetitions}{self._time(more * self.repetition)}"
        return f"`{self._on('race --name', options)}`"

    def after(self, advice: str) -> str:
        """Advice, and where all figures are."""
        return f"{advice.removesuffix('.')}; all figures: `{self._on('report')}`."

    def idle(self, repetitions: int, more: int | None, anew: int | None) -> str:
        """Repeat without other programs what they disturbed: add repetitions to those that there are, or start anew
        where fewer are then needed."""
        first = "close other programs, then "
        if anew is not None and (more is None or more > anew):
            return f"{first}race again: {self._anew(anew)}."
        more = more or _SOME_MORE
        return f"{first}add repetitions: {self.again(repetitions + more, more)}."

    def unsettled(self) -> str:
        """Race again without other programs, where adding to what they disturbed would take too long."""
        return (f"close other programs, then race again: {self._anew()}; while they run, more than {MOST_MORE} further "
                "repetitions would be needed.")

    def _anew(self, repetitions: int | None = None) -> str:
        """Run the same race under another name."""
        options = "--until-sure" if repetitions is None else f"--until-sure --max-repeat {repetitions}"
        if self.race is None:
            return f"`velodrome race RACE/race.yaml --name RACE-idle {options}`"
        name = f"{self.race.name}-idle"
        runs = "" if self.race.parent == Path("runs") else f" --runs {shlex.quote(str(self.race.parent))}"
        file = shlex.quote(str(self.race / "race.yaml"))
        return f"`velodrome race {file} --name {shlex.quote(name)}{runs} {options}`"

    def more(self, repetitions: int, *, idle: bool = False) -> str:
        """Add repetitions to a race that has its answer: one that runs until it is sure would end at once."""
        first = "close other programs, then " if idle else ""
        options = f"--repeat {repetitions}{self._time(_SOME_MORE * self.repetition)}"
        return f"{first}add repetitions: `{self._on('race --name', options)}`."


#: From this share of the ideal on, more workers are worth a try.
GOOD_EFFICIENCY = 0.7
MORE_WORK = ("race again with a larger model, data set or batch before you pay for more workers: each message then "
              "carries more work.")
_ONE_CORE = "there is one core here, so only more machines can show whether distributing pays"


def against_what(row: Row) -> str:
    """What to race a configuration against that ran alone."""
    others = [] if row.single else ["its engine's single run"]
    if cores_of(row.results) != 1:
        others.append("another number of workers")
    return f"race it against {' and '.join(others) or 'another engine, batch size or model'}."


def one_is_enough(question: Question, chosen: Candidate) -> str:
    """What to try next where one worker is enough: its engine's `single` if that did not run, else more work."""
    engine = chosen.row.configuration.fields["engine"]
    baseline = any(other.row.single and other.row.configuration.fields["engine"] == engine
                   for other in question.candidates)
    if baseline or chosen.row.is_script:
        return MORE_WORK
    return "add its engine's single run to the race: one worker needs no strategy, so that is most likely as good."


def more_workers(question: Question, leader: Candidate) -> str:
    """What to try next with the one that is recommended; never what this race has tried."""
    row = leader.row
    others = [other.row for other in question.candidates if other.row is not row]
    sizes = sorted({other.workers for other in others if other.label == row.label})
    more = [size for size in sizes if size > row.workers]
    place = row.efficiency or (row.scaling and row.scaling.divided_by(row.workers))
    if place is None and row.is_script:
        return ("let the script report its examples, `velodrome.log(examples=…)`: only they show how much of the ideal "
                f"{row.workers} workers reach.")
    if place is None:
        return "add the engine's single run and a one-worker run to the race: only they show whether distributing pays."
    if more:
        return f"{row.label} with {more[0]} workers did no better here, so {MORE_WORK}"
    cores = cores_of(row.results)
    sizes_to_add = "2" if cores == 2 else "2 and more"
    if row.workers == 1 and any(other.workers > 1 for other in others):
        if row.single or cores == 1:
            return MORE_WORK
        return f"add runs of {row.label} with {sizes_to_add} workers: so far only others ran with them."
    if row.workers == 1:
        if cores == 1:
            return f"{_ONE_CORE}."
        if leader.distributed:
            return f"add runs of {row.label} with {sizes_to_add} workers: so far it ran with one."
        return f"add runs with {sizes_to_add} workers: this race does not show whether distributing pays."
    if place.estimate >= GOOD_EFFICIENCY:
        return _larger(row.workers, place.estimate, cores)
    alone = any(name.startswith(f"{row.label} with 1 worker") for name in question.twins)
    fewer = "" if alone or any(size < row.workers for size in sizes) else " or fewer workers"
    return (f"try a larger batch{fewer}: {row.workers} workers reach {100 * place.estimate:.0f} % of the ideal, so "
            "much of what they cost is waiting and messages.")


def _larger(workers: int, efficiency: float, cores: int | None) -> str:
    """The next number of workers, never more than there are cores."""
    reached = f"{workers} still reach {100 * efficiency:.0f} % of the ideal"
    if cores is None or cores > workers:
        return f"try {2 * workers if cores is None else min(2 * workers, cores)} workers: {reached}."
    where = "one core" if cores == 1 else f"{cores} cores"
    return f"this is as many workers as {where} can carry ({reached}): more need more machines."


@dataclass(frozen=True)
class RunsNeeded:
    """Further repetitions, and what each configuration that is left would take for them."""

    #: None if more than is sensible would be needed.
    repetitions: int | None
    #: Repetitions that there are.
    so_far: int
    #: Seconds of one run, by the name of the configuration.
    seconds: Mapping[str, float]
    #: Which option says what is too small to matter.
    option: str = "--tolerance"
    #: Whether only a larger test set could settle it.
    test_set: bool = False

    @property
    def runs(self) -> int | None:
        return None if self.repetitions is None else self.repetitions * len(self.seconds)

    @property
    def total_seconds(self) -> float | None:
        return None if self.repetitions is None else self.repetitions * sum(self.seconds.values())

    def sentence(self, commands: Commands) -> str:
        """What to do, and what it takes."""
        larger = f"choose the simplest, or accept a larger difference: `{commands.recommend(f'{self.option} 0.1')}`"
        if self.test_set:
            return f"only a larger test set would tell them apart: {larger}."
        if self.repetitions is None or self.total_seconds is None:
            return f"more than {MOST_MORE} further repetitions would be needed to tell them apart: {larger}."
        command = commands.again(self.so_far + self.repetitions, self.repetitions)
        return f"{command} (probably {self.runs} more runs, about {in_words(self.total_seconds)})."

    def cost(self, name: str) -> str:
        """`6 more runs, about 4 min`, for one of those that are left."""
        if self.repetitions is None:
            return f"more than {MOST_MORE} more runs"
        runs = "1 more run" if self.repetitions == 1 else f"{self.repetitions} more runs"
        return f"{runs}, about {in_words(self.repetitions * self.seconds[name])}"

    def as_json(self) -> dict[str, Any]:
        each = {name: {"runs": self.repetitions,
                       "seconds": None if self.repetitions is None else self.repetitions * seconds}
                for name, seconds in self.seconds.items()}
        return {"repetitions": self.repetitions, "runs": self.runs, "seconds": self.total_seconds, "each": each}


def runs_needed(question: Question) -> RunsNeeded:
    """What it would cost to settle a question that is open."""
    seconds = {candidate.name: candidate.row.mean("total_seconds") or 0.0 for candidate in question.survivors}
    option = "--accuracy-margin" if question.scale == "points" else "--tolerance"
    return RunsNeeded(question.standing.more, question.standing.looks, seconds, option, bool(question.too_few_examples))
