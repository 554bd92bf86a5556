"""Trains one job, resumes a run, or takes one over whose controller is gone. Called by the API, and so by `train`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from velodrome import files
from velodrome.clusters import open_attached, open_launcher, refuse_living
from velodrome.clusters.launcher import Launcher
from velodrome.clusters.plan import Plan, plan_from_json
from velodrome.clusters.preflight import Admitted, admit, complete
from velodrome.data import catalogue
from velodrome.data.base import Progress
from velodrome.errors import VelodromeError
from velodrome.job.job import Job
from velodrome.job.names import check_name, default_name
from velodrome.job.result import Result
from velodrome.run import trust
from velodrome.run.attempt import Attached, Attempt, OnStart
from velodrome.run.store import RunFolder, Store
from velodrome.run.supervisor import Listener, Stop, event_key, never, silent

_LARGEST_PLAN = 64 << 20


def execute(
    job: Job,
    *,
    store: Store,
    launcher: Launcher | None = None,
    name: str | None = None,
    listener: Listener = silent,
    progress: Progress | None = None,
    on_start: OnStart | None = None,
    stop: Stop = never,
) -> Result:
    """Train a job in a new run, by default on this machine; its result, or `JobFailed`.

    `stop` may end it; the result then has the status `interrupted`, and the reason.
    """
    if launcher is None:
        with open_launcher() as launcher:
            return execute(job, store=store, launcher=launcher, name=name, listener=listener, progress=progress,
                           on_start=on_start, stop=stop)
    if name is not None:
        check_name(name)
    admitted = admit(job, launcher)
    job = admitted.job
    catalogue.prepare(job.dataset, progress, bad_data=job.bad_data)
    trust.record([job])
    run = store.create(name, job) if name is not None else store.create_new(default_name(job), job)
    return Attempt(run, admitted, listener, on_start, resume=False, stop=stop).carry_out()


def resume(
    name: str,
    *,
    store: Store,
    launcher: Launcher | None = None,
    listener: Listener = silent,
    on_start: OnStart | None = None,
) -> Result:
    """Continue a run that did not finish, from its newest checkpoint."""
    if launcher is None:
        with open_launcher() as launcher:
            return resume(name, store=store, launcher=launcher, listener=listener, on_start=on_start)
    refuse_living(store.get(name).path)
    admitted = admit(store.get(name).job(), launcher, resumed=True)
    catalogue.prepare(admitted.job.dataset, None, bad_data=admitted.job.bad_data)
    return Attempt(store.reopen(name), admitted, listener, on_start, resume=True).carry_out()


def attach(
    name: str, *, store: Store, listener: Listener = silent, on_start: OnStart | None = None
) -> Result:
    """Supervise a run whose processes live on although their controller is gone; its result, or `JobFailed`."""
    folder = store.get(name)
    job = complete(folder.job())
    with open_attached(folder.path) as launcher:
        attached = None  # the earlier controller was gone before it started a process
        if launcher.started is not None:
            known = frozenset(map(event_key, folder.events()))
            attached = Attached(_stored_plan(folder, job, launcher.facts), launcher.started, known)
        admitted = Admitted(job, launcher)
        return Attempt(store.reopen(name), admitted, listener, on_start, resume=True, attached=attached).carry_out()


def _stored_plan(folder: RunFolder, job: Job, facts: Mapping[str, Any]) -> Plan:
    path = folder.path / "plan.json"
    try:
        return plan_from_json(job, files.read_json(path, _LARGEST_PLAN, inside=folder.path), facts)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise VelodromeError(f"run {folder.name!r} cannot be taken over: {str(path)!r} cannot be read "
                             f"({type(error).__name__}: {error}); its processes are left as they are") from error
