"""The processes of a run in a job of Slurm."""

from __future__ import annotations

from dataclasses import dataclass

from velodrome.cluster.launcher import Deliver
from velodrome.cluster.remote.group import RemoteGroup
from velodrome.cluster.slurm.allocation import SlurmJob


@dataclass
class SlurmGroup(RemoteGroup):
    """A group whose hosts may be taken away: then the run is interrupted, and has not failed."""

    job: SlurmJob | None = None

    def wait(self, seconds: float, deliver: Deliver) -> None:
        before = len(self._exits)
        super().wait(seconds, deliver)
        if self.job is not None:
            # Processes may end before Slurm reports why.
            failed = len(self._exits) > before and any(not end.is_success for end in self._exits.values())
            self.job.raise_if_interrupted(now=failed)

    def stop(self) -> None:
        try:
            if self.job is None or not self.job.state.is_over:
                super().stop()
        finally:
            if self.job is not None:
                self.job.release()
