"""Velodrome races distributed-training strategies against each other and recommends one.

    import velodrome
    result = velodrome.train(velodrome.Job(dataset="digits", engine="torch", strategy="ddp", workers=2))
    print(result["test"]["accuracy"])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from velodrome.api import datasets, examples, runs, study
    from velodrome.api.check import check
    from velodrome.api.engines import list_engines
    from velodrome.api.race import race
    from velodrome.api.report import recommend, report
    from velodrome.api.serving import export, predict
    from velodrome.api.train import attach, plan, resume, train
    from velodrome.errors import BadRequest, RunFailed, VelodromeError
    from velodrome.figures import log
    from velodrome.job.job import Job
    from velodrome.job.race import Race

__all__ = [
    "BadRequest", "Job", "Race", "RunFailed", "VelodromeError", "attach", "check", "datasets", "examples", "export",
    "list_engines", "log", "plan", "predict", "race", "recommend", "report", "resume", "runs", "study", "train",
]

#: Where each name lives, imported at first use, so that a worker or `--help` does not pay for what it does not need.
_LAZY_EXPORTS = {
    "BadRequest": "velodrome.errors:BadRequest",
    "Job": "velodrome.job.job:Job",
    "Race": "velodrome.job.race:Race",
    "RunFailed": "velodrome.errors:RunFailed",
    "VelodromeError": "velodrome.errors:VelodromeError",
    "attach": "velodrome.api.train:attach",
    "check": "velodrome.api.check:check",
    "datasets": "velodrome.api.datasets",
    "examples": "velodrome.api.examples",
    "export": "velodrome.api.serving:export",
    "list_engines": "velodrome.api.engines:list_engines",
    "log": "velodrome.figures:log",
    "plan": "velodrome.api.train:plan",
    "predict": "velodrome.api.serving:predict",
    "race": "velodrome.api.race:race",
    "recommend": "velodrome.api.report:recommend",
    "report": "velodrome.api.report:report",
    "resume": "velodrome.api.train:resume",
    "runs": "velodrome.api.runs",
    "study": "velodrome.api.study",
    "train": "velodrome.api.train:train",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY_EXPORTS:
        raise AttributeError(f"module 'velodrome' has no attribute {name!r}")
    from importlib import import_module

    module, _, attribute = _LAZY_EXPORTS[name].partition(":")
    loaded = import_module(module)
    return getattr(loaded, attribute) if attribute else loaded


def __dir__() -> list[str]:
    return sorted(__all__)
