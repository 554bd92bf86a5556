"""The output of a script: read by patterns on its way to the log, in a process of its own (`worker/reading.py`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from velodrome import figures
from velodrome.job.script import COUNTS
from velodrome.worker.context import Emitter

_READER = Path(__file__).with_name("reading.py")
#: Groups that are of every split of their line.
_SHARED = ("step", "epoch", "total_steps", "total_epochs")
#: How long the reader may take to read the rest; processes that the script left behind may keep its output open.
DRAIN_SECONDS = 5.0

Log = Callable[[str, int | None, int | None, int | None, Mapping[str, float]], None]


@contextmanager
def read_output(patterns: Sequence[str], log: Log, events: Emitter) -> Iterator[None]:
    """Search what this process prints during the block, and report what is found; it goes to the log as ever."""
    _flush()
    kept = os.dup(1), os.dup(2)
    output, its_output = os.pipe()
    answers, its_answers = os.pipe()
    reader = subprocess.Popen(
        [sys.executable, "-P", str(_READER), str(its_answers), *patterns], stdin=output, stdout=kept[1], stderr=kept[1],
        pass_fds=[its_answers],
    )
    os.close(output)
    os.close(its_answers)
    thread = threading.Thread(target=_take, args=(answers, log, events), name="velodrome-reader", daemon=True)
    thread.start()
    os.dup2(its_output, 1)
    os.dup2(its_output, 2)
    os.close(its_output)
    try:
        yield
    finally:
        _flush()
        for number, descriptor in zip((1, 2), kept, strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)
        with suppress(subprocess.TimeoutExpired):
            reader.wait(DRAIN_SECONDS)
        if reader.returncode is None:
            reader.kill()
            reader.wait()
        thread.join(1.0)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()


def _take(answers: int, log: Log, events: Emitter) -> None:
    with os.fdopen(answers, encoding="utf-8") as lines:
        for line in lines:
            answer: dict[str, Any] = json.loads(line)
            if "warning" in answer:
                events.emit("warning", message=answer["warning"])
            else:
                for report in reports_of(answer["figures"]):
                    log(*report)


def reports_of(
    figures_of_line: Mapping[str, float],
) -> Iterator[tuple[str, int | None, int | None, int | None, Mapping[str, float]]]:
    """The groups of a line as reports: one for each split that they are of, training first."""
    splits: dict[str, dict[str, float]] = {}
    for name, value in figures_of_line.items():
        about = figures.named(name)
        plain, value = about.own, value / 100 if about.percent else value
        if plain in COUNTS and not (value >= 0 and value == int(value)):
            continue
        splits.setdefault(about.split or ("train" if plain not in _SHARED else ""), {})[plain] = value
    shared = splits.pop("", {})
    for split in [split for split in figures.SPLITS if split in splits] or ["train"] * bool(shared):
        values = {**shared, **splits.get(split, {})}
        step, examples, epoch = (int(values.pop(name)) if name in values else None for name in COUNTS)
        yield split, step, examples, epoch, values
