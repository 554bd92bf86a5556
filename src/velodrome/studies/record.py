"""What a study's race keeps beside its runs, so that every report of it has the published figures and claims."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from velodrome import files
from velodrome.job.result import Result
from velodrome.studies.format import ScaleName, Study
from velodrome.studies.plan import Site, StudyPlan
from velodrome.studies.settings import Setting

FILE = "study.json"
_LARGEST = 16 << 20


class SettingRecord(BaseModel):
    """One published configuration and our job for it."""

    model_config = ConfigDict(frozen=True)

    published: dict[str, Any]
    ours: dict[str, Any] | None
    changes: list[str]
    missing: str | None = None
    added: bool = False


class StudyRecord(BaseModel):
    """A study as it was fitted to the machines that ran it."""

    model_config = ConfigDict(frozen=True)

    study: Study
    scale: ScaleName
    machines: str
    cores: int
    settings: list[SettingRecord]

    @classmethod
    def of(cls, plan: StudyPlan) -> StudyRecord:
        return cls(
            study=plan.study, scale=plan.scale, machines=plan.site.machines, cores=plan.site.cores,
            settings=[
                SettingRecord(published=dict(setting.published), missing=setting.missing, added=setting.added,
                              ours=None if setting.ours is None else dict(setting.ours), changes=[*setting.changes])
                for setting in plan.settings
            ],
        )

    @classmethod
    def read(cls, race: Path) -> StudyRecord | None:
        """That of a race; None if it is no study's, or of an earlier version."""
        try:
            return cls.model_validate_json(files.read_text(race / FILE, _LARGEST))
        except (OSError, UnicodeDecodeError, ValidationError):
            return None

    def write(self, race: Path) -> None:
        race.mkdir(parents=True, exist_ok=True)
        files.write_text(race / FILE, self.model_dump_json(by_alias=True, indent=1) + "\n", shared=True)

    def plan(self) -> StudyPlan:
        """The same as a plan, whose race is the one on disk."""
        settings = tuple(
            Setting(setting.published, setting.ours, tuple(setting.changes), setting.missing, setting.added,
                    tuple(self.study.provenance({**setting.published, **({"added": True} if setting.added else {})})))
            for setting in self.settings
        )
        return StudyPlan(self.study, self.scale, settings, 0, None, (), None, Site(self.machines, self.cores))


def hosts_cores(results: Iterable[Result]) -> int:
    """Cores of all hosts elsewhere that runs recorded; 0 if they ran on this machine."""
    hosts: dict[str, int] = {}
    for result in results:
        if result.cluster is not None:
            hosts |= {name: about.cores for name, about in result.cluster.hosts.items()}
    return sum(hosts.values())
