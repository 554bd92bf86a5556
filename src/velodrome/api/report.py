"""`report` and `recommend`: a race as a page or as tables for a thesis, and which configuration to use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from velodrome.errors import BadRequest
from velodrome.job.result import Result
from velodrome.job.values import Target
from velodrome.judge.criteria import Price, parse_tolerances
from velodrome.judge.pairs import between_tasks, groups_of
from velodrome.reporting.document import make_report
from velodrome.reporting.load import load_race
from velodrome.reporting.write import write_report
from velodrome.studies.report import with_study
from velodrome.tasks.registry import check_metric, task_of_result


def report(
    race: str,
    *,
    runs: str | Path = "runs",
    out: str | Path | None = None,
    format: str = "html",
    figures: str | Path | None = None,
    objective: str | None = None,
    target: str | None = None,
    tolerance: str | float | None = None,
    accuracy_margin: str | float | None = None,
) -> dict[str, Any]:
    """Write a report of a race; the object that ``velodrome report --json`` prints.

    It has the path of the ``report``, every file that was written (``files``) and the ``recommendations``.

    Args:
        race: name of a race, or path of its folder.
        runs: folder that holds the race.
        out: file to write; by default ``report.html`` (or .md, .csv, .tex) in the race's folder.
        format: ``html``, ``markdown``, ``csv`` or ``latex``.
        figures: folder for every figure as SVG, PNG and PDF.
        objective: what the verdict is based on, as for ``recommend``.
        target: target for time-to-accuracy; by default the race's own.
        tolerance: differences below this count as ties, as ``"5%"`` or 0.05; by default as the race says.
        accuracy_margin: how much less accurate a faster configuration may be; by default as the race says.
    """
    record = load_race(Path(runs), race)
    target = checked_target(target, record.results)
    made = with_study(make_report(record, record.criteria(objective, target, Price(), tolerance, accuracy_margin)))
    paths = write_report(made, format, None if out is None else Path(out), None if figures is None else Path(figures))
    return {
        "race": record.name, "report": str(paths[0].resolve()), "files": [str(path.resolve()) for path in paths],
        "recommendations": [
            {"task": answer.task, **answer.recommendation.as_json()} for answer in made.answers
        ],
    }


def recommend(
    race: str,
    *,
    runs: str | Path = "runs",
    objective: str | None = None,
    target: str | None = None,
    price_per_hour: float | None = None,
    price_of: str = "process",
    tolerance: str | float | None = None,
    accuracy_margin: str | float | None = None,
    between: str | None = None,
) -> dict[str, Any]:
    """Recommend a configuration of a race; the object that ``velodrome recommend --json`` prints.

    ``verdict``, ``why`` and ``next`` are sentences; ``decision`` (``use``, ``do-not-distribute``, ``level``, ``open``,
    ``alone`` or ``nothing``), ``distribute``, ``best``, ``rival``, ``ratio`` or ``points``, ``interval``, and what it
    would cost to ``settle`` an open question are the same as data; ``caveats`` are sentences.
    A race of several data sets or models has a list of these in ``tasks``.

    Args:
        race: name of a race, or path of its folder.
        runs: folder that holds the race.
        objective: ``time-to-accuracy``, ``accuracy``, ``throughput`` or ``cost``; by default that of the race,
            else time-to-accuracy if it has a target, throughput otherwise.
        target: such as ``accuracy>=0.97``; by default the race's own for time-to-accuracy.
        price_per_hour: price of one instance for an hour.
        price_of: what an instance is, ``process`` or ``host``.
        tolerance: differences below this count as ties, as ``"5%"`` or 0.05; by default as the race says.
        between: two groups of configurations to compare over everything else that the race varied, such as
            ``"ddp,allreduce"``, ``"torch,tensorflow"`` or ``"workers=1,workers=2"``; the answer then has ``between``,
            ``verdict``, ``why``, ``ratio`` and ``interval``.
        accuracy_margin: how much less accurate a faster configuration may be; by default as the race says.
    """
    if price_per_hour is not None and not 0 < price_per_hour < float("inf"):
        raise BadRequest(f"--price-per-hour '{price_per_hour:g}': give a price above 0")
    if price_of not in ("process", "host"):
        raise BadRequest(f"--price-of {price_of!r} is unknown: choose process or host")
    groups = groups_of(between) if between is not None else None
    parse_tolerances(tolerance, accuracy_margin)  # refused before anything is read
    record = load_race(Path(runs), race)
    price = Price(price_per_hour, "host" if price_of == "host" else "process")
    target = checked_target(target, record.results)
    judgement = record.judged(record.criteria(objective, target, price, tolerance, accuracy_margin))
    answers = judgement.answers if groups is None else between_tasks(judgement, groups)
    return _by_task(record.name, {task: answer.as_json() for task, answer in answers.items()})


def _by_task(race: str, answers: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The only answer, or a list of those of several tasks."""
    if list(answers) == [""]:
        return {"race": race, **answers[""]}
    return {"race": race, "tasks": [{"task": task, **answer} for task, answer in answers.items()]}


def checked_target(text: str | None, results: Sequence[Result] = ()) -> str | None:
    """A target on a metric of some task, or of the users' own tasks of results; `BadRequest` otherwise."""
    if text is not None:
        try:
            check_metric(Target.parse(text), [task_of_result(result) for result in results])
        except ValueError as error:
            raise BadRequest(f"--target: {error}") from None
    return text
