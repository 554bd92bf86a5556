"""Which worker may begin its next step under each consistency model. Pure: no clock, no process, no framework.

A worker's *clock* is the number of updates that it has pushed in the epoch: the number of the step that it begins next.
Workers that have finished the epoch, or are gone, hold up nobody. A server asks its policy before it sends weights.

- BSP (Valiant, 1990): nobody begins step c + 1 before all have pushed step c; the pushes of a step are one update.
- ASP: nobody waits.
- SSP (Ho et al., 2013): a worker at clock c begins when the slowest is at c − S or later, so it reads every update
  stamped c − S − 1 or earlier. SSP with S = 0 is lock step.
- DSSP (Zhao et al., 2019): as SSP with S = LOW; a worker that is further ahead and has no one before it may make a few
  more steps, at most up to HIGH. How many, a prediction from the last two pushes of it and of the slowest says: as many
  as let it arrive closest to a push of the slowest, so that it waits least.
- OSP (Chen et al., 2023, arXiv 2306.16926): as BSP, but only the important part of the gradients is waited for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from velodrome.catalog.exchange import Consistency

#: How many pushes of a worker are remembered.
_KEPT = 2


@dataclass
class Clocks:
    """How far each worker is in the epoch, and when it pushed last."""

    #: Updates that each worker has pushed.
    pushed: list[int]
    #: Whether each worker still trains in this epoch.
    training: list[bool]
    #: Seconds of the last two pushes of each worker, the older first, by any clock that all share.
    times: list[list[float]] = field(default_factory=list)

    @classmethod
    def of(cls, workers: int) -> Clocks:
        """Those of so many workers at the beginning of an epoch."""
        return cls([0] * workers, [True] * workers, [[] for _ in range(workers)])

    def push(self, worker: int, now: float) -> None:
        """Record that a worker has pushed an update."""
        self.pushed[worker] += 1
        self.times[worker] = [*self.times[worker], now][-_KEPT:]

    def finish(self, worker: int) -> None:
        """Record that a worker makes no more steps in this epoch."""
        self.training[worker] = False

    @property
    def slowest(self) -> int | None:
        """The training worker that has pushed least, the first of several; None where nobody trains."""
        training = [worker for worker, trains in enumerate(self.training) if trains]
        return min(training, key=self.pushed.__getitem__, default=None)

    def lead(self, worker: int) -> int:
        """How many steps a worker is ahead of the slowest; 0 where nobody else trains."""
        slowest = self.slowest
        return 0 if slowest is None else max(0, self.pushed[worker] - self.pushed[slowest])

    def interval(self, worker: int) -> float | None:
        """Seconds between the last two pushes of a worker; None before it has made two."""
        times = self.times[worker]
        return times[-1] - times[0] if len(times) == _KEPT else None


class Policy(ABC):
    """Decides for one server which of its workers may begin a step."""

    #: Whether the pushes of all workers for a step are summed and applied as one update.
    together = False

    @abstractmethod
    def may_begin(self, worker: int, clocks: Clocks) -> bool:
        """Whether a worker may begin its next step now. A policy may remember that it allowed it."""

    def begin_epoch(self) -> None:  # noqa: B027 (most remember nothing)
        """Forget the epoch before."""

    @staticmethod
    def blockers(worker: int, clocks: Clocks) -> list[int]:
        """The workers that one which may not begin waits for: the slowest ones."""
        slowest = clocks.slowest
        if slowest is None:
            return []
        least = clocks.pushed[slowest]
        return [other for other, trains in enumerate(clocks.training)
                if trains and clocks.pushed[other] == least and other != worker]


class Asynchronous(Policy):
    """ASP."""

    def may_begin(self, worker: int, clocks: Clocks) -> bool:
        return True


@dataclass
class Bounded(Policy):
    """SSP: at most `bound` steps ahead of the slowest."""

    bound: int

    def may_begin(self, worker: int, clocks: Clocks) -> bool:
        return clocks.lead(worker) <= self.bound


class LockStep(Bounded):
    """BSP, and OSP for the part of the gradients that is waited for."""

    together = True

    def __init__(self) -> None:
        super().__init__(0)


@dataclass
class Dynamic(Policy):
    """DSSP: between `low` and `high` steps ahead of the slowest."""

    low: int
    high: int
    #: For each worker that was allowed more than `low`: the clock up to which it may begin steps.
    _allowed: dict[int, int] = field(default_factory=dict)

    def may_begin(self, worker: int, clocks: Clocks) -> bool:
        clock = clocks.pushed[worker]
        if clocks.lead(worker) <= self.low:
            self._allowed.pop(worker, None)
            return True
        if worker in self._allowed:  # it waits once these steps are made, until it is at most `low` ahead
            return clock <= self._allowed[worker]
        if clock < max(done for done, trains in zip(clocks.pushed, clocks.training, strict=True) if trains):
            return False
        more = self.extra_steps(worker, clocks)
        self._allowed[worker] = clock + more - 1
        return more > 0

    def extra_steps(self, worker: int, clocks: Clocks) -> int:
        """How many steps the fastest worker should make before it waits for the slowest: the number after which one of
        its pushes comes closest to one of the slowest's, at most so many that it stays within `high`."""
        slowest = clocks.slowest
        most = self.high - clocks.lead(worker) + 1
        if slowest is None or most <= 0:
            return 0
        mine, theirs = clocks.interval(worker), clocks.interval(slowest)
        if mine is None or theirs is None:
            return 0
        my_pushes = [clocks.times[worker][-1] + steps * mine for steps in range(most + 1)]
        their_pushes = [clocks.times[slowest][-1] + (steps + 1) * theirs for steps in range(most + 1)]
        waits = [min(abs(theirs - mine) for theirs in their_pushes) for mine in my_pushes]
        return waits.index(min(waits))

    def begin_epoch(self) -> None:
        self._allowed.clear()


def policy_of(consistency: Consistency) -> Policy:
    """The policy of a server under a consistency model."""
    match consistency.model:
        case "bsp" | "osp":
            return LockStep()
        case "asp":
            return Asynchronous()
        case "ssp":
            assert consistency.low is not None, "a job names the bound"
            return Bounded(consistency.low)
        case "dssp":
            assert consistency.low is not None, "a job names both bounds"
            assert consistency.high is not None
            return Dynamic(consistency.low, consistency.high)
    raise ValueError(f"{consistency} is no consistency model of parameter servers")
