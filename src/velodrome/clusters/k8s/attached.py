"""Takes over the pods of a run whose controller is gone."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from velodrome.clusters.k8s import RECORD
from velodrome.clusters.k8s.job import read_record
from velodrome.clusters.k8s.launcher import K8sLauncher, PodGroup
from velodrome.clusters.launcher import Allocation, Notice, no_notice
from velodrome.clusters.plan import Plan
from velodrome.clusters.remote.group import HostRun, RemoteGroup
from velodrome.clusters.remote.link import Link
from velodrome.errors import BadRequest
from velodrome.job.job import Job


def living_pods(folder: Path) -> str | None:
    """The pods of a run that still wait or run, as a person calls them; None if there are none."""
    if not (folder / RECORD).exists():
        return None
    record = read_record(folder)
    job = record.job()
    try:
        return f"pods {record.run!r}" if job.is_alive() else None
    finally:
        job.api.close()


class AttachedLauncher(K8sLauncher):
    """A launcher whose pods were made by a controller that is gone. They are not touched before they are used."""

    def __init__(self, folder: Path) -> None:
        self.record = record = read_record(folder)
        super().__init__(record.options.model_copy(update={"namespace": record.namespace}))
        job = record.job()
        self._api = job.api
        if not job.is_alive():
            raise BadRequest(f"run {folder.name!r}: its pods {record.run!r} are not running any more; `velodrome "
                             f"resume {folder.name}` with the same --on starts it again")
        job.refresh()
        self._job = job
        #: Whether the pods have not been taken over yet.
        self._untouched = True

    @property
    def started(self) -> float | None:
        """When the processes were started; None if the controller was gone before."""
        return self.record.started

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the earlier controller knew about the pods."""
        return self.record.facts

    def allocate(self, job: Job, folder: Path | None = None, notice: Notice = no_notice) -> Allocation:
        """The pods that are there, and new ones when they have been used."""
        if not self._untouched:
            return super().allocate(job, folder, notice)
        self._untouched = False
        self.job.watch()
        return self._nodes_for(job, notice)

    def close(self) -> None:
        """Remove the pods if they were taken over; otherwise they keep running."""
        if self._untouched and self._job is not None:
            self._job.abandon()
            self._job = None
        super().close()

    def start(self, plan: Plan, folder: Path, *, resume: bool = False) -> RemoteGroup:
        """The group of the processes as they are, or as they are started now if there are none yet."""
        if self.record.token is None:
            return super().start(plan, folder, resume=resume)
        self._untouched = False
        self.job.watch()
        # An agent repeats its reports from the first one on: the group must be there before they come.
        group = PodGroup(self.record.token, folder, {}, job=self.job)
        about = self.record.hosts
        for name in dict.fromkeys(process.host for process in plan.processes):
            link = Link(name, self.open_channel(name, ""), self.options.silence, first=secrets.randbits(40),
                        take=group.take_over)
            self.links[name] = link
            group.hosts = {**group.hosts, name: HostRun(link, about[name].folder, about[name].code, about[name].python)}
        for process in plan.processes:
            group.add(process)
        return group
