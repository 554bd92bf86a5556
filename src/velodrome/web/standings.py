"""How a race stands, for its page: a row for each configuration with intervals, and the verdict so far."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from velodrome.errors import VelodromeError
from velodrome.job.job import Target
from velodrome.judge.compare import Row, compare
from velodrome.judge.doubts import suspects
from velodrome.judge.statistics import Ratio
from velodrome.reporting.load import RaceRecord, load_race

#: Decisions that the next run may change: the page does not emphasise their sentence.
_UNDECIDED = ("open", "alone", "nothing")


@dataclass(frozen=True)
class Standing:
    """What a page shows of a race as a whole."""

    rows: tuple[Row, ...]
    fields: dict[str, Any]
    record: RaceRecord | None = None


def standing_of(runs: Path, name: str) -> Standing:
    """The race as its finished runs show it; the reason if it cannot be read."""
    try:
        record = load_race(runs, name)
        rows = compare(record.results, Target.parse(record.target) if record.target else None)
        answers = [
            {"task": task, **answer.as_json()} for task, answer in record.answers(rows).items() if rows
        ]
    except VelodromeError as error:
        return Standing((), {"rows": [], "verdicts": [], "problem": str(error), "failures": []})
    doubtful = suspects(rows)
    return Standing(tuple(rows), {
        "rows": [{**_row(row), "suspect": doubtful.get(row.name)} for row in rows],
        "verdicts": [_verdict(answer) for answer in answers], "problem": None,
        "failures": [{"run": one.run, "status": one.status, "message": one.message} for one in record.failures],
    }, record)


def _verdict(answer: dict[str, Any]) -> dict[str, Any]:
    found = {name: answer[name] for name in (
        "task", "objective", "decision", "verdict", "why", "next", "best", "rival", "ratio", "interval", "reliable",
        "caveats",
    )}
    return {**found, "decided": found["reliable"] and found["decision"] not in _UNDECIDED}


def _interval(ratio: Ratio | None) -> list[float] | None:
    if ratio is None or ratio.low is None or ratio.high is None:
        return None
    return [ratio.low, ratio.high]


def _row(row: Row) -> dict[str, Any]:
    spread = row.spreads.get("examples_per_second")
    quality = row.mean("accuracy")
    return {
        "name": row.name, "label": row.label, "workers": row.workers, "runs": row.runs, "failed": row.failed,
        "single": row.single, "accuracy": quality,
        "rate": spread.mean if spread else None, "rate_range": [spread.low, spread.high] if spread else None,
        "speedup": row.speedup.estimate if row.speedup else None, "speedup_interval": _interval(row.speedup),
        "scaling": row.scaling.estimate if row.scaling else None, "scaling_interval": _interval(row.scaling),
        "time_to_target": row.mean("time_to_target"), "train_seconds": row.mean("train_seconds"),
    }
