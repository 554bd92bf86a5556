"""What can run here: `list_engines`, what each strategy would do with a job, and environments of engines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from velodrome.catalog.base import Engine, Strategy
from velodrome.catalog.exchange import Traffic, traffic_of
from velodrome.catalog.registry import all_forms, engine_of, options_of, strategy_of
from velodrome.clusters import DEFAULT, environments
from velodrome.clusters.environments import install
from velodrome.clusters.launcher import Launcher
from velodrome.clusters.preflight import admit, complete, examined
from velodrome.errors import VelodromeError
from velodrome.events.models import InspectionEvent
from velodrome.job.job import Job
from velodrome.job.resolve import strategy_fields


def list_engines() -> list[dict[str, Any]]:
    """Every engine with its interpreter and strategies, as plain data; once for each framework it trains with."""
    return [_engine(engine) for engine in all_forms()]


def _engine(engine: Engine) -> dict[str, Any]:
    python = environments.interpreter_of(engine.key)
    try:
        versions = environments.probe(python).versions
    except environments.BrokenInterpreter:  # reported as missing
        versions = {}
    strategies = []
    for strategy in engine.strategies:
        missing = environments.missing(engine, strategy)
        strategies.append({
            "name": strategy.name,
            "description": strategy.description,
            "roles": list(strategy.roles),
            "synchronous": strategy.synchronous,
            "consistency": str(strategy.consistency),
            "consistencies": [str(model) for model in strategy.consistencies or (strategy.consistency,)],
            "options": {option.name: default for option, default in options_of(engine, strategy).items()},
            "implementation": {side: list(parts) for side, parts in asdict(strategy.implementation).items()},
            "available": not missing,
            "missing": missing,
        })
    return {
        "name": engine.name,
        "framework": engine.framework,
        "description": engine.description,
        "upstream": engine.upstream,
        "install": _installation(engine),
        "interpreter": str(python),
        "versions": {package: versions[package] for package in engine.packages if package in versions},
        "strategies": strategies,
    }


def strategies_for(
    job: Job, workers: int, inspection: InspectionEvent, launcher: Launcher
) -> list[dict[str, Any]]:
    """The strategies of a job's engine with so many workers: the traffic of each per worker and step, and why it would
    be refused, if it would."""
    return [_strategy_for(job, strategy, workers, inspection, launcher) for strategy in engine_of(job).strategies]


def _strategy_for(
    job: Job, strategy: Strategy, workers: int, inspection: InspectionEvent, launcher: Launcher
) -> dict[str, Any]:
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


def _installation(engine: Engine) -> dict[str, Any] | None:
    """What the engine's own environment takes, and whether it is there for this version; None if it needs none."""
    own = engine.own_environment
    if own is None:
        return None
    return {
        "command": engine.install_command,
        "installed": environments.is_current(engine, environments.folder() / engine.key),
        "download_mb": own.download_mb, "disk_mb": own.disk_mb, "minutes": own.minutes,
    }


def install_engine(
    name: str, progress: Callable[[str], None] = lambda phrase: None, *, framework: str | None = None
) -> dict[str, Any]:
    """Create or repair the environment of an engine that cannot share ours; `progress` gets phrases."""
    installed = install.install(name, progress, framework=framework)
    return {"engine": name, "framework": framework, "interpreter": str(installed.interpreter),
            "changed": installed.changed, "seconds": round(installed.seconds, 1)}


def remove_engine(
    name: str, progress: Callable[[str], None] = lambda phrase: None, *, framework: str | None = None
) -> bool:
    """Remove the environment of an engine, by default of all its frameworks; `progress` gets phrases. Whether there was
    one."""
    return install.remove(name, progress, framework=framework)
