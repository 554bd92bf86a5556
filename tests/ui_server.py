"""`velodrome ui` as a process, made-up races that look real, and waiting for what its pages show."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from synthetic_races import BEGAN, repeated, write_race

WAIT_SECONDS = 60.0


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
