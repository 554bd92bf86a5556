"""Ends a run of a race to a target that cannot win any more, by the events that it reports."""

from __future__ import annotations

from velodrome.events.models import EpochEvent, Event
from velodrome.job.job import Job
from velodrome.judge.early_end import Limit
from velodrome.run.execute import EndEarly
from velodrome.run.supervisor import Listener
from velodrome.tasks.registry import task_of


def watched(listener: Listener, job: Job, limit: Limit, grace: int) -> Listener:
    """A listener that passes events on and ends the run after an epoch beyond the limit, but not before `grace` epochs.

    The last epoch ends by itself, with everything that a whole run measures.
    """
    task, trained = task_of(job), 0.0

    def listen(event: Event) -> None:
        nonlocal trained
        listener(event)
        if not isinstance(event, EpochEvent):
            return
        trained += event.seconds
        reached = limit.target.reached(task.measured(event.validation.as_json()))
        if trained > limit.seconds and grace <= event.epoch < job.epochs and not reached:
            raise EndEarly(limit.reason(trained))

    return listen
