"""`report`: a race as a page, or as tables for a thesis."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from velodrome.api.recommend import checked_target
from velodrome.judge.criteria import Price
from velodrome.reporting.document import make_report
from velodrome.reporting.load import load_race
from velodrome.reporting.write import write_report


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
    made = make_report(record, record.criteria(objective, target, Price(), tolerance, accuracy_margin))
    paths = write_report(made, format, None if out is None else Path(out), None if figures is None else Path(figures))
    return {
        "race": record.name, "report": str(paths[0].resolve()), "files": [str(path.resolve()) for path in paths],
        "recommendations": [
            {"task": answer.task, **answer.recommendation.as_json()} for answer in made.answers
        ],
    }
