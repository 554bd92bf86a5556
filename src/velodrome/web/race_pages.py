"""The pages of races: the list of races and runs, each race live with its jobs, curves, resources, speedup and verdict,
and any runs side by side."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from velodrome import files
from velodrome.api.runs import compare_runs, some_repeat
from velodrome.errors import VelodromeError
from velodrome.judge.configuration import text_of
from velodrome.judge.pairs import Line
from velodrome.reporting.load import load_race
from velodrome.run.listing import STATUSES, Found
from velodrome.run.store import RunFolder
from velodrome.web.app import JsonAnswer, page, race_of, run_named
from velodrome.web.live_run import LiveRun
from velodrome.web.run_files import Listed, RunIndex
from velodrome.web.watch import Watch, Watches, live

#: Rows of a page; the others are found by searching or on the next page.
ROWS = 1000
#: Seconds that a page waits for rows which were never read; the others follow as soon as they are.
_FIRST_SECONDS = 0.3
#: Seconds between checks of the folder for a list that is open.
_TICK_SECONDS = 2.0


async def _listed(
    request: Request, kind: str = "", seconds: float | None = None
) -> tuple[Listed, dict[str, Any]]:
    index: RunIndex = request.app.state.index
    query = request.query_params
    asked: dict[str, Any] = {
        "text": query.get("q", "")[:120], "status": query.get("status", "") if query.get("status") in STATUSES else "",
        "kind": kind or (query.get("kind", "") if query.get("kind") in ("run", "race") else ""),
    }
    number = query.get("page", "1")
    at = min(10_000, int(number[:6])) if number.isascii() and number.isdigit() else 1
    asked["offset"] = max(0, at - 1) * ROWS
    listed = await run_in_threadpool(index.listed, **asked, limit=ROWS, seconds=seconds)
    return listed, {**asked, "page": max(1, at)}


async def show(request: Request) -> Response:
    rows_only = request.query_params.get("part") == "rows"
    listed, asked = await _listed(request, seconds=None if rows_only else _FIRST_SECONDS)
    pages = max(1, -(-listed.found // ROWS))
    template = "rows.html" if rows_only else "races.html"
    return page(request, template, listed=listed, asked=asked, pages=pages, statuses=STATUSES,
                folder=str(request.app.state.runs))


async def races(request: Request) -> Response:
    listed, _ = await _listed(request, "race")
    return JsonAnswer({"races": listed.rows, "found": listed.found})


async def runs(request: Request) -> Response:
    listed, _ = await _listed(request)
    return JsonAnswer({"runs": listed.rows, "found": listed.found, "total": listed.total})


async def stream(request: Request) -> Response:
    """Tells a page when its list has changed; the id is a digest of what it shows."""
    last = request.headers.get("last-event-id", "")

    async def news() -> bytes | None:
        nonlocal last
        listed, _ = await _listed(request)
        digest = await run_in_threadpool(_digest, listed)
        if digest == last:
            return None
        last = digest
        return f"id: {digest}\nevent: changed\ndata: {digest}\n\n".encode()

    state = request.app.state
    watches: Watches = state.watches
    return watches.streams.answer(request, lambda once: live(news, state.closing, _TICK_SECONDS, once=once))


def _digest(listed: Listed) -> str:
    shown = [(row["run"], row["status"], row.get("runs"), row.get("seconds")) for row in listed.rows]
    return hashlib.sha256(json.dumps([shown, listed.found]).encode()).hexdigest()[:16]


async def _watch(request: Request) -> Watch:
    race = await run_in_threadpool(race_of, request)
    watch: Watch = request.app.state.watches.of(race.path, race=True)
    return watch


async def show_race(request: Request) -> Response:
    watch = await _watch(request)
    await watch.refresh()
    try:
        text = await run_in_threadpool(RunFolder(watch.path).read_text, "race.yaml", errors="replace")
    except OSError as error:
        text = f"race.yaml cannot be read: {error.strerror}"
    state = watch.state()
    jobs = sorted(state["jobs"], key=lambda job: job["name"])
    groups = dict.fromkeys(f"{job['label']}, {job['workers']} worker{'' if job['workers'] == 1 else 's'}"
                           for job in jobs if job["workers"])
    published = await run_in_threadpool(_published, watch.path)
    return page(request, "race.html", race=state["race"], jobs=jobs, groups=list(groups), standing=state["standing"],
                text=text, again=_again(watch.path), published=published)


def _published(race: Path) -> Sequence[Any]:
    from velodrome.studies.report import published_tables

    return published_tables(race)


def _again(race: Path) -> str:
    """The command that runs what a race is missing, from any folder."""
    return shlex.join(["velodrome", "race", str(race / "race.yaml"), "--name", race.name, "--runs", str(race.parent)])


async def state(request: Request) -> Response:
    watch = await _watch(request)
    await watch.refresh()
    return JsonAnswer(watch.state())


async def stream_race(request: Request) -> Response:
    watches: Watches = request.app.state.watches
    return watches.answer(request, await _watch(request))


async def report(request: Request) -> Response:
    """The report of the race as a file; it holds its own style and script, so that it is not shown as a page here."""
    race = await run_in_threadpool(race_of, request)
    text = await run_in_threadpool(_report, race)
    return Response(files.encoded(text), media_type="text/html", headers={
        "Content-Disposition": f'attachment; filename="{race.name}.html"',
    })


def _report(race: Found) -> str:
    from velodrome.reporting.document import make_pictures, make_report
    from velodrome.reporting.write import to_html
    from velodrome.studies.report import with_study

    record = load_race(race.path.parent, race.name)
    made = with_study(make_report(record))
    return to_html(made, make_pictures(made))


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


async def show_comparison(request: Request) -> Response:
    names = _names(request)
    compared = [await run_in_threadpool(run_named, request, name) for name in names]
    content = await run_in_threadpool(_content, request.app.state.runs, names, compared) if compared else {}
    known = await run_in_threadpool(request.app.state.index.listed, "", "", "run", 0, 200)
    others = [row["run"] for row in known.rows if row["run"] not in names]
    return page(request, "compare.html", names=names, known=others, most=MOST_RUNS, **content)


def _content(runs: Path, names: Sequence[str], compared: Sequence[Found]) -> dict[str, Any]:
    fields, problems = [], []
    for name, run in zip(names, compared, strict=True):
        try:
            fields.append({key: text_of(value) for key, value in RunFolder(run.path).job().model_dump().items()})
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
    compared = [
        Compared(line.measure.heading, line.measure.unit,
                 [texts[name].get(place, ("–", "")) for place in range(len(names))])
        for name, line in lines.items()
    ]
    return compared, sentences, problems


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
    compared = [await run_in_threadpool(run_named, request, name) for name in names]
    return JsonAnswer({"runs": await run_in_threadpool(_curves, names, compared)})


def _curves(names: Sequence[str], compared: Sequence[Found]) -> list[dict[str, Any]]:
    runs = []
    for name, run in zip(names, compared, strict=True):
        live = LiveRun(run.path, name)
        live.poll()
        if live.events_size:
            live.read_ended()
        state = live.as_json()
        runs.append({key: state[key] for key in ("name", "label", "workers", "metric", "status", "curve")})
    return runs


ROUTES = (
    Route("/", show), Route("/api/races", races), Route("/api/runs", runs), Route("/api/stream", stream),
    Route("/races/{race}/report", report),
    Route("/races/{race}", show_race), Route("/api/races/{race}", state),
    Route("/api/races/{race}/stream", stream_race),
    Route("/compare", show_comparison), Route("/api/compare", curves),
)
