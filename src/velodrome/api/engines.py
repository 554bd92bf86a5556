"""`list_engines`: the engines and their strategies, and whether each can run here; environments of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from velodrome.catalog.base import Engine
from velodrome.catalog.registry import all_forms, options_of
from velodrome.clusters import environments
from velodrome.clusters.environments import install


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
