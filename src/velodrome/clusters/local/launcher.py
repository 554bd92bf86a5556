"""The launcher of this machine. It starts processes cold, or warm if their engine was prepared."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from velodrome.catalog.registry import engine_of, engine_with_key
from velodrome.clusters import preflight
from velodrome.clusters.interrupts import deferred
from velodrome.clusters.launcher import Allocation
from velodrome.clusters.local.cold import start_cold
from velodrome.clusters.local.group import LocalGroup, LocalProcess
from velodrome.clusters.local.ports import free_port
from velodrome.clusters.local.warm import Template, TemplateKilled, start_warm
from velodrome.clusters.plan import LOOPBACK, Plan, Process
from velodrome.job.job import Job


@dataclass
class LocalLauncher:
    """Starts processes on this machine."""

    #: A free port of a host.
    port: Callable[[str], int] = free_port
    name: str = "local"
    #: What can be done to processes on purpose.
    faults: tuple[str, ...] = ("kill", "pause")
    #: One process per prepared engine that has imported it.
    _templates: dict[str, Template] = field(default_factory=dict)

    def check(self, job: Job) -> None:
        """Refuse what is not installed here, or needs more memory than is free."""
        preflight.check_here(job)

    def prepare(self, engines: Sequence[str]) -> None:
        """Import the engines once, all at the same time; their processes then start warm."""
        forking = [name for name in engines if engine_with_key(name).forks]
        for engine in forking:
            self._template(engine)
        for engine in forking:
            try:
                self._templates[engine].wait_until_ready()
            except TemplateKilled:
                self._template(engine).wait_until_ready()

    def _template(self, engine: str) -> Template:
        """The template of an engine; a new one if there is none or it died."""
        template = self._templates.get(engine)
        if template is not None and not template.alive:
            template.close()
            template = None
        if template is None:
            template = self._templates[engine] = Template(engine)
        return template

    def template_for(self, plan: Plan) -> Template | None:
        """What the processes of a plan can be forked from; None if they start cold."""
        engine = engine_of(plan.job).key
        # A script may set variables before it imports its framework, so it always gets a new interpreter.
        return self._template(engine) if engine in self._templates and plan.job.script is None else None

    def allocate(self, job: Job) -> Allocation:
        return Allocation((LOOPBACK,), self.port)

    def start(self, plan: Plan, folder: Path, *, resume: bool = False) -> LocalGroup:
        group = LocalGroup(secrets.token_hex(12))
        try:
            for process in plan.processes:
                group.add(self._start_one(plan, process, folder, group.token, resume=resume))
        except BaseException:
            with deferred():
                group.stop()
            raise
        return group

    def _start_one(self, plan: Plan, process: Process, folder: Path, token: str, *, resume: bool) -> LocalProcess:
        if (template := self.template_for(plan)) is not None:
            return start_warm(template, plan, process, folder, token, resume=resume)
        return start_cold(plan, process, folder, token, resume=resume)

    def close(self) -> None:
        for template in self._templates.values():
            template.close()
        self._templates.clear()
