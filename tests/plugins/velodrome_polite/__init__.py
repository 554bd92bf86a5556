"""A package of somebody else: a launcher that lets other programs go first, and PyTorch under another name, which has
an option of its own."""

from __future__ import annotations

import secrets
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import Field

from velodrome.catalog.engines.torch import ENGINE as TORCH
from velodrome.catalog.options import Option
from velodrome.clusters.definitions import ClusterOptions
from velodrome.clusters.launcher import Allocation, Group, LauncherType, Notice, no_notice
from velodrome.clusters.local.launcher import HereLauncher, LocalGroup, free_port
from velodrome.clusters.local.processes import start_cold
from velodrome.clusters.plan import LOOPBACK, Plan
from velodrome.job.job import Job


class PoliteOptions(ClusterOptions):
    """How polite it is."""

    level: int = Field(10, ge=0, le=19, description="how far behind other programs")


class PoliteLauncher(HereLauncher):
    """Starts processes on this machine with `nice`."""

    name = "polite"
    faults = ("kill",)

    def __init__(self, options: PoliteOptions) -> None:
        super().__init__(options)
        self._level = options.level

    def allocate(self, job: Job, folder: Path | None = None, notice: Notice = no_notice) -> Allocation:
        return Allocation((LOOPBACK,), free_port, facts={"level": self._level})

    def start(self, plan: Plan, folder: Path, *, resume: bool = False) -> Group:
        group = LocalGroup(secrets.token_hex(12))
        for process in plan.processes:
            group.add(start_cold(plan, process, folder, group.token, resume=resume,
                                 wrap=lambda words: ["nice", "-n", str(self._level), *words]))
        return group


LAUNCHER = LauncherType(
    "polite", "processes on this machine that let others go first", "velodrome_polite:PoliteLauncher",
    options=PoliteOptions, inline="level=LEVEL",
)
SHINE = Option[int | None](
    "shine", Annotated[int, Field(ge=1, le=9)] | None, None, "for lantern: how brightly it shines; by default 3",
)
ENGINE = replace(
    TORCH, name="lantern", description="PyTorch by another name", worker="velodrome_polite.lantern", tasks_of="torch",
    options={SHINE: 3},
)
