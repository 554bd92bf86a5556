"""A run states once why its workers will not end with the weights of one."""

from __future__ import annotations

from velodrome.models.promises import outside_promise, promised, reasons_of_zoo
from velodrome.worker.context import Context


def warn_of_zoo_model(context: Context) -> None:
    """For engines that have models of the zoo only."""
    if context.is_chief and promised(context.job):
        for note in outside_promise(context.job.model, reasons_of_zoo(context.job.model)):
            context.events.emit("warning", message=note)
