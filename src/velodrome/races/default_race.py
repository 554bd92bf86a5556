"""The race of a command that varies nothing: every strategy that can train the model here, until one is best."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from velodrome.catalog.base import Engine, Strategy
from velodrome.catalog.models import is_own
from velodrome.catalog.registry import SINGLE, engines
from velodrome.clusters import environments
from velodrome.clusters.launcher import Launcher
from velodrome.clusters.preflight import admit
from velodrome.errors import BadRequest, VelodromeError
from velodrome.job.race import Race
from velodrome.job.read import make_job
from velodrome.machine import cores
from velodrome.races.folder import RaceFolder

#: Seconds that it may take by default.
BUDGET = 900.0


def complete_race(asked: Race, folder: RaceFolder, launcher: Launcher) -> tuple[Race, tuple[str, ...]]:
    """What a race that varies nothing stands for, and a sentence for each strategy that is left out.

    A race that is stored under this name is meant as it is; otherwise every strategy takes part with a worker for each
    core, beside each engine's `single`. Fields that were given are the same for all of them, strategy and workers
    included.
    """
    if (written := folder.written()) is not None:
        given = asked.model_fields_set - {"vary", *(() if asked.job else ("job",))}
        return written.model_copy(update={field: getattr(asked, field) for field in given}), ()
    if asked.job.get("script") is not None:
        return _of_script(asked)
    candidates = list(_strategies(asked))
    if not candidates or asked.job.get("strategy") == SINGLE:
        return asked, ()  # one job, or a name that is refused as in any race
    entries: list[dict[str, Any]] = []
    reasons: dict[str, list[str]] = {}
    unasked: dict[str, list[str]] = {}
    for engine, strategy in candidates:
        if strategy.not_raced is not None and "strategy" not in asked.job:
            unasked.setdefault(strategy.not_raced, []).append(f"{engine.name}/{strategy.name}")
            continue
        if strategy.name == SINGLE and "consistency" in asked.job:
            continue  # it has none, and takes part as the baseline
        possible = [{"engine": engine.name, "strategy": strategy.name, **workers}
                    for workers in _worker_counts(asked, strategy)]
        refused = {number: reason for number, fields in enumerate(possible)
                   if (reason := _refusal({**asked.job, **fields}, launcher)) is not None}
        entries += [fields for number, fields in enumerate(possible) if number not in refused]
        for number, reason in refused.items():
            name = f"{engine.name}/{strategy.name}"
            if len(refused) < len(possible):
                workers = possible[number]["workers"]
                name += " with 1 worker" if workers == 1 else f" with {workers} workers"
            if name not in (names := reasons.setdefault(reason, [])):
                names.append(name)
    if not entries:
        raise BadRequest("\n  ".join(reasons if len(reasons) == 1 else ["nothing can run here:", *reasons]))
    until_sure = asked.until_sure or "until_sure" not in asked.model_fields_set
    limits = {"until_sure": until_sure, "budget": asked.budget or (BUDGET if until_sure else None)}
    notes = [f"left out: {', '.join(names)}: {reason}" for reason, names in (reasons | unasked).items()]
    return asked.model_copy(update={"vary": {"entry": entries}, **limits}), tuple(notes)


def _of_script(asked: Race) -> tuple[Race, tuple[str, ...]]:
    """A script distributes itself, so what is left to find out is whether that pays."""
    if "workers" in asked.job:
        return asked, ()
    until_sure = asked.until_sure or "until_sure" not in asked.model_fields_set
    limits = {"until_sure": until_sure, "budget": asked.budget or (BUDGET if until_sure else None)}
    return asked.model_copy(update={"vary": {"workers": [1, max(2, cores())]}, **limits}), ()


def _strategies(asked: Race) -> Iterator[tuple[Engine, Strategy]]:
    """Every strategy that may be meant, those of the usual engine first."""
    usual = environments.default_engine(str(asked.job.get("model") or ""))
    chosen = asked.job.get("engine") or asked.engine
    if chosen is None and is_own(str(asked.job.get("model", ""))):
        chosen = usual  # a model of one's own is written for one framework
    for engine in sorted(engines(), key=lambda engine: engine.name != usual):
        for strategy in engine.strategies if chosen in (None, engine.name) else ():
            if asked.job.get("strategy") in (None, strategy.name):
                yield engine, strategy


def _worker_counts(asked: Race, strategy: Strategy) -> list[dict[str, int]]:
    """A worker for each core, and at least two; nothing where they were given. One alone takes part, too, where that is
    another training than `single`, or where the strategy was asked for."""
    if strategy.max_workers == 1:
        return [{"workers": 1}]
    if "workers" in asked.job:
        return [{}]
    like_single = strategy.exact and not strategy.needs_control and not strategy.has_servers
    alone = [] if like_single and "strategy" not in asked.job else [{"workers": 1}]
    return [*alone, {"workers": max(2, cores())}]


def _refusal(fields: dict[str, Any], launcher: Launcher) -> str | None:
    """Why a job cannot run here; None if it can."""
    try:
        admit(make_job(fields), launcher)
    except VelodromeError as error:
        return _reason(error)
    return None


def _reason(error: VelodromeError) -> str:
    """What is missing, without the name of the strategy, so that strategies that lack the same have one sentence."""
    reasons = getattr(error, "reasons", None)
    return "; ".join(reasons) if reasons else str(error)
