"""Open pages learn everything that changes on disk, and lose nothing while they are away."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from starlette.requests import Request
from starlette.responses import Response

from synthetic_races import BEGAN, events_of, repeated, result, write_race
from velodrome import files
from velodrome.cli.board import Board
from velodrome.job.names import expand
from velodrome.job.race import parse_race
from velodrome.races.folder import RaceFolder
from velodrome.run.samples import Series
from velodrome.run.state import WATCHED_ROWS
from velodrome.run.store import LOCK
from velodrome.web.live_run import LiveRun
from velodrome.web.watch import MOST_STREAMS, POLL, Streams, Watch


@pytest.fixture
def race(runs: Path) -> Path:
    return write_race(runs, repeated([1000.0, 1010.0], strategy="single"), "first").path


def looked(watch: Watch) -> Watch:
    watch._look()
    return watch


def jobs(state: dict[str, Any]) -> list[str]:
    return [job["name"] for job in state.get("jobs", [])]


def begin(race: Path, name: str) -> files.FileLock:
    """A run that a controller holds, with a job and no events yet."""
    folder = race / name
    folder.mkdir()
    fields = {"dataset": "digits", "engine": "torch", "strategy": "ddp", "workers": 2, "batch_size": 64, "epochs": 4}
    (folder / "job.yaml").write_text(json.dumps(fields))
    lock = files.FileLock(folder / LOCK)
    assert lock.acquire()
    return lock


def add(folder: Path, *events: dict[str, Any], end: str = "\n") -> None:
    with (folder / "events.jsonl").open("a") as stream:
        stream.write("\n".join(json.dumps(event) for event in events) + end)


def progress(epoch: int, step: int, seconds: float) -> dict[str, Any]:
    return {"time": BEGAN + seconds, "role": "worker", "rank": 0, "kind": "progress", "epoch": epoch, "step": step,
            "steps": 10, "examples": 100 * step, "seconds": seconds, "loss": 1.0, "accuracy": 0.5}


def test_a_page_that_was_away_is_sent_what_changed_since_its_last_message(runs: Path, race: Path) -> None:
    watch = looked(Watch(runs, race, race=True))
    seen = f"{watch.boot}-{watch.version}"
    assert len(jobs(watch.state())) == 2
    lock = begin(race, "third")
    looked(watch)
    add(race / "third", progress(1, 5, 1.0))
    looked(watch)
    missed = watch.state(watch.seen(seen))
    assert not missed["whole"]
    assert jobs(missed) == ["third"]
    assert missed["jobs"][0]["done"] == pytest.approx(0.125)
    assert missed["race"]["status"] == "running"
    lock.release(remove=True)


def test_a_race_that_runs_shows_the_time_that_is_left_as_its_terminal_does(runs: Path, race: Path) -> None:
    done = sorted(path.name for path in race.iterdir() if path.is_dir())
    took = sum(json.loads((race / name / "result.json").read_text())["seconds"]["total"] for name in done)
    RaceFolder(runs, "first").expect({**dict.fromkeys(done, took / 4), "third": 80.0, "fourth": 10.0, "stored": 0.0})
    watch = looked(Watch(runs, race, race=True))
    assert watch.header["remaining"] is None, "nobody runs it"
    lock = begin(race, "third")
    looked(watch)
    add(race / "third", progress(1, 5, 1.0))
    looked(watch)
    # Those that ended took twice as long as was expected, and an eighth of the third is done.
    left = 2 * (80.0 * (1 - 0.125) + 10.0)
    assert watch.header["remaining"] == {"jobs": 2, "seconds": left, "text": "2 to go, about 3 min"}
    entries = expand(parse_race({"job": {"strategy": "single"}, "vary": {"epochs": [1, 2, 3, 4]}}))
    board = Board(Console(file=io.StringIO()), entries, dict(zip(
        (entry.name for entry in entries), (took / 4, took / 4, 80.0, 10.0), strict=True)))
    for line, state, seconds in zip(board._lines, ("done", "done", "running", "waiting"), (took, 0, 1, 0), strict=True):
        line.state, line.seconds = state, seconds
    board._lines[2].share = 0.125
    assert board._eta().startswith(f"{watch.header['remaining']['text']}, until ")
    lock.release(remove=True)


def test_steps_limit_what_a_run_has_to_do(race: Path) -> None:
    lock = begin(race, "third")
    (race / "third" / "job.yaml").write_text(json.dumps({"dataset": "digits", "engine": "torch", "steps": 15}))
    add(race / "third", progress(1, 5, 1.0))
    run = LiveRun(race / "third")
    run.poll()
    assert run.done == pytest.approx(5 / 15)
    lock.release(remove=True)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"third": "soon"}', '{"third": -1, "fourth": null}'])
def test_a_damaged_file_of_expected_times_only_hides_the_time_that_is_left(
    runs: Path, race: Path, text: str
) -> None:
    (race / "expected.json").write_text(text)
    lock = begin(race, "third")
    assert looked(Watch(runs, race, race=True)).header["remaining"] is None
    lock.release(remove=True)


@pytest.mark.parametrize("last", [None, "", "x", "0000-1", "-", "12-ab", "☃-3", "9" * 400])
def test_an_unknown_id_is_answered_with_everything(runs: Path, race: Path, last: str | None) -> None:
    watch = looked(Watch(runs, race, race=True))
    state = watch.state(watch.seen(last))
    assert state["whole"]
    assert len(jobs(state)) == 2
    assert state["standing"]["verdicts"]


def test_a_server_that_was_started_again_sends_everything(runs: Path, race: Path) -> None:
    first, second = looked(Watch(runs, race, race=True)), looked(Watch(runs, race, race=True))
    assert second.seen(f"{first.boot}-{first.version}") == 0


def test_nothing_is_sent_while_nothing_changes(runs: Path, race: Path) -> None:
    watch = looked(Watch(runs, race, race=True))
    version = watch.version
    for _ in range(3):
        looked(watch)
    assert watch.version == version


def test_a_run_is_followed_from_its_start_to_its_end(runs: Path, race: Path) -> None:
    watch = looked(Watch(runs, race, race=True))
    lock = begin(race, "third")
    looked(watch)
    assert watch.jobs["third"].as_json()["status"] == "running"
    made = result(strategy="ddp", workers=2, seed=9)
    whole = events_of(made)
    add(race / "third", *whole[:10], end="")
    looked(watch)
    add(race / "third", {"kind": "nonsense"})
    looked(watch)
    # The last event had no end of line yet: it was half written, and the rest of the line belongs to it.
    assert watch.jobs["third"].as_json()["status"] == "running"
    add(race / "third", *whole[10:])
    looked(watch)
    state = watch.jobs["third"].as_json()
    assert state["curve"]["epoch"] == [1, 2, 3, 4]
    assert state["curve"]["examples"] == [1200, 2400, 3600, 4800]
    assert [node["process"] for node in state["nodes"]] == ["worker 0", "worker 1"]
    files.write_text(race / "third" / "result.json", json.dumps(made))
    lock.release(remove=True)
    watch._next_judgement = 0.0
    looked(watch)
    state = watch.jobs["third"].as_json()
    assert (state["status"], state["done"]) == ("finished", 1.0)
    assert watch.standing["rows"][-1]["workers"] == 2


def test_a_run_that_is_repeated_begins_anew(race: Path) -> None:
    name = sorted(path.parent.name for path in race.glob("*/job.yaml"))[0]
    run = LiveRun(race / name)
    run.poll()
    assert run.status == "finished"
    (race / name).rename(race / f"{name}.attempt-1")
    lock = begin(race, name)
    assert run.poll()
    assert run.status == "running"
    assert run.curve == []
    assert run.as_json()["rate"] is None
    lock.release(remove=True)


def test_a_stream_has_ids_and_ends_with_the_server(runs: Path, race: Path) -> None:
    async def read() -> list[bytes]:
        watch, closing = Watch(runs, race, race=True), asyncio.Event()
        found = []
        async for message in watch.stream(None, closing):
            found.append(message)
            if b"event: state" in message:
                closing.set()
        assert watch.watchers == 0
        return found

    first, second = asyncio.run(read())
    assert first == b"retry: 2000\n\n"
    head, kind, data = second.decode().strip().split("\n")
    assert head.startswith("id: ")
    assert kind == "event: state"
    assert json.loads(data.removeprefix("data: "))["whole"]


def test_curves_stay_short_however_long_a_run_is() -> None:
    series: Series[float] = Series(WATCHED_ROWS)
    for place in range(100_000):
        series.add(float(place))
    assert WATCHED_ROWS <= len(series.rows) < 2 * WATCHED_ROWS
    gaps = {second - first for first, second in zip(series.rows, series.rows[1:], strict=False)}
    assert len(gaps) == 1


def test_pages_beyond_the_live_connections_of_a_browser_poll_and_miss_nothing(runs: Path, race: Path) -> None:
    """Browsers open six connections to a server for all tabs together: no page may wait for one that never ends."""

    async def ask(streams: Streams, watch: Watch, closing: asyncio.Event, last: str | None = None) -> Response:
        headers = [(b"last-event-id", last.encode())] if last else []
        request = Request({"type": "http", "client": ("127.0.0.1", 5), "headers": headers})
        return streams.answer(request, lambda once: watch.stream(last, closing, once=once))

    async def read() -> None:
        watch, closing, streams = Watch(runs, race, race=True), asyncio.Event(), Streams()
        kept = []
        for _ in range(MOST_STREAMS):
            answer = await ask(streams, watch, closing)
            messages = aiter(answer.body_iterator)  # type: ignore[attr-defined]
            kept.append(messages)
            assert b"retry" in await anext(messages)
            assert b"event: state" in await anext(messages)
        polled = await ask(streams, watch, closing)
        whole = [message async for message in polled.body_iterator]  # type: ignore[attr-defined]
        assert [b"event: state" in message for message in whole] == [False, True, False]
        assert whole[-1] == POLL
        last = f"{watch.boot}-{watch.version}"
        again = await ask(streams, watch, closing, last)
        assert [message async for message in again.body_iterator][-1:] == [POLL]  # type: ignore[attr-defined]
        lock = begin(race, "later")
        watch._looked = float("-inf")
        missed = await ask(streams, watch, closing, last)
        found = b"".join([message async for message in missed.body_iterator])  # type: ignore[attr-defined]
        assert b'"later"' in found
        lock.release(remove=True)
        await kept[0].aclose()  # a tab is closed: another page may have its place
        live = aiter((await ask(streams, watch, closing, last)).body_iterator)  # type: ignore[attr-defined]
        assert [await anext(live), b"event: state" in await anext(live)] == [b"retry: 2000\n\n", True]
        closing.set()
        assert [message async for message in live] == []

    asyncio.run(asyncio.wait_for(read(), 60))
