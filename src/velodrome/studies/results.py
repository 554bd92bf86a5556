"""What became of a study that ran: published figures beside ours, and its claims."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from velodrome.races.plan import PlannedRace
from velodrome.reporting.load import load_race
from velodrome.studies.claims import Finding, findings
from velodrome.studies.outcome import FigureComparison, compare_figures
from velodrome.studies.plan import StudyPlan
from velodrome.studies.record import hosts_cores


@dataclass(frozen=True)
class FinishedStudy:
    """Published figures beside ours, and what becomes of the published findings."""

    plan: StudyPlan
    folder: Path
    #: Names of the jobs that failed.
    failed: Sequence[str]
    configurations: Sequence[FigureComparison]
    findings: Sequence[Finding]
    #: Whether it ran, and was not only planned.
    ran: bool
    #: The address that its finished runs were copied to, if that was asked for.
    artifacts: str | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            **describe(self.plan), "race": self.folder.name, "path": str(self.folder.resolve()),
            "failed": [*self.failed], "configurations": [row.as_json() for row in self.configurations],
            "claims": [finding.as_json() for finding in self.findings],
            **({"artifacts": self.artifacts} if self.artifacts else {}),
        }


def finished(plan: StudyPlan, race: PlannedRace, failed: Iterable[str] | None) -> FinishedStudy:
    """Our figures beside the published ones, from what is on disk; `failed` is None if nothing ran."""
    path = race.folder.path
    ran = failed is not None
    record = load_race(path.parent, path.name, race.folder.store) if ran else None
    rows = record.judged().rows if record is not None else ()
    available = hosts_cores(record.results if record is not None else ()) or plan.site.cores
    return FinishedStudy(
        plan, path, [*(failed or ())], compare_figures(plan, rows, available),
        findings(plan, rows, available) if ran else [], ran,
    )


def describe(plan: StudyPlan) -> dict[str, Any]:
    """A study at a scale as plain data, without figures."""
    return {
        "study": plan.study.name, "scale": plan.scale, "source": plan.study.source,
        "machines": {"published": plan.study.machines, "ours": plan.site.machines},
        "notes": plan.study.notes, "missing": [*plan.missing], "reductions": [*plan.reductions],
        "left_out": plan.left_out, "data": plan.data,
    }
