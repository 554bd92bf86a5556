"""Every page and state in a real Chromium, at three widths, in light and dark: no serious finding of axe, nothing wider
than the screen, no shift while a page loads. With VELODROME_LOOK=FOLDER a picture of each is kept there to look at."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from start_command import served
from synthetic_races import BEGAN, repeated, result, write_race
from tiny_models import counting, digits, line
from ui_server import Server, progress, stored_race, type_into, wait_for

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "servers"))
import browser

from velodrome import files
from velodrome.run.store import LOCK
from velodrome.tasks.correctness_bits import encode

_MISSING = browser.unavailable() or ("" if browser.axe_file().exists() else
                                     "axe-core was not downloaded: python tests/servers/browser.py")
pytestmark = [
    pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1200),
    pytest.mark.skipif(bool(_MISSING), reason=_MISSING or "there is a browser"),
]
State = tuple[str, Callable[[], object]]
LOOKS = [(width, dark) for width in browser.WIDTHS for dark in (False, True)]


def examine(driver: Any, states: list[State]) -> list[str]:
    """What is wrong with pages, each brought about by a function, in every width and colour scheme."""
    found = []
    for width, dark in LOOKS:
        browser.resize(driver, width, dark=dark)
        for name, show in states:
            show()
            time.sleep(0.7)  # plots are drawn
            driver.execute_script("scrollTo(0, 0)")
            where = f"{name}-{width}{'-dark' if dark else ''}"
            found += [f"{where}: {one}" for one in browser.serious_findings(driver)]
            if driver.execute_script("return document.documentElement.scrollWidth > innerWidth"):
                found.append(f"{where}: wider than the screen")
            if folder := os.environ.get("VELODROME_LOOK"):
                browser.picture(driver, Path(folder) / f"{where}.png")
    return found


def eventful_run(runs: Path) -> str:
    """A failed asynchronous run with servers, a warning, a fault, staleness and shares."""
    made = result(engine="tensorflow", strategy="parameter-server", workers=2, servers=1, rate=100.0)
    folder = write_race(runs, [made], "second").path
    run = next(folder.glob("*/job.yaml")).parent
    text = "worker 1 on this-host: was ended by SIGKILL: --fault 'kill worker1 at 4s'"
    more = [
        {"time": BEGAN + 3, "role": "worker", "rank": 1, "kind": "warning", "message": "batches are uneven"},
        {"time": BEGAN + 3, "kind": "fault", "state": "begin", "fault": "pause worker1 1s..3s", "action": "pause",
         "target": "worker1", "host": "here"},
        {"time": BEGAN + 5, "kind": "fault", "state": "end", "fault": "pause worker1 1s..3s", "action": "pause",
         "target": "worker1", "host": "here"},
        {"time": BEGAN + 6, "role": "worker", "rank": 1, "kind": "error", "message": text, "cause": "engine"},
        *({"time": BEGAN + 2 + at, "role": "chief", "rank": 0, "kind": "staleness", "mean": 1.0 + at % 2, "max": 3.0,
           "updates": 9} for at in range(6)),
        *({"time": BEGAN + 6, "role": "worker", "rank": rank, "kind": "shares", "train_seconds": 10.0,
           "collective_seconds": 2.0 + 3 * rank} for rank in (0, 1)),
    ]
    with (run / "events.jsonl").open("a") as stream:
        stream.writelines(json.dumps(event) + "\n" for event in more)
    made = json.loads((run / "result.json").read_text())
    made |= {"status": "failed", "error": {"message": text, "role": "worker", "rank": 1, "stack": "File x.py, line 3"}}
    (run / "result.json").write_text(json.dumps(made))
    return f"second/{run.name}"


def with_wrong_images(runs: Path, race: Path) -> None:
    """Let the runs of a race have answers to the embedded digits, of which some are wrong."""
    import numpy as np

    right = np.ones(359, bool)
    right[::17] = False
    for path in race.glob("*/result.json"):
        made = json.loads(path.read_text())
        made["test"] |= {"total": 359, "correct": int(right.sum()), "accuracy": float(right.mean()),
                         "answers": encode(right)}
        path.write_text(json.dumps(made))
        (path.parent / "model").mkdir()
        (path.parent / "model" / "model.json").write_text("{}")


@pytest.fixture
def addresses(runs: Path) -> Iterator[dict[str, str]]:
    """A store with races and runs of every status, one of which is running: the paths of pages by name."""
    race = stored_race(runs)
    with_wrong_images(runs, race)
    failed = eventful_run(runs)
    live = write_race(runs, repeated([1000.0, 1010.0], strategy="single"), "live").path
    (live / "later").mkdir()
    fields = {"engine": "torch", "strategy": "ddp", "workers": 2, "epochs": 4, "batch_size": 64, "dataset": "digits"}
    (live / "later" / "job.yaml").write_text(json.dumps(fields))
    (live / "later" / "events.jsonl").write_text("".join(progress(1, at, 0.5 * at) + "\n" for at in range(1, 9)))
    broken = write_race(runs, repeated([1000.0], strategy="single"), "broken").path
    (broken / "race.yaml").write_text("{")
    shutil.copytree(next(race.glob("*/job.yaml")).parent, runs / "alone")
    lock = files.FileLock(live / "later" / LOCK)
    assert lock.acquire()
    names = sorted(path.parent.name for path in race.glob("*/job.yaml"))
    compared = "&".join(f"run=first/{name}" for name in (names[0], names[-1]))
    yield {
        "list": "/", "no-match": "/?q=nothing", "race": "/races/first", "race-live": "/races/live",
        "race-broken": "/races/broken", "run": f"/runs/first/{names[0]}", "run-failed": f"/runs/{failed}",
        "run-live": "/runs/live/later", "compare": f"/compare?{compared}", "compare-nothing": "/compare",
        "not-found": "/nothing",
    }
    lock.release(remove=True)


def test_every_page_is_accessible_at_three_widths_in_light_and_dark(
    runs: Path, addresses: dict[str, str], tmp_path: Path
) -> None:
    server, empty = Server(runs), Server(tmp_path / "empty", "--read-only")
    try:
        with browser.chromium() as driver:
            def opened(address: str) -> Callable[[], object]:
                return lambda: driver.get(address)

            def mistaken() -> None:
                driver.get(f"{server.address}/new")
                type_into(driver, "epochs", "none")
                type_into(driver, "vary", "workers")
                wait_for(driver, "return document.querySelectorAll('[aria-invalid=\"true\"]').length", "the mistakes")

            found = examine(driver, [
                *((name, opened(server.address + path)) for name, path in addresses.items()),
                ("new", opened(f"{server.address}/new")), ("new-mistaken", mistaken),
                ("empty", opened(empty.address)), ("read-only", opened(f"{empty.address}/new")),
            ])
            problems = [one for one in browser.complaints(driver) if "404" not in one and "403" not in one]
    finally:
        server.end()
        empty.end()
    assert found == []
    assert problems == []


def test_pages_do_not_shift_while_they_load(runs: Path, addresses: dict[str, str], tmp_path: Path) -> None:
    digits(tmp_path)
    line(tmp_path)
    server = Server(runs)
    try:
        with served(tmp_path, "digits", "line") as models, browser.chromium() as driver:
            driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": (
                "window.shifts = 0; window.shifted = []; new PerformanceObserver((list) => {"
                "for (const one of list.getEntries()) { window.shifts += one.value;"
                "window.shifted.push(...one.sources.map((each) => each.node?.outerHTML?.slice(0, 80))); } })"
                ".observe({type: 'layout-shift', buffered: true});"
            )})
            found = {}
            for width in browser.WIDTHS:
                browser.resize(driver, width)
                pages = {name: server.address + path for name, path in addresses.items()}
                for name, address in {**pages, "new": f"{server.address}/new", "models": models}.items():
                    driver.get(address)
                    time.sleep(1.5)
                    shift, what = driver.execute_script("return [window.shifts, window.shifted.slice(0, 4)]")
                    if shift >= 0.1:  # what browsers call good
                        found[f"{name} at {width}"] = (round(shift, 3), what)
    finally:
        server.end()
    assert found == {}


def test_the_page_of_models_is_accessible_in_every_state(tmp_path: Path) -> None:
    digits(tmp_path)
    line(tmp_path)
    counting(tmp_path)
    (line(tmp_path, "broken") / "model.onnx").write_bytes(b"no graph")
    Image.new("L", (40, 40), 255).save(tmp_path / "white.png")
    (tmp_path / "bad.png").write_bytes(b"this is no picture")
    answers = "document.querySelectorAll('#pictures .answer')"
    with served(tmp_path, "digits", "line", "counting", "broken") as address, browser.chromium() as driver:
        def opened() -> None:
            driver.get(address)
            wait_for(driver, "return document.querySelectorAll('#tables .answer').length", "the answer to a row")

        def answered() -> None:
            opened()
            driver.find_element("css selector", "#examples button").click()
            wait_for(driver, f"return {answers}.length", "the answer")
            driver.find_element("id", "looked").click()
            driver.find_element("id", "generate").click()
            wait_for(driver, "return document.querySelector('#generated').textContent", "the text")

        def refused() -> None:
            opened()
            driver.find_element("id", "files").send_keys("\n".join(str(tmp_path / f"{one}.png")
                                                                   for one in ("bad", "white")))
            wait_for(driver, f"return {answers}.length", "the refusal")
            driver.find_element("css selector", "#queue button").click()
            wait_for(driver, "return document.querySelector('#pictures .wrong')", "the refusal")

        found = examine(driver, [("models", opened), ("models-answered", answered), ("models-refused", refused)])
        problems = [one for one in browser.complaints(driver) if not re.search("409|415", one)]
    assert found == []
    assert problems == []
