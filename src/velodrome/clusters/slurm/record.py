"""What a run's folder holds about its job of Slurm: enough for another command to find the job again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from velodrome import files
from velodrome.clusters.slurm import commands
from velodrome.clusters.slurm.options import SlurmOptions
from velodrome.errors import BadRequest
from velodrome.job.read import reason_of

#: In the run's folder.
RECORD = "slurm.json"
#: Below the shared folder: the folders of the jobs' mail, each named as the session of its job.
MAIL = ".velodrome-slurm"
_LARGEST = 16 << 20


class HostRecord(BaseModel):
    """What was prepared on a node."""

    code: str
    python: str


class JobRecord(BaseModel):
    """A job that was submitted and, from `token` on, the processes that were started in it."""

    model_config = ConfigDict(frozen=True)

    job: int = Field(gt=0)
    mail: str
    session: str
    nodes: list[str] = Field(default_factory=list)
    options: SlurmOptions = Field(default_factory=lambda: SlurmOptions.model_validate({}))
    token: str | None = None
    started: float | None = None
    hosts: dict[str, HostRecord] = Field(default_factory=dict)
    facts: dict[str, Any] = Field(default_factory=dict)

    def write(self, folder: Path) -> None:
        files.write_text(folder / RECORD, json.dumps(self.model_dump(), indent=2) + "\n")

    def state(self) -> commands.JobState | None:
        """The state of the job; None if it is over, whatever Slurm still knows of it."""
        if not Path(self.mail).is_dir():  # without it, its agents end
            return None
        commands.require_tools()
        state = commands.state_of(self.job)
        return None if state.is_over else state


def read_record(folder: Path) -> JobRecord:
    """What is stored about the job of a run; `BadRequest` if it has none, or if that cannot be read."""
    try:
        found = JobRecord.model_validate(files.read_json(folder / RECORD, _LARGEST, inside=folder))
        # It is removed when the job ends.
        if not found.session.isalnum() or Path(found.mail).parts[-2:] != (MAIL, found.session):
            raise ValueError(f"mail: {found.mail!r} is no folder of a job's mail")
        return found
    except FileNotFoundError:
        raise BadRequest(f"run {folder.name!r} has no job of Slurm to attach to") from None
    except (OSError, ValueError) as error:
        why = _problem(error) if isinstance(error, ValidationError) else str(error)
        raise BadRequest(f"run {folder.name!r}: {str(folder / RECORD)!r} cannot be read: {why}; `squeue --me` shows "
                         "whether its job still runs: end it with `scancel`, then remove the file") from None


def living_job(folder: Path) -> str | None:
    """The job of a run that still waits or runs, as a person calls it; None if there is none."""
    if not (folder / RECORD).exists():
        return None
    record = read_record(folder)
    return f"Slurm job {record.job}" if record.state() is not None else None


def _problem(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or 'the content'}: {reason_of(first)}"
