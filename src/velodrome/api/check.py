"""`check`: a second of a job in one process, and what they say about every strategy of its engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from velodrome.catalog.base import Strategy
from velodrome.catalog.engines.torch import MESH
from velodrome.catalog.exchange import Traffic, traffic_of
from velodrome.catalog.registry import engine_of, strategy_of
from velodrome.clusters import environments
from velodrome.clusters.launcher import Launcher
from velodrome.clusters.preflight import admit, complete, examined
from velodrome.clusters.registry import DEFAULT, Where, open_launcher
from velodrome.data.base import Progress
from velodrome.data.fetch import using_mirror
from velodrome.errors import BadRequest, VelodromeError
from velodrome.events.models import Event, InspectionEvent, PhaseEvent, ResultEvent, WarningEvent
from velodrome.job.job import Job
from velodrome.job.resolve import alone, strategy_fields, within_limits
from velodrome.judge.estimate import Known, Timing
from velodrome.machine import cores
from velodrome.races.costs import Costs
from velodrome.run.dry_run import rehearse
from velodrome.run.script_trial import try_script
from velodrome.tasks.registry import recorded_task, task_of
from velodrome.variables import CHECK


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
        tried = alone(job)
        mesh = MESH.of(job)
        divided = f"{workers}:{mesh}" if mesh else f"{workers}"
        events = rehearse(tried, f"{CHECK}{divided}", launcher, on_download)
        inspection = next(event for event in events if isinstance(event, InspectionEvent))
        final = next(event for event in events if isinstance(event, ResultEvent))
        strategies = [
            _strategy(job, strategy, workers, inspection, launcher)
            for strategy in engine_of(job).strategies
        ]
    task = recorded_task(task_of(tried).name, metrics=final.metrics)  # only the process knows those of an own task
    return {
        "model": job.model, "dataset": job.dataset, "engine": job.engine, "task": task.name,
        "parameters": final.parameters, "batch": inspection.batch, "step_seconds": inspection.seconds,
        "seconds": _whole(job, tried, events, inspection),
        "layers": _layers(inspection), "memory": _memory(inspection), "strategies": strategies,
        "test": task.summary(final.test.as_json()),
        "warnings": list(dict.fromkeys(event.message for event in events if isinstance(event, WarningEvent))),
    }


def _check_script(job: Job, on: Where) -> dict[str, Any]:
    with open_launcher(on) as launcher:
        if launcher.name != DEFAULT:
            raise BadRequest(f"--on {str(on)!r}: a script is tried on this machine, in a scratch folder: leave it out")
        about = {"script": job.script, "engine": job.engine, "workers": job.workers}
        return about | try_script(job, launcher)


def _whole(job: Job, tried: Job, events: Sequence[Event], inspection: InspectionEvent) -> float:
    """Seconds that the job is expected to take with its own strategy and workers, from the pace of one process."""
    begun = next((event.time for event in events if isinstance(event, PhaseEvent) and event.phase == "train"), 0.0)
    startup = max(0.0, begun - min(event.time for event in events))
    timing = Timing(startup, inspection.batch / max(inspection.seconds, 1e-9))
    return Costs(measured=(Known(tried, timing, cores(), measured=True),)).of(job).seconds


def _layers(inspection: InspectionEvent) -> list[dict[str, Any]]:
    """Each layer with its share of the time of a step; what an engine cannot measure has none."""
    total = sum(layer.seconds for layer in inspection.layers)
    return [
        {**layer.as_json(), "share": layer.seconds / total if total > 0 else None} for layer in inspection.layers
    ]


def _memory(inspection: InspectionEvent) -> dict[str, int | None]:
    names = ("weight_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes", "data_bytes", "mapped_bytes")
    return {name: getattr(inspection, name) for name in names}


def _strategy(
    job: Job, strategy: Strategy, workers: int, inspection: InspectionEvent, launcher: Launcher
) -> dict[str, Any]:
    """A strategy with so many workers: its traffic per worker and step, and why it would be refused, if it would."""
    count = min(workers, strategy.max_workers or workers)
    # What only some strategies use was given for the job's own one.
    own = {option.name: default for option, default in strategy.options.items()}
    others = {} if strategy.name == job.strategy else {"consistency": None, **strategy_fields(), **own}
    wanted = job.model_copy(update={
        "strategy": strategy.name, "workers": count, "servers": (job.servers or 1) if strategy.has_servers else 0,
        "batch_scope": None, "keep_going": False, "faults": [], **others,
    })
    try:
        wanted = complete(wanted)
        # Other launchers cannot start several processes, and that is no property of the job.
        _ = admit(wanted, launcher) if launcher.name == DEFAULT else examined(wanted)
        refused = None
    except VelodromeError as error:
        refused = str(error)
    traffic = _traffic(wanted, strategy, inspection.gradient_bytes, count)
    for division in inspection.divisions:
        if division.strategy == strategy.name and division.workers == count:
            refused = refused or division.refused
            if division.bytes is not None:
                traffic = Traffic(division.bytes, division.bytes, division.formula)
    return {"strategy": strategy.name, "workers": count, "consistency": str(strategy_of(wanted).consistency),
            "traffic": traffic and asdict(traffic), "refused": refused}


def _traffic(job: Job, strategy: Strategy, gradient_bytes: int, workers: int) -> Traffic | None:
    """What a worker of the job should send per step; None where no formula knows."""
    changed, groups = strategy.exchanged(job), strategy.groups(job)
    if strategy.exchange is None or changed is None:
        return None
    return traffic_of(strategy.exchange, gradient_bytes, workers // groups, groups=groups, **changed)
