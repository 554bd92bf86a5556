"""A run states once why its workers will not end with the weights of one."""

from __future__ import annotations

from velodrome.models.equivalence import claims_equivalence, equivalence_warnings, zoo_differences
from velodrome.worker.context import Context


def warn_of_zoo_model(context: Context) -> None:
    """For engines that have models of the zoo only."""
    if context.is_chief and claims_equivalence(context.job):
        for note in equivalence_warnings(context.job.model, zoo_differences(context.job.model)):
            context.events.emit("warning", message=note)
