"""A fixed small computation on every core, timed between the runs of a race: it shows whether the machine's own speed
changed meanwhile. Each rate is a line of `calibration.jsonl` in the race's folder."""

from __future__ import annotations

import json
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from velodrome import files
from velodrome.machine import cores

FILE = "calibration.jsonl"
#: How long one calibration computes.
SECONDS = 0.3
#: At the most so many runs between two calibrations, and at least so many seconds.
RUNS_BETWEEN, SECONDS_BETWEEN = 5, 5.0
#: Numbers that fit into a core's own cache; numpy releases the interpreter's lock for so many.
_SIZE = 16_384
_LONGEST_LINE = 1_000


class Calibration:
    """Measures now and then how fast this machine is, and keeps the rates."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE
        self._runs = 0
        self._last: float | None = None

    def before_block(self) -> None:
        """Measure before the first run of a repetition."""
        self._measure()

    def before_run(self) -> None:
        """Measure if several runs passed since the last time."""
        if self._runs >= RUNS_BETWEEN:
            self._measure()
        self._runs += 1

    def _measure(self) -> None:
        if self._last is not None and time.monotonic() - self._last < SECONDS_BETWEEN:
            return
        rate = measured_rate()
        self._last, self._runs = time.monotonic(), 0
        line = json.dumps({"time": round(time.time(), 3), "rate": round(rate, 2)})
        with suppress(OSError), self._file.open("a", encoding="utf-8") as file:  # a full disk is reported elsewhere
            file.write(f"{line}\n")


def measured_rate(seconds: float = SECONDS) -> float:
    """Rounds of the computation per second, all cores together."""
    counts: list[int] = []
    begin = time.perf_counter()

    def compute() -> None:
        values, count = np.linspace(0.0, 1.0, _SIZE), 0
        scratch = np.empty_like(values)
        while time.perf_counter() - begin < seconds:
            np.multiply(values, values, out=scratch)
            np.add(scratch, 1.0, out=scratch)
            np.sqrt(scratch, out=scratch)
            count += 1
        counts.append(count)

    threads = [threading.Thread(target=compute) for _ in range(cores())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - begin)


def rates(folder: Path) -> list[float]:
    """The rates of a race's calibrations, in order; lines that cannot be read are skipped."""
    found = []
    try:
        for line in files.read_lines(folder / FILE, _LONGEST_LINE, inside=folder):
            answer: Any = None
            with suppress(ValueError, RecursionError):
                answer = json.loads(line)
            rate = answer.get("rate") if isinstance(answer, dict) else None
            if isinstance(rate, int | float) and 0 < rate <= sys.float_info.max:
                found.append(float(rate))
    except OSError:
        return []
    return found
