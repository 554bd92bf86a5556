"""The pages in a real Chromium: what people see, click and type."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from synthetic_races import repeated, write_race
from ui_server import Server, progress, stored_race, text, type_into, wait_for

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "servers"))
import browser

from velodrome import files
from velodrome.run.store import LOCK

pytestmark = [
    pytest.mark.e2e, pytest.mark.timeout(900),
    pytest.mark.skipif(bool(browser.unavailable()), reason=browser.unavailable() or "there is a browser"),
]


@pytest.fixture
def serve(runs: Path) -> Iterator[Callable[..., Server]]:
    servers = []

    def start(*words: object, port: int = 0) -> Server:
        servers.append(Server(runs, *words, port=port))
        return servers[-1]

    yield start
    for server in servers:
        server.end()


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


def test_eight_tabs_of_a_live_race_all_load_and_follow_it(runs: Path, serve: Callable[..., Server]) -> None:
    race = stored_race(runs)
    folder = race / "later"
    folder.mkdir()
    (folder / "job.yaml").write_text(json.dumps({"engine": "torch", "strategy": "ddp", "workers": 2, "epochs": 4,
                                                 "batch_size": 64, "dataset": "digits"}))
    lock = files.FileLock(folder / LOCK)
    assert lock.acquire()
    (folder / "events.jsonl").write_text(progress(1, 5, 1.0) + "\n")
    server = serve()
    epoch = "document.querySelector('tr[data-job=\"later\"] [data-cell=\"epoch\"]').textContent"
    pages = ["/races/first"] * 6 + ["/runs/first/later", "/"]
    live = "return document.querySelector('#connection').textContent === '● live'"
    with browser.chromium() as driver:
        tabs = []
        for page in pages:
            if tabs:
                driver.switch_to.new_window("tab")
            tabs.append(driver.current_window_handle)
            driver.get(f"{server.address}{page}")
            wait_for(driver, live, f"tab {len(tabs)}")
        for number in (2, 3):
            with (folder / "events.jsonl").open("a") as events:
                events.write(progress(number, 5, float(number)) + "\n")
            for tab, page in zip(tabs, pages, strict=True):
                driver.switch_to.window(tab)
                if page.startswith("/races"):
                    wait_for(driver, f"return {epoch} === '{number}/4'", f"epoch {number} in tab {tabs.index(tab) + 1}")
                assert text(driver, "#connection") == "● live"
        driver.switch_to.window(tabs[6])
        wait_for(driver, "return document.querySelector('#epochs').textContent === '3/4'", "the run's page")
        (runs / "another").mkdir()
        (runs / "another" / "job.yaml").write_text((folder / "job.yaml").read_text())
        driver.switch_to.window(tabs[7])
        wait_for(driver, "return document.querySelector('#rows').textContent.includes('another')", "the list")
        assert browser.complaints(driver) == []
    lock.release(remove=True)


def test_a_configuration_keeps_its_colour_when_another_one_begins(runs: Path, serve: Callable[..., Server]) -> None:
    race = stored_race(runs)
    (race / "race.yaml").write_text("[")  # so that nothing is known of jobs that have not begun
    server = serve()
    colours = """return Object.fromEntries([...document.querySelectorAll("#accuracy-legend li")].map(
        (one) => [one.textContent, one.querySelector("line").getAttribute("stroke")]))"""
    with browser.chromium() as driver:
        driver.get(f"{server.address}/races/first")
        wait_for(driver, "return document.querySelectorAll('#accuracy-legend li line').length === 2", "the legend")
        before = driver.execute_script(colours)
        folder = race / "later"
        shutil.copytree(next(race.glob("*ddp*")), folder)
        for file in ("job.yaml", "result.json"):
            text = (folder / file).read_text()
            (folder / file).write_text(text.replace("ddp", "allreduce").replace(next(race.glob("*ddp*")).name, "later"))
        wait_for(driver, "return document.querySelectorAll('#accuracy-legend li line').length === 3", "the new run")
        after = driver.execute_script(colours)
        assert len(set(after.values())) == 3
        assert before.items() <= after.items()


def test_that_no_line_matches_is_said_after_a_search_only(runs: Path, serve: Callable[..., Server]) -> None:
    race = stored_race(runs)
    name = sorted(path.parent.name for path in race.glob("*/job.yaml"))[0]
    log = race / name / "logs" / "worker-0.log"
    log.write_text("")
    server = serve()
    with browser.chromium() as driver:
        driver.get(f"{server.address}/runs/first/{name}")
        wait_for(driver, "return !document.querySelector('#log').textContent.startsWith('Loading')", "the logs")
        assert text(driver, "#log") == "The logs are empty: nothing was printed."
        log.write_text("one line\n")
        driver.execute_script("const q = document.querySelector('#log-form [name=q]'); q.value = 'absent'; "
                              "q.form.requestSubmit()")
        wait_for(driver, "return document.querySelector('#log').textContent === 'No line contains that.'", "the answer")


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
def test_pages_can_be_used_by_keyboard(runs: Path, serve: Callable[..., Server]) -> None:
    from selenium.webdriver.common.keys import Keys

    stored_race(runs)
    server = serve()
    with browser.chromium() as driver:
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
    """With VELODROME_PICTURES=docs/images it is made anew."""
    folder = Path(os.environ.get("VELODROME_PICTURES") or tmp_path)
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
