"""What is asked of a race: the candidates, how two of them compare, and who is still in."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from velodrome.judge.accuracy_guard import limited_by_test_set
from velodrome.judge.attempts import Attempts
from velodrome.judge.blocks import FIRST_LOOK, Block, fit, logarithms
from velodrome.judge.compare import Row
from velodrome.judge.criteria import TOLERANCE, Objective, Wording
from velodrome.judge.decide import Contest, ContestState, Outcome, contest_of, decide
from velodrome.judge.measures import Spread
from velodrome.judge.phrases import Lead, Scale
from velodrome.tasks.base import Better


@dataclass(frozen=True)
class Candidate:
    """A row with what its runs measured of the objective."""

    row: Row
    spread: Spread
    #: What counts in the contest, by repetition.
    blocks: Mapping[Block, float]
    #: All runs with what they cost, where some of the race were no success.
    attempts: Attempts | None = None
    #: For each repetition, by how much other programs may have slowed the run at most: a logarithm.
    slowed: Mapping[Block, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.row.name

    @property
    def value(self) -> float:
        """The mean of all runs, as tables have it; that of the runs of a lead is `Question.value`."""
        price = self.attempts.per_success if self.attempts is not None else None
        return self.spread.mean if price is None else price

    @property
    def count(self) -> int:
        """All runs."""
        return self.spread.count if self.attempts is None else self.attempts.tries

    @property
    def missed(self) -> bool:
        """Whether some of its runs were no success."""
        return self.attempts is not None and not self.attempts.always

    def mean_slowed(self, blocks: Iterable[Block] | None = None) -> float:
        """By how much other programs may have slowed its runs of these repetitions at most, on average: a logarithm."""
        amounts = [self.slowed.get(block, 0.0) for block in (self.blocks if blocks is None else blocks)
                 if block in self.blocks]
        return fmean(amounts) if amounts else 0.0

    @property
    def distributed(self) -> bool:
        """Whether it is spread over several workers or processes: one worker beside a parameter server is, too."""
        return self.row.workers > 1 or self.row.processes > 1


@dataclass(frozen=True)
class Compared:
    """The repetitions that two candidates are compared in, and how many there are with stragglers."""

    blocks: frozenset[Block]
    with_stragglers: int

    @property
    def count(self) -> int:
        return len(self.blocks)


@dataclass(frozen=True)
class Question:
    """An objective applied to rows: eligible candidates, the measure, and what was excluded and why."""

    objective: Objective
    candidates: tuple[Candidate, ...]
    better: Better
    #: Writes a value with its unit.
    text: Callable[[float], str]
    #: Sentences, without their full stop, on configurations that may not win and on what is not settled.
    notes: tuple[str, ...] = ()
    #: Writes what a success takes, where runs may miss what decides.
    text_per_success: Callable[[float], str] | None = None
    #: Why no configuration is eligible; empty if one is.
    no_candidates: str = ""
    #: How to fix that.
    fix: str = ""

    #: Differences below this are too small to matter: a share, or points of accuracy where those decide.
    tolerance: float = TOLERANCE
    scale: Scale = "ratio"
    #: Every value counts as it is, stragglers too.
    exact: bool = False
    #: Where the contest is not in the candidates' blocks.
    contest: Contest | None = None
    #: What a run did that counts as a success: `reached accuracy>=0.97`.
    success: str = "finished"
    #: How many configurations were set aside because no run of theirs was one.
    never: int = 0
    #: How many were set aside because of their accuracy.
    less_accurate: int = 0
    #: What the worst of these measured, against the best.
    lost_accuracy: str = ""
    #: Candidates that seem to learn less than the best, which is not proven: `test accuracy 0.523 against 0.918`.
    seen_worse: Mapping[str, str] = field(default_factory=dict)
    #: Scripts that set their own seed, by name: all runs of one are the same training, whatever it took.
    one_seed: tuple[str, ...] = ()
    #: One worker of a strategy that then trains just as its engine's `single` does, and that `single`, by name: for a
    #: user they are one answer, so they do not compete.
    twins: Mapping[str, str] = field(default_factory=dict)

    @property
    def wording(self) -> Wording:
        """How a lead is called."""
        return self.objective.wording

    @property
    def slowed(self) -> bool:
        """Whether other programs may have slowed some of the runs."""
        return any(amount > 0 for candidate in self.candidates for amount in candidate.slowed.values())

    @property
    def is_clouded(self) -> bool:
        """Whether other programs may have changed those that are left by more than matters, on average."""
        left = self.survivors
        return sum(candidate.mean_slowed() for candidate in left) > len(left) * math.log1p(self.tolerance)

    @cached_property
    def idle(self) -> Question:
        """The question if other programs had slowed nothing: what they may have changed is the difference."""
        return replace(self, candidates=tuple(replace(candidate, slowed={}) for candidate in self.candidates))

    @property
    def anew(self) -> int | None:
        """How many repetitions would probably settle it if all ran without other programs; None if that is beyond what
        is sensible."""
        standing = self.idle.standing
        if standing.outcome == "open" and standing.more is None:
            return None
        return max(FIRST_LOOK, standing.looks + (standing.more or 0))

    @property
    def idle_outcome(self) -> Outcome:
        return self.idle.standing.outcome

    @property
    def has_target(self) -> bool:
        """Whether runs may miss what decides."""
        return self.success != "finished"

    @cached_property
    def standing(self) -> ContestState:
        """How the contest of the candidates stands; it speaks of them by their number."""
        return decide(self._contest())

    @cached_property
    def too_few_examples(self) -> int:
        """The size of a test set on which those that are left stay level however often they run; 0 if there is none."""
        if self.scale != "points" or self.contest is None or not limited_by_test_set(self.contest, self.standing):
            return 0
        results = [result for candidate in self.survivors for result in candidate.row.results]
        return min((result.test.total or 0) if result.test else 0 for result in results)

    def _contest(self) -> Contest:
        contest = self.contest
        if contest is None:
            logs = logarithms([candidate.blocks for candidate in self.candidates])
            contest = contest_of(logs if self.better == "more" else -logs, self.tolerance, robust=not self.exact)
        return contest.with_slowed(self._slowed_at) if self.slowed else contest

    def _slowed_at(self, look: int) -> NDArray[np.float64]:
        """By how much other programs may have slowed each candidate in the first so many repetitions, at most."""
        blocks = self._blocks[:look]
        return np.array([candidate.mean_slowed(blocks) for candidate in self.candidates])

    def lead(self, first: Candidate, second: Candidate) -> Lead:
        """How much better the first is, whichever way is better."""
        return Lead.of(self.standing.lead(self.number(first), self.number(second)), self.scale)

    def _straggling_at(self, look: int) -> dict[str, frozenset[Block]]:
        """Of the first so many repetitions, those of each candidate, by name, that leads leave out as stragglers."""
        if self.exact or self.contest is not None:
            return {}
        logs = logarithms([candidate.blocks for candidate in self.candidates])
        straggling = fit(logs[None, :, :look]).stragglers[0]
        return {candidate.name: frozenset(block for block, out in zip(self._blocks, outs, strict=False) if out)
                for candidate, outs in zip(self.candidates, straggling, strict=True)}

    @cached_property
    def _blocks(self) -> list[Block]:
        """Every repetition."""
        return sorted({block for candidate in self.candidates for block in candidate.blocks})

    def compared(self, first: Candidate, second: Candidate) -> Compared:
        """The repetitions that a lead is of: those that both ran, until one beat the other, without stragglers."""
        standing = self.standing
        look = standing.look_of(self.number(first), self.number(second))
        early = set(self._blocks[:look])
        if self.scale == "points":  # accuracies are not compared within repetitions
            return Compared(frozenset(early), len(early))
        both = early & first.blocks.keys() & second.blocks.keys()
        straggling = self._straggling_at(look)
        out = frozenset[Block]().union(*(straggling.get(candidate.name, ()) for candidate in (first, second)))
        return Compared(frozenset(both - out), len(both))

    def value(self, candidate: Candidate, other: Candidate) -> float:
        """The mean of the runs that a lead over the other, or of the other, is of; where one was not always successful,
        that is what a success took it in all runs."""
        kept = self.compared(candidate, other).blocks
        values = tuple(value for block, value in candidate.blocks.items() if block in kept)
        if not values or candidate.attempts is not None or other.attempts is not None:
            return candidate.value
        return replace(candidate.spread, values=values).mean

    def ahead_in(self, first: Candidate, second: Candidate) -> tuple[int, int]:
        """In how many of the repetitions that both ran the first was better, and how many those are."""
        both = first.blocks.keys() & second.blocks.keys()
        sign = 1 if self.better == "more" else -1
        return sum(sign * first.blocks[block] > sign * second.blocks[block] for block in both), len(both)

    def amount(self, candidate: Candidate, other: Candidate | None = None) -> str:
        """What a candidate measured, with its unit, in the runs that are compared with the other, if there is one; per
        success where some of its runs were none."""
        if candidate.missed:
            return f"{self.per_success(candidate)} ({self.successes(candidate)})"
        return self.text(candidate.value if other is None else self.value(candidate, other))

    def successes(self, candidate: Candidate) -> str:
        """`reached accuracy>=0.97 in 4 of 5 runs`; empty where no success is asked for."""
        return "" if candidate.attempts is None else f"{self.success} in {candidate.attempts.count_text}"

    def per_success(self, candidate: Candidate) -> str:
        """`12.30 s of training per success`."""
        return f"{(self.text_per_success or self.text)(candidate.value)} per success"

    def number(self, candidate: Candidate) -> int:
        """Where it stands among the candidates."""
        return next(number for number, other in enumerate(self.candidates) if other is candidate)

    @property
    def survivors(self) -> list[Candidate]:
        """The candidates that nobody has beaten, the one that seems best first."""
        standing = self.standing
        left = [self.candidates[number] for number in standing.survivors]
        left.sort(key=lambda candidate: self.number(candidate) != standing.leader)
        return left
