"""The pages in a real Chromium: what people see, click and type."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from synthetic_races import BEGAN, repeated, write_race

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "servers"))
import browser

from velodrome import files
from velodrome.run.store import LOCK

pytestmark = [
    pytest.mark.e2e, pytest.mark.timeout(900),
    pytest.mark.skipif(bool(browser.unavailable()), reason=browser.unavailable() or "there is a browser"),
]
WAIT_SECONDS = 60.0
PICTURES = Path(__file__).resolve().parents[2] / "docs" / "images"


class Server:
    """`velodrome ui` on a folder of runs."""

    def __init__(self, runs: Path, *words: object, port: int = 0) -> None:
        command = [sys.executable, "-m", "velodrome", "ui", "--runs", runs, "--port", port, "--no-browser", *words]
        self.process = subprocess.Popen(
            [*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        assert found, line
        self.address, self.port = found[0], int(found[1])

    def end(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


@pytest.fixture
def serve(runs: Path) -> Iterator[Callable[..., Server]]:
    servers = []

    def start(*words: object, port: int = 0) -> Server:
        servers.append(Server(runs, *words, port=port))
        return servers[-1]

    yield start
    for server in servers:
        server.end()


def wait_for(driver: Any, script: str, what: str, seconds: float = WAIT_SECONDS) -> Any:
    """Wait until a script returns something true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := driver.execute_script(script):
            return value
        time.sleep(0.1)
    says = driver.find_element("tag name", "main").text[:1500]
    raise AssertionError(f"not within {seconds:.0f} s: {what}; the page says {says}")


def text(driver: Any, selector: str) -> str:
    return str(driver.execute_script("return document.querySelector(arguments[0])?.textContent ?? ''", selector))


def type_into(driver: Any, name: str, value: str) -> None:
    field = driver.find_element("id", name)
    field.clear()
    field.send_keys(value)


def stored_race(runs: Path) -> Path:
    results = [
        *repeated([1000.0, 1010.0, 990.0], strategy="single"),
        *repeated([1900.0, 1910.0, 1890.0], strategy="ddp", workers=2),
    ]
    for made in results:
        made["confusion"], made["class_names"] = [[40, 2, 0], [1, 38, 3], [0, 4, 36]], ["ant", "bee", "cicada"]
        made["shares"] = {"compute": 0.7, "wait": 0.1, "communicate": 0.2}
    race = write_race(runs, results, "first").path
    for run in race.glob("*/job.yaml"):
        (run.parent / "logs").mkdir()
        (run.parent / "logs" / "worker-0.log").write_text("a line of the log\nanother one\n")
    return race


def progress(epoch: int, step: int, seconds: float, examples: float = 100.0) -> str:
    return json.dumps({"time": BEGAN + seconds, "role": "worker", "rank": 0, "kind": "progress", "epoch": epoch,
                       "step": step, "steps": 10, "examples": int(examples), "seconds": seconds, "loss": 1.0})


def test_a_live_race_is_drawn_updates_by_itself_and_survives_a_restart_of_the_server(
    runs: Path, serve: Callable[..., Server]
) -> None:
    race = stored_race(runs)
    server = serve()
    with browser.chromium() as driver:
        driver.get(f"{server.address}/races/first")
        wait_for(driver, "return document.querySelectorAll('#accuracy canvas').length", "the accuracy curves")
        wait_for(driver, "return document.querySelectorAll('#speedup circle').length === 2", "the speedup of both")
        assert "Use torch/ddp" in text(driver, "#verdicts")
        assert text(driver, "#connection") == "● live"

        folder = race / "later"
        folder.mkdir()
        (folder / "job.yaml").write_text(json.dumps({"engine": "torch", "strategy": "ddp", "workers": 2, "epochs": 4,
                                                     "batch_size": 64, "dataset": "digits"}))
        lock = files.FileLock(folder / LOCK)
        assert lock.acquire()
        with (folder / "events.jsonl").open("a") as events:
            events.write(progress(1, 5, 1.0) + "\n")
        wait_for(driver, "return document.querySelector('tr[data-job=\"later\"] progress')?.value > 0.1", "the new run")
        assert text(driver, "#status") == "running"

        # While the server is away the run goes on; the page comes back by itself and has missed nothing.
        server.end()
        wait_for(driver, "return document.querySelector('#connection').classList.contains('lost')", "the loss")
        with (folder / "events.jsonl").open("a") as events:
            events.write(progress(3, 5, 3.0) + "\n")
        serve(port=server.port)
        epoch = "document.querySelector('tr[data-job=\"later\"] [data-cell=\"epoch\"]')"
        wait_for(driver, f"return {epoch}.textContent === '3/4'", "what happened meanwhile")
        assert text(driver, "#connection") == "● live"
        lock.release(remove=True)

        browser.resize(driver, browser.WIDTHS[0])
        for address in ("/", "/races/first", "/new", "/compare"):
            driver.get(f"http://127.0.0.1:{server.port}{address}")
            assert driver.execute_script("return document.documentElement.scrollWidth <= innerWidth"), address
        allowed = ("stream", "ERR_")  # the server was away
        assert [one for one in browser.complaints(driver) if not any(part in one for part in allowed)] == []


@pytest.mark.slow
def test_a_race_is_started_from_the_form_watched_stopped_resumed_and_finishes(
    runs: Path, no_strays: None, serve: Callable[..., Server]
) -> None:
    server = serve()
    with browser.chromium() as driver:
        driver.get(server.address)
        assert "Nothing here yet" in driver.page_source
        driver.get(f"{server.address}/new")
        type_into(driver, "epochs", "none")
        type_into(driver, "name", "made")
        wait_for(driver, "return document.querySelector('#epochs[aria-invalid=\"true\"]')", "the mistake at its field")
        assert "'none'" in text(driver, "#error-epochs")
        type_into(driver, "epochs", "100")
        type_into(driver, "repeat", "2")
        type_into(driver, "vary", "strategy=single,allreduce")
        type_into(driver, "engine", "torch")
        type_into(driver, "dataset", "nowhere")
        driver.find_element("id", "start").click()
        wait_for(driver, "return document.querySelector('#start').disabled === false && "
                 "document.querySelectorAll('.error:not([hidden]), .message:not([hidden])').length", "the refusal", 120)
        assert "nowhere" in driver.find_element("tag name", "main").text
        type_into(driver, "dataset", "digits")
        command = "document.querySelector('#command').textContent"
        command = wait_for(driver, f"return {command}.includes('--dataset=digits') && {command}", "the command")
        assert command.startswith("velodrome race --name=made")
        driver.find_element("id", "start").click()
        wait_for(driver, "return location.pathname === '/races/made'", "the page of the race", 120)
        wait_for(driver, "return document.querySelector('.status.running')", "a running job", 120)
        wait_for(driver, "return document.querySelectorAll('#accuracy canvas').length", "a curve", 120)
        driver.find_element("id", "stop").click()
        wait_for(driver, "return !document.querySelector('#resume').hidden", "the end", 120)
        driver.find_element("id", "resume").click()
        status = "document.querySelector('#status').textContent"
        wait_for(driver, f"return {status} === 'running'", "the second start", 120)
        wait_for(driver, f"return {status} === 'finished'", "the end of all jobs", 400)
        wait_for(driver, "return document.querySelector('.verdict .answer')", "the verdict")
        assert [one for one in browser.complaints(driver) if "422" not in one] == []
    assert server.end() == 130


@pytest.mark.slow
def test_every_page_is_accessible_at_three_widths_in_light_and_dark(runs: Path, serve: Callable[..., Server]) -> None:
    assert browser.axe_file().exists(), "axe-core was not downloaded: python tests/servers/browser.py"
    race = stored_race(runs)
    names = sorted(path.parent.name for path in race.glob("*/job.yaml"))
    compared = "&".join(f"run=first/{name}" for name in (names[0], names[-1]))
    server = serve()
    found = []
    with browser.chromium() as driver:
        for width in browser.WIDTHS:
            for dark in (False, True):
                browser.resize(driver, width, dark=dark)
                for address in ("/", "/?q=nothing", "/new", "/races/first", f"/runs/first/{names[0]}",
                                f"/compare?{compared}", "/compare", "/nothing"):
                    driver.get(server.address + address)
                    time.sleep(0.7)  # plots are drawn
                    where = f"{address} at {width}{' dark' if dark else ''}"
                    found += [f"{where}: {one}" for one in browser.serious_findings(driver)]
                    if driver.execute_script("return document.documentElement.scrollWidth > innerWidth"):
                        found.append(f"{address} at {width}: wider than the screen")
        problems = [one for one in browser.complaints(driver) if "404" not in one]
    assert found == []
    assert problems == []


@pytest.mark.slow
def test_pages_can_be_used_by_keyboard_and_do_not_jump_while_they_load(
    runs: Path, serve: Callable[..., Server]
) -> None:
    from selenium.webdriver.common.keys import Keys

    stored_race(runs)
    server = serve()
    with browser.chromium() as driver:
        driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": (
            "window.shifts = 0; new PerformanceObserver((list) => {"
            "for (const one of list.getEntries()) window.shifts += one.value; })"
            ".observe({type: 'layout-shift', buffered: true});"
        )})
        for address in ("/", "/new", "/races/first"):
            driver.get(server.address + address)
            time.sleep(1.5)
            assert driver.execute_script("return window.shifts") < 0.1, address
        driver.get(server.address)
        driver.find_element("tag name", "body").send_keys(Keys.TAB)
        assert driver.switch_to.active_element.text == "Skip to content"
        for _ in range(30):
            driver.switch_to.active_element.send_keys(Keys.TAB)
            if driver.switch_to.active_element.text == "first":
                break
        driver.switch_to.active_element.send_keys(Keys.ENTER)
        wait_for(driver, "return location.pathname === '/races/first'", "the race opened by keyboard")


@pytest.mark.slow
def test_tensorboard_is_started_by_its_button(runs: Path, no_strays: None, serve: Callable[..., Server]) -> None:
    race = stored_race(runs)
    name = sorted(path.parent.name for path in race.glob("*/job.yaml"))[0]
    (race / name / "tensorboard").mkdir()
    server = serve()
    with browser.chromium() as driver:
        driver.get(f"{server.address}/runs/first/{name}")
        driver.find_element("id", "tensorboard").click()
        address = wait_for(driver, "return document.querySelector('#board a')?.href", "TensorBoard", 120)
        driver.get(address)
        wait_for(driver, "return document.title.includes('TensorBoard')", "its page", 120)


def picturesque_race(runs: Path) -> tuple[Path, files.FileLock]:
    """A race of three strategies with one run to go, whose curves look as real ones do; who holds that run."""
    results, noise = [], random.Random(7)
    for strategy, workers, rate in (("single", 1, 2300.0), ("ddp", 1, 2150.0), ("ddp", 2, 3700.0), ("ddp", 4, 5400.0),
                                    ("allreduce", 1, 2350.0), ("allreduce", 2, 4300.0), ("allreduce", 4, 7600.0)):
        rates = [rate * noise.uniform(0.96, 1.04) for _ in range(3)]
        for made in repeated(rates, [0.951, 0.954, 0.949], strategy=strategy, workers=workers, epochs=12):
            for row in made["history"]:
                reached = 1 - 0.62 * 2.718 ** (-0.5 * row["epoch"] * (1 + 0.04 * made["seed"]))
                row["validation_accuracy"] = 0.955 * reached - noise.uniform(0, 0.012)
            results.append(made)
    race = write_race(runs, results, "fashion").path
    vary = {"entry": ["torch/single", "torch/ddp", "torch/allreduce"], "workers": [1, 2, 4]}
    job = {"dataset": "digits", "batch_size": 64, "epochs": 12}
    (race / "race.yaml").write_text(yaml.safe_dump({"job": job, "vary": vary, "repeat": 3}))
    for number, made in enumerate(results):
        folder = (race / f"{made['run']}-{number}").rename(race / made["run"])
        rate, events = made["throughput"]["examples_per_second"], (folder / "events.jsonl").read_text().splitlines()
        seconds = [0.3 * tenth for tenth in range(1, int(made["seconds"]["train"] / 0.3))]
        more = [progress(6, 5, second, rate * second * noise.uniform(0.97, 1.03)) for second in seconds]
        (folder / "events.jsonl").write_text("\n".join([*events, *more]) + "\n")
    last = race / "torch-allreduce-4w-64b-3"
    (last / "result.json").unlink()
    events = [json.loads(line) for line in (last / "events.jsonl").read_text().splitlines()]
    for event in events:
        if event["kind"] == "epoch":
            event["validation"] = {"correct": 960 - 600 // 2 ** event["epoch"], "total": 1000, "loss_sum": 1.0}
    kept = [json.dumps(event) for event in events if event.get("epoch", 0) < 8]
    (last / "events.jsonl").write_text("\n".join(kept) + "\n")
    lock = files.FileLock(last / LOCK)
    assert lock.acquire()
    return race, lock


@pytest.mark.slow
def test_the_picture_of_the_race_page_in_the_documentation(
    runs: Path, serve: Callable[..., Server], tmp_path: Path
) -> None:
    """With VELODROME_PICTURES=1 it replaces the one in docs/images."""
    folder = PICTURES if os.environ.get("VELODROME_PICTURES") else tmp_path
    race, lock = picturesque_race(runs)
    server = serve()
    with browser.chromium() as driver:
        driver.get(f"{server.address}/races/{race.name}")
        wait_for(driver, "return document.querySelectorAll('#speedup circle').length === 7", "the speedups")
        wait_for(driver, "return document.querySelectorAll('#cpu canvas, #accuracy canvas').length === 2", "the plots")
        time.sleep(0.5)
        browser.picture(driver, folder / "race-page.png", 1150)
    lock.release(remove=True)
    assert (folder / "race-page.png").stat().st_size > 50_000
