"""The options of Slurm clusters, in clusters.yaml and behind `slurm:`."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator

from velodrome.clusters.definitions import inline_fields
from velodrome.clusters.launcher import LauncherType
from velodrome.clusters.remote import RemoteOptions

#: In a run's folder: by what another command finds the run's job again.
RECORD = "slurm.json"
_INLINE = ("partition", "account", "qos", "time", "nodes", "cpus", "gpus", "container", "python", "shared_dir")


class SlurmOptions(RemoteOptions):
    """Hosts that Slurm allocates for each job."""

    nodes: int | None = Field(
        None, ge=1, description="nodes that a job gets; by default one for each of its processes"
    )
    partition: str | None = Field(None, description="partition to submit to; by default Slurm's own default")
    account: str | None = Field(None, description="account that is charged")
    qos: str | None = Field(None, description="quality of service")
    time: str | None = Field(None, description="time limit, as sbatch takes it: `30` minutes, `2:00:00`, `1-12`")
    cpus: int | None = Field(None, ge=1, description="cores of each node; by default what the partition gives")
    gpus: str | None = Field(None, description="GPUs of each node: `2`, or `a100:2`")
    memory: str | None = Field(None,
        description="memory of each node, such as `16G`; by default what the partition gives")
    container: str | None = Field(
        None, description="container in which processes run: an image for Pyxis (`--container-image`), or the folder "
        "of an OCI bundle (`--container`)"
    )
    sbatch: list[str] = Field(default_factory=list, description="more options of sbatch, such as `--constraint=ib`")
    srun: list[str] = Field(default_factory=list, description="more options of srun, such as `--mpi=none`")
    shared_dir: str | None = Field(
        ".", description="folder that all nodes and this machine see under the same path, `--runs` below it: lines and "
        "files travel through it; by default the current folder"
    )
    queue_timeout: float = Field(86_400.0, gt=0, description="seconds that a job may wait in the queue")
    silence: float = Field(
        120.0, ge=2, description="seconds without a sign of life after which a node counts as lost, and after which it "
        "ends everything that was started on it; file systems may show new lines late"
    )

    @field_validator("gpus", "time", mode="before")
    @classmethod
    def _numbers_are_text(cls, value: Any) -> Any:
        """A number of GPUs, or of minutes, as sbatch takes it."""
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else value

    @field_validator("sbatch", "srun")
    @classmethod
    def _are_options(cls, words: list[str]) -> list[str]:
        for word in words:
            if not word.startswith("-") or "\n" in word:
                raise ValueError(f"{word!r} is not an option: write it as '--name=value'")
        return words

    @classmethod
    def inline(cls, text: str) -> dict[str, Any]:
        return dict(inline_fields(text, _INLINE, "--on slurm:partition=NAME,time=30"))


LAUNCHER = LauncherType(
    "slurm",
    "a job of Slurm for each run, submitted from a login node",
    "velodrome.clusters.slurm.launcher:SlurmLauncher",
    here=False, inline="partition=NAME,time=LIMIT", options=SlurmOptions, record=RECORD,
)
