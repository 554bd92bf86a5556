"""The processes of a run in a job of Slurm."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from velodrome.clusters.launcher import Deliver, Diagnosis, Exit
from velodrome.clusters.plan import Process
from velodrome.clusters.remote.group import RemoteGroup
from velodrome.clusters.slurm import commands
from velodrome.clusters.slurm.allocation import SlurmJob

#: How old what Slurm said about its nodes may be.
_FRESH_SECONDS = 5.0
#: How long ends of processes are kept back while Slurm ends the job and has not said why.
_UNEXPLAINED_SECONDS = 30.0


@dataclass
class SlurmGroup(RemoteGroup):
    """A group whose hosts may be taken away: then the run is interrupted, and has not failed."""

    job: SlurmJob | None = None
    _silent: set[str] = field(default_factory=set)
    _asked: float = float("-inf")
    #: Since when Slurm has been ending the job for a reason that is not known yet.
    _ending_since: float | None = None
    _explained: bool = False

    def wait(self, seconds: float, deliver: Deliver) -> None:
        before = set(self._exits)
        super().wait(seconds, deliver)
        if self.job is None or self._explained:
            return
        if (silent := self.job.unanswered) is not None:
            for process in self._exits.keys() - before:
                if (end := self._exits[process]).is_lost:
                    self._exits[process] = replace(end, cause=f"{end.cause}, and {silent}")
        # Processes end before Slurm reports why: it ends those of all nodes when one of them fails.
        new = any(not self._exits[process].is_success for process in self._exits if process not in before)
        self.job.raise_if_interrupted(now=new or self._ending_since is not None)
        if new and self._ending_since is None and self.job.state.is_ending:
            self._ending_since = time.monotonic()
        if self._ending_since is not None:
            waited = time.monotonic() - self._ending_since
            self._explained = self._blame() or self.job.state.is_over or waited > _UNEXPLAINED_SECONDS

    def exit_of(self, process: Process) -> Exit | None:
        unexplained = self._ending_since is not None and not self._explained
        return None if unexplained else super().exit_of(process)

    def _blame(self) -> bool:
        """Let processes of failed nodes, if there are some, be the first that ended: the others are a consequence."""
        assert self.job is not None
        silent = commands.silent_nodes(self.job.nodes)
        causes = [process for process in self._names.values() if process.host in silent]
        if causes:
            self._exits.clear()
        for process in causes:
            why = f"was lost: node {process.host!r} failed (NODE_FAIL): its slurmd or its network is down"
            self._exits[process] = Exit(None, None, why)
        return bool(causes)

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
