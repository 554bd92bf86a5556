"""`study.list`, `show`, `new` and `run`: studies, run again, with our figures beside the published ones."""

from __future__ import annotations

import builtins
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from velodrome.clusters import DEFAULT, Where
from velodrome.data.base import BadData
from velodrome.data.fetch import using_mirror
from velodrome.errors import BadRequest, VelodromeError
from velodrome.machine import cores
from velodrome.races.request import RaceObserver
from velodrome.studies.load import scale_named, studies
from velodrome.studies.outcome import FigureComparison, compare_figures
from velodrome.studies.plan import Choice, StudyPlan, plan_study
from velodrome.studies.results import describe
from velodrome.studies.run import StudyRequest, admitted, run_study
from velodrome.studies.starter import STARTER


def list() -> builtins.list[dict[str, Any]]:
    """The published studies that can be run again."""
    return [
        {"name": study.name, "title": study.title, "source": study.source, "machines": study.machines,
         "configurations": len(study.combinations()), "figures": len(study.all_figures()),
         "claims": len(study.claims)}
        for study in studies().values()
    ]


def show(
    name: str, scale: str = "full", *, mirror: str | None = None, trust_code: Collection[str] = ()
) -> dict[str, Any]:
    """What a study published, what would run here at a scale (smoke, small or full), and what is missing.

    `name` is the name of a study that comes with Velodrome, or the path of a study file.
    """
    plan, rows = planned_rows(name, scale, mirror, trust_code)
    return {**describe(plan), "configurations": [row.as_json() for row in rows],
            "claims": [claim.model_dump(by_alias=True) for claim in plan.study.claims]}


def planned_rows(
    name: str, scale: str, mirror: str | None = None, trust_code: Collection[str] = ()
) -> tuple[StudyPlan, Sequence[FigureComparison]]:
    """A study fitted to this machine, and its configurations with their published figures."""
    with using_mirror(mirror):
        plan = plan_study(admitted(name, trust_code), scale_named(scale), Choice())
    return plan, compare_figures(plan, [], cores())


def new(file: str | Path) -> Path:
    """Write a commented study file to begin with; an existing file is never overwritten."""
    path = Path(file)
    if path.suffix not in (".yaml", ".yml"):
        raise BadRequest(f"{str(path)!r}: a study file ends in .yaml")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as stream:
            stream.write(STARTER.replace("NAME", re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).lstrip("._-") or "study"))
    except FileExistsError:
        raise BadRequest(f"{str(path)!r} exists, and is not overwritten: choose another name") from None
    except OSError as error:
        raise VelodromeError(f"cannot write {str(path)!r}: {error.strerror}") from None
    return path


def run(
    name: str,
    scale: str = "smoke",
    *,
    runs: str | Path = "runs",
    race_name: str | None = None,
    repeat: int = 1,
    dataset: str | None = None,
    data_url: str | None = None,
    bad_data: BadData = "fail",
    naming: str | None = None,
    test_group: int | None = None,
    implementation: str | None = None,
    only: Mapping[str, Sequence[Any]] | None = None,
    on: Where = DEFAULT,
    dry_run: bool = False,
    mirror: str | None = None,
    artifacts: str | None = None,
    trust_code: Collection[str] = (),
) -> dict[str, Any]:
    """Run a study again at a scale; the object that ``velodrome study run --json`` prints.

    What cannot run here is in ``missing`` with the way to add it, and the rest runs. The same call again runs only
    what is missing.

    Args:
        name: name of the study, or path of a study file.
        scale: ``smoke`` (minutes), ``small`` (half an hour on two cores) or ``full``, as published.
        runs: folder that holds the race.
        race_name: name of the race; by default the study's and the scale's.
        repeat: runs of each configuration.
        dataset: another data set in place of the published one.
        data_url: read every data set NAME from shards at URL/NAME.
        bad_data: whether examples that cannot be used are left out (``skip``) or refused (``fail``).
        naming: how runs are named, ``plain`` or ``published``; by default as the study does.
        test_group: test group of published names.
        implementation: of every strategy that has both, ``stock`` (the framework's own parts) or ``velodrome``; by
            default as the study says.
        only: published fields with the values that are to run, as ``{"workers": [1, 2]}``; the rest is left out.
        on: the launcher, as for ``race``.
        dry_run: whether to plan only and start nothing.
        mirror: folder or URL with the publisher's files of data sets.
        artifacts: address below which every finished run is copied, as for ``race``.
        trust_code: code that a study file names and that may run although it lies neither beside the file nor in the
            current folder.
    """
    choice = Choice(dataset, data_url, repeat, naming, bad_data, test_group, implementation,
                    {field: [*values] for field, values in (only or {}).items()})
    asked = StudyRequest(name, scale, choice, Path(runs), race_name, on=on, dry_run=dry_run, mirror=mirror,
                         trust_code=trust_code, artifacts=artifacts)
    return run_study(asked, RaceObserver()).as_json()
