"""Ends a run of a race to a target that cannot win any more, by the events that it reports."""

from __future__ import annotations

from velodrome.events.endings import BEATEN
from velodrome.events.models import EpochEvent, Event
from velodrome.job.job import Job
from velodrome.judge.early_end import Limit
from velodrome.run.outcome import Failure
from velodrome.tasks.registry import task_of


class EarlyEnd:
    """Ends a run after an epoch beyond the limit, but not before `grace` epochs.

    The last epoch ends by itself, with everything that a whole run measures.
    """

    def __init__(self, job: Job, limit: Limit, grace: int) -> None:
        self._job, self._limit, self._grace = job, limit, grace
        self._trained = 0.0
        self._failure: Failure | None = None

    def take(self, event: Event) -> None:
        """Note what the run reports."""
        if not isinstance(event, EpochEvent) or self._failure is not None:
            return
        self._trained += event.seconds
        limit = self._limit
        reached = limit.target.reached(task_of(self._job).measured(event.validation.as_json()))
        if self._trained > limit.seconds and self._grace <= event.epoch < self._job.epochs and not reached:
            self._failure = Failure(limit.reason(self._trained), cause=BEATEN)

    def stop(self) -> Failure | None:
        """Why the run is to be ended now, if it is."""
        return self._failure
