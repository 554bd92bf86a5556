"""`check`: a second of a job in one process, and what they say about every strategy of its engine."""

from __future__ import annotations

from typing import Any

from velodrome.api.engines import strategies_for
from velodrome.clusters import DEFAULT, Where, environments, open_launcher
from velodrome.clusters.preflight import complete
from velodrome.data.base import Progress
from velodrome.data.fetch import using_mirror
from velodrome.errors import BadRequest
from velodrome.events.models import InspectionEvent
from velodrome.job.job import Job
from velodrome.job.resolve import within_limits
from velodrome.races.costs import Costs
from velodrome.run.dry_run import inspect
from velodrome.run.script_trial import try_script
from velodrome.tasks.registry import recorded_task, task_of


def check(
    job: Job, *, on: Where = DEFAULT, mirror: str | None = None, on_download: Progress | None = None
) -> dict[str, Any]:
    """Try a job: a second of training in one process, then its ``layers``, ``memory``, the expected ``seconds`` of the
    whole job, and ``strategies`` with their traffic per step, and what each of them would refuse.

    A script is tried with all of its workers in a copy of the current folder, for at most 50 steps or a minute: then
    what it reported (``figures``), ``steps_per_second``, and ``expected_seconds`` of the whole job if it reports
    ``total_steps`` or ``total_epochs``, or has an argument such as ``--epochs``.

    Args:
        job: what to train and how; strategies are described for its number of workers, or for two if it has one.
        on: the launcher: ``local``, or ``debug`` to try it inside this program.
        mirror: folder or URL with the publisher's files of a data set.
        on_download: called with bytes done, bytes in total and a label while a data set is fetched.

    Raises:
        BadRequest: the job cannot run as requested.
        RunFailed: the model, the loss or the data failed; ``failure`` has the traceback of your own code.
    """
    workers = job.workers if job.workers > 1 else 2
    job = complete(within_limits(job, environments.default_engine(job.model, job.script)))
    if job.script is not None:
        return _check_script(job, on)
    with using_mirror(mirror), open_launcher(on) as launcher:
        inspected = inspect(job, workers, launcher, on_download)
        about, final = inspected.about, inspected.final
        strategies = strategies_for(job, workers, about, launcher)
    # Only the process knows the metrics of an own task.
    task = recorded_task(task_of(inspected.job).name, metrics=final.metrics)
    return {
        "model": job.model, "dataset": job.dataset, "engine": job.engine, "task": task.name,
        "parameters": final.parameters, "batch": about.batch, "step_seconds": about.seconds,
        "seconds": Costs.at_pace(inspected.job, inspected.timing).of(job).seconds,
        "layers": _layers(about), "memory": _memory(about), "strategies": strategies,
        "test": task.summary(final.test.as_json()),
        "warnings": [*inspected.warnings],
    }


def _check_script(job: Job, on: Where) -> dict[str, Any]:
    with open_launcher(on) as launcher:
        if launcher.name != DEFAULT:
            raise BadRequest(f"--on {str(on)!r}: a script is tried on this machine, in a scratch folder: leave it out")
        about = {"script": job.script, "engine": job.engine, "workers": job.workers}
        return about | try_script(job, launcher)


def _layers(inspection: InspectionEvent) -> list[dict[str, Any]]:
    """Each layer with its share of the time of a step; what an engine cannot measure has none."""
    total = sum(layer.seconds for layer in inspection.layers)
    return [
        {**layer.as_json(), "share": layer.seconds / total if total > 0 else None} for layer in inspection.layers
    ]


def _memory(inspection: InspectionEvent) -> dict[str, int | None]:
    names = ("weight_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes", "data_bytes", "mapped_bytes")
    return {name: getattr(inspection, name) for name in names}
