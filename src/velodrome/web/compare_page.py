"""Several runs side by side: what differs in their configuration, their curves, and ratios with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from velodrome.api.runs import compare_runs
from velodrome.errors import VelodromeError
from velodrome.judge.configuration import text_of
from velodrome.judge.pairs import Line
from velodrome.races.repetitions import some_repeat
from velodrome.run.listing import Found
from velodrome.run.store import RunFolder
from velodrome.web.app import JsonAnswer, page, run_named
from velodrome.web.live_run import LiveRun

MOST_RUNS = 12
#: Fields of a job in which runs do not differ meaningfully.
_UNIMPORTANT = frozenset({"start_timeout", "stall_timeout"})


@dataclass(frozen=True)
class Compared:
    """A measure of the runs: the text of each, and of all but the first the ratio to it."""

    heading: str
    unit: str
    cells: list[tuple[str, str]]


def _names(request: Request) -> list[str]:
    names = list(dict.fromkeys(name[:250] for name in request.query_params.getlist("run") if name))
    if len(names) > MOST_RUNS:
        raise HTTPException(400, f"At most {MOST_RUNS} runs can be compared at once: {len(names)} were asked for.")
    return names


async def show(request: Request) -> Response:
    names = _names(request)
    found = [await run_in_threadpool(run_named, request, name) for name in names]
    content = await run_in_threadpool(_content, request.app.state.runs, names, found) if found else {}
    known = await run_in_threadpool(request.app.state.index.listed, "", "", "run", 0, 200)
    others = [row["run"] for row in known.rows if row["run"] not in names]
    return page(request, "compare.html", names=names, known=others, most=MOST_RUNS, **content)


def _content(runs: Path, names: Sequence[str], found: Sequence[Found]) -> dict[str, Any]:
    fields, problems = [], []
    for name, one in zip(names, found, strict=True):
        try:
            fields.append({key: text_of(value) for key, value in RunFolder(one.path).job().model_dump().items()})
        except VelodromeError as error:
            fields.append({})
            problems.append(f"{name}: {error}")
    keys = [key for key in dict.fromkeys(key for values in fields for key in values) if key not in _UNIMPORTANT]
    rows = [(key.replace("_", " "), [values.get(key, "–") for values in fields]) for key in keys]
    alone = some_repeat(runs, names)
    measures, sentences, more = _measures(runs, names, alone=alone)
    return {
        "differing": [row for row in rows if len(set(row[1])) > 1],
        "same": [row for row in rows if len(set(row[1])) == 1],
        "measures": measures, "sentences": sentences, "problems": [*problems, *more], "alone": alone,
    }


def _measures(
    runs: Path, names: Sequence[str], *, alone: bool
) -> tuple[list[Compared], list[tuple[str, list[str]]], list[str]]:
    """Every measure of the runs, with ratios to the first, and what their repetitions allow to conclude."""
    lines: dict[str, Line] = {}
    texts: dict[str, dict[int, tuple[str, str]]] = {}
    sentences: list[tuple[str, list[str]]] = []
    problems: list[str] = []
    for place, name in enumerate(names[1:], 1):
        try:
            # A over B: so the first run, with which the others are compared, is the second of the pair.
            pair, _ = compare_runs(name, names[0], runs, alone=alone)
        except VelodromeError as error:
            problems.append(str(error))
            continue
        sentences.append((name, pair.sentences()))
        for line in pair.lines:
            lines.setdefault(line.measure.name, line)
            mine, first = line.means
            cells = texts.setdefault(line.measure.name, {})
            cells[place] = (_text(line, mine), _ratio(line))
            cells.setdefault(0, (_text(line, first), ""))
    found = [
        Compared(line.measure.heading, line.measure.unit,
                 [texts[name].get(place, ("–", "")) for place in range(len(names))])
        for name, line in lines.items()
    ]
    return found, sentences, problems


def _text(line: Line, value: float | None) -> str:
    return "–" if value is None else line.measure.text(value)


def _ratio(line: Line) -> str:
    ratio = line.ratio
    if ratio is None:
        return ""
    if ratio.low is None or ratio.high is None:
        return f"{ratio.estimate:.2f}×"
    high = "over 100" if ratio.high > 100 else f"{ratio.high:.2f}"
    return f"{ratio.estimate:.2f}× ({ratio.low:.2f} to {high})"


async def curves(request: Request) -> Response:
    names = _names(request)
    found = [await run_in_threadpool(run_named, request, name) for name in names]
    return JsonAnswer({"runs": await run_in_threadpool(_curves, names, found)})


def _curves(names: Sequence[str], found: Sequence[Found]) -> list[dict[str, Any]]:
    runs = []
    for name, one in zip(names, found, strict=True):
        live = LiveRun(one.path, name)
        live.poll()
        if live.events_size:
            live.read_ended()
        state = live.as_json()
        runs.append({key: state[key] for key in ("name", "label", "workers", "metric", "status", "curve")})
    return runs


ROUTES = (Route("/compare", show), Route("/api/compare", curves))
