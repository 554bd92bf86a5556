"""The processes of a run in a job of Slurm."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from velodrome.cluster.launcher import Deliver, Diagnosis, Exit
from velodrome.cluster.plan import Process
from velodrome.cluster.remote.group import RemoteGroup
from velodrome.cluster.slurm import commands
from velodrome.cluster.slurm.allocation import SlurmJob

#: How old what Slurm said about its nodes may be.
_FRESH_SECONDS = 5.0


@dataclass
class SlurmGroup(RemoteGroup):
    """A group whose hosts may be taken away: then the run is interrupted, and has not failed."""

    job: SlurmJob | None = None
    _silent: set[str] = field(default_factory=set)
    _asked: float = float("-inf")
    _blamed: bool = False

    def wait(self, seconds: float, deliver: Deliver) -> None:
        before = set(self._exits)
        super().wait(seconds, deliver)
        if self.job is None:
            return
        new = [process for process in self._exits if process not in before]
        # Processes may end before Slurm reports why.
        self.job.raise_if_interrupted(now=any(not self._exits[process].is_success for process in new))
        if new and not self._blamed and self.job.state.name == "NODE_FAIL":
            self._blame(new)

    def _blame(self, lost: list[Process]) -> None:
        """A job ends on all of its nodes when one fails: processes of the others are a consequence, and end later."""
        silent = self._silent_nodes()
        causes = [process for process in self._names.values() if process.host in silent]
        if not causes:
            return
        self._blamed = True
        for process in lost:
            if process not in causes:
                del self._exits[process]
        for process in causes:
            why = f"was lost: node {process.host!r} failed (NODE_FAIL): its slurmd or its network is down"
            self._exits[process] = Exit(None, None, why)

    def _silent_nodes(self) -> set[str]:
        """The nodes of the job that do not answer Slurm."""
        if self.job is not None and time.monotonic() - self._asked > _FRESH_SECONDS:
            self._silent, self._asked = commands.silent_nodes(self.job.nodes), time.monotonic()
        return self._silent

    def diagnose(self, process: Process, *, brief: bool = False) -> Diagnosis:
        found = super().diagnose(process, brief=brief)
        return found if found.cut_off else replace(found, cut_off=process.host in self._silent_nodes())

    def stop(self) -> None:
        try:
            if self.job is None or not self.job.state.is_over:
                super().stop()
        finally:
            if self.job is not None:
                self.job.release()
