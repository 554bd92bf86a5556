"""`list_engines`: the engines and their strategies, and whether each can run here."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from velodrome.cluster import environments
from velodrome.offers.base import Engine
from velodrome.offers.registry import engines


def list_engines() -> list[dict[str, Any]]:
    """Every engine with its interpreter and strategies, as plain data."""
    return [_engine(engine) for engine in engines()]


def _engine(engine: Engine) -> dict[str, Any]:
    python = environments.interpreter_of(engine.name)
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
            "consistency": strategy.consistency,
            "implementation": {side: list(parts) for side, parts in asdict(strategy.implementation).items()},
            "available": not missing,
            "missing": missing,
        })
    return {
        "name": engine.name,
        "description": engine.description,
        "interpreter": str(python),
        "versions": {package: versions[package] for package in engine.packages if package in versions},
        "strategies": strategies,
    }
