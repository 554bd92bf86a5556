"""How fast the pages of `velodrome ui` are with much data, in a real Chromium on loopback.

    .venv/bin/python benchmarks/ui.py

Stores are made up (`tests/synthetic_races.py`): 10,000 runs of which 1,000 are listed, 10,000 runs in 1,000 races, a
run of 100,000 events, and a race that is being written while 20 pages look at it. Required on an idle machine: first
paint of a list within 1 s, also for the first visitor; the run within 2 s; 20 live pages under 20 % of one core.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from entries import VELODROME

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "servers"))
import browser

from synthetic_races import BEGAN, repeated, result, write_race
from velodrome import files
from velodrome.run.store import LOCK


@contextmanager
def served(runs: Path) -> Iterator[tuple[str, psutil.Process]]:
    """The address of `velodrome ui` and its process."""
    process = subprocess.Popen([str(VELODROME), "ui", "--runs", str(runs), "--port", "0", "--no-browser"],
                               stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    found = re.search(r"http://\S+", process.stdout.readline())
    assert found
    try:
        yield found[0], psutil.Process(process.pid)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)


def used(server: psutil.Process) -> float:
    """Seconds of CPU that the server has used: other programs change this little."""
    times = server.cpu_times()
    return float(times.user + times.system)


def painted(driver: Any, address: str) -> float:
    """Seconds from the request to the first paint with content."""
    driver.get(address)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        found = driver.execute_script(
            "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"
        )
        if found is not None:
            return float(found) / 1000
        time.sleep(0.05)
    raise AssertionError(f"{address} was not painted within a minute")


def drawn(driver: Any, address: str, selector: str) -> float:
    """Seconds from the request until something is drawn."""
    began = time.monotonic()
    driver.get(address)
    while time.monotonic() < began + 60:
        if driver.execute_script("return document.querySelectorAll(arguments[0]).length", selector):
            return time.monotonic() - began
        time.sleep(0.02)
    raise AssertionError(f"{selector} was not drawn within a minute")


def frames(driver: Any) -> tuple[float, float]:
    """Frames per second while a list is scrolled from top to bottom in three seconds, and the longest frame in ms."""
    gaps = driver.execute_async_script("""
        const done = arguments[0], gaps = [], began = performance.now(), height = document.documentElement.scrollHeight;
        let last = began;
        const step = (now) => {
            gaps.push(now - last); last = now;
            scrollTo(0, height * Math.min(1, (now - began) / 3000));
            if (now - began < 3000) requestAnimationFrame(step); else done(gaps.slice(1));
        };
        requestAnimationFrame(step);
    """)
    return 1000 * len(gaps) / sum(gaps), max(gaps)


def many_runs(folder: Path, count: int) -> None:
    """A folder of finished runs, without events: a list reads none."""
    folder.mkdir(parents=True)
    for number in range(count):
        made = result(strategy="ddp", workers=2, rate=100.0 + number % 7, seed=number)
        run = folder / f"run-{number:05}"
        run.mkdir()
        (run / "job.yaml").write_text(json.dumps({"dataset": "digits", "engine": "torch", "strategy": "ddp"}))
        (run / "result.json").write_text(json.dumps(made, indent=2))


def many_events(runs: Path, count: int) -> str:
    """A run of two workers with so many heartbeats and progress events."""
    made = result(strategy="ddp", workers=2, rate=10.0, epochs=50)
    race = write_race(runs, [made], "long").path
    folder = next(race.glob("*/events.jsonl")).parent
    with (folder / "events.jsonl").open("w", encoding="utf-8") as stream:
        for number in range(count // 4):
            for rank in (0, 1):
                who = {"time": BEGAN + number, "role": "worker", "rank": rank, "received": BEGAN + number}
                stream.write(json.dumps({
                    **who, "kind": "resources", "cpu_percent": 50.0 + number % 40, "memory_bytes": 2**28,
                    "network": {"in": 2**19, "out": 2**19, "loopback": 2**20}, "steps": number, "seen": 0,
                    "waiting": False, "cpu_time": {"seconds": 1.0, "busy": 2.0, "own": 1.0, "controller": 0.0},
                }, separators=(",", ":")) + "\n")
                stream.write(json.dumps({
                    **who, "kind": "progress", "epoch": 1 + number // 500, "step": number % 500, "steps": 500,
                    "examples": 100 * (number % 500), "seconds": float(number % 500), "loss": 1.0, "accuracy": 0.5,
                    "metrics": {}, "learning_rate": 0.001,
                }, separators=(",", ":")) + "\n")
    return f"/runs/long/{folder.name}"


def make_stores(folder: Path) -> None:
    many_runs(folder / "runs", 10_000)
    for race in range(1000):
        many_runs(folder / "races" / f"race-{race}", 10)
        (folder / "races" / f"race-{race}" / "race.yaml").write_text("vary: {workers: [1, 2]}\nrepeat: 5\n")
    (folder / "page").write_text(many_events(folder / "long", 100_000))
    os.sync()


def live_cost(folder: Path, pages: int, seconds: float) -> float:
    """Share of one core that the server takes while so many pages watch a race whose run reports every second."""
    race = write_race(folder, repeated([1000.0, 1010.0, 990.0], strategy="single"), "live").path
    run = race / "now"
    run.mkdir()
    fields = {"engine": "torch", "strategy": "ddp", "workers": 4, "epochs": 1000, "batch_size": 64, "dataset": "digits"}
    (run / "job.yaml").write_text(json.dumps(fields))
    lock = files.FileLock(run / LOCK)
    assert lock.acquire()
    stop = threading.Event()

    def report() -> None:
        with (run / "events.jsonl").open("a") as stream:
            for number in range(100_000):
                for rank in range(4):
                    who = {"time": BEGAN + number / 4, "role": "worker", "rank": rank}
                    stream.write(json.dumps({**who, "kind": "progress", "epoch": 1 + number // 40, "step": number % 40,
                                             "steps": 40, "examples": 100 * (number % 40), "seconds": 1.0}) + "\n")
                    if number % 4 == 0:
                        stream.write(json.dumps({**who, "kind": "resources", "cpu_percent": 90.0, "memory_bytes": 2**28,
                                                 "network": {"in": 1, "out": 1, "loopback": 1}}) + "\n")
                stream.flush()
                if stop.wait(0.25):
                    return

    writer = threading.Thread(target=report)
    writer.start()
    try:
        with served(folder) as (address, server):
            return asyncio.run(_watched(address, server, pages, seconds))
    finally:
        stop.set()
        writer.join()
        lock.release(remove=True)


async def _watched(address: str, server: psutil.Process, pages: int, seconds: float) -> float:
    host, port = address.removeprefix("http://").split(":")
    open_pages = []
    for _ in range(pages):
        reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 24)
        writer.write(f"GET /api/races/live/stream HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        open_pages.append((reader, writer))
    received = 0

    async def read(reader: asyncio.StreamReader) -> None:
        nonlocal received
        while piece := await reader.read(1 << 16):
            received += len(piece)

    tasks = [asyncio.create_task(read(reader)) for reader, _ in open_pages]
    await asyncio.sleep(5)
    before = used(server)
    await asyncio.sleep(seconds)
    after = used(server)
    assert received > pages * 1000, "the pages were sent nothing"
    for task in tasks:
        task.cancel()
    for _, writer in open_pages:
        writer.close()
    return (after - before) / seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3, help="repetitions [3]")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long the live pages are watched [20]")
    parser.add_argument("--stores", type=Path, help="make the stores here and keep them, or use those that are there")
    parser.add_argument("--only-stores", action="store_true", help="make the stores, and measure nothing")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="velodrome-ui-") as name:
        folder = options.stores or Path(name)
        if not (folder / "page").exists():
            make_stores(folder)
        if options.only_stores:
            return 0
        page = (folder / "page").read_text()
        with browser.chromium() as driver:
            for what, store in (("10,000 runs", folder / "runs"), ("1,000 races of 10 runs", folder / "races")):
                with served(store) as (address, server):
                    before = used(server)
                    first, cost = painted(driver, address), used(server) - before
                    later = [painted(driver, address) for _ in range(options.repeat)]
                    drawn(driver, address, "#rows tbody:nth-of-type(20)")
                    rows = driver.execute_script("return document.querySelectorAll('#rows tbody tr').length")
                    rate, longest = frames(driver)
                print(f"{what}: {rows:,} listed, first paint {first:.2f} s for the first visitor "
                      f"({cost:.2f} s of CPU), then {median(later):.2f} s (required: 1); "
                      f"scrolling {rate:.0f} frames/s, longest {longest:.0f} ms")
            with served(folder / "long") as (address, server):
                before = used(server)
                seconds, cost = drawn(driver, address + page, "#cpu canvas"), used(server) - before
            print(f"a run of 100,000 events: drawn after {seconds:.2f} s ({cost:.2f} s of CPU; required: 2)")
        cost = live_cost(Path(name) / "live", 20, options.seconds)
        print(f"20 live pages: {100 * cost:.1f} % of one core (required: 20)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
