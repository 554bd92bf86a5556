"""Figures in the output of a script, which a process of its own finds by patterns on its way to the log.

`python script_output.py DESCRIPTOR PATTERN…` is that process: it copies standard input to standard output, and writes a
line of JSON to the descriptor for each line with a match. An expression that takes for ever on some line is
interrupted, which only the main thread of a process can be; in the training process it would hold up training. So that
it starts at once, nothing outside the standard library is imported here.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from velodrome import figures

if TYPE_CHECKING:
    from velodrome.training.context import Emitter

#: Groups that are of every split of their line.
_SHARED = ("step", "epoch", "total_steps", "total_epochs")
#: How long the reader may take to read the rest; processes that the script left behind may keep its output open.
DRAIN_SECONDS = 5.0

Log = Callable[[str, int | None, int | None, int | None, Mapping[str, float]], None]


@contextmanager
def read_output(patterns: Sequence[str], log: Log, events: Emitter) -> Iterator[None]:
    """Search what this process prints during the block, and report the figures; the output still goes to the log."""
    flush()
    kept = os.dup(1), os.dup(2)
    output, its_output = os.pipe()
    answers, its_answers = os.pipe()
    reader = subprocess.Popen(
        [sys.executable, "-P", __file__, str(its_answers), *patterns], stdin=output, stdout=kept[1], stderr=kept[1],
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
        flush()
        for number, descriptor in zip((1, 2), kept, strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)
        with suppress(subprocess.TimeoutExpired):
            reader.wait(DRAIN_SECONDS)
        if reader.returncode is None:
            reader.kill()
            reader.wait()
        thread.join(1.0)


def flush() -> None:
    """Write out what this process has printed."""
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
    from velodrome.job.script import COUNTS

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


# -- the process that reads

#: Characters of a line that are searched.
LONGEST_LINE = 4_096
#: Seconds that one pattern may take on one line, and how often it may take longer before it is given up.
LIMIT, MOST_TIMEOUTS = 0.2, 3
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class _TooSlow(Exception):
    """A pattern takes too long on a line."""


def _interrupt(number: int, frame: Any) -> None:
    raise _TooSlow


class Reader:
    """Searches lines; every answer is an object for the training process."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = {text: re.compile(text) for text in patterns}
        self._timeouts = dict.fromkeys(patterns, 0)
        self._not_numbers: set[str] = set()
        signal.signal(signal.SIGALRM, _interrupt)

    def read(self, line: str) -> Iterator[dict[str, Any]]:
        """Yield the figures of a line, if there are any, and a warning where a pattern does not work."""
        line = _COLOURS.sub("", line[:LONGEST_LINE])
        figures: dict[str, float] = {}
        for text in [*self._patterns]:
            for name, value in self._search(text, line).items():
                try:
                    figures[name] = float(value)
                except ValueError:
                    if name not in self._not_numbers:
                        self._not_numbers.add(name)
                        yield {"warning": f"--read {text!r}: {name} is {value[:60]!r}, which is not a number"}
            if self._timeouts.get(text, 0) >= MOST_TIMEOUTS:
                del self._timeouts[text], self._patterns[text]
                yield {"warning": f"--read {text!r} is not used any more: it took longer than {LIMIT:g} s on "
                       f"{MOST_TIMEOUTS} lines; make it simpler"}
        if figures:
            yield {"figures": figures}

    def _search(self, text: str, line: str) -> dict[str, str]:
        try:
            signal.setitimer(signal.ITIMER_REAL, LIMIT)
            try:
                match = self._patterns[text].search(line)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except _TooSlow:
            self._timeouts[text] += 1
            return {}
        return {} if match is None else {name: value for name, value in match.groupdict().items() if value is not None}


def lines_of(data: bytes, rest: bytes) -> tuple[list[bytes], bytes]:
    """Whole lines, which a carriage return ends as well, and the beginning of the next one."""
    *lines, rest = re.split(rb"[\r\n]", rest + data)
    return lines, rest[:LONGEST_LINE * 4]


def main(words: Sequence[str]) -> None:
    answers = int(words[0])
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    reader = Reader(words[1:])
    rest = b""
    while data := os.read(0, 1 << 16):
        _write(1, data)
        lines, rest = lines_of(data, rest)
        for line in lines:
            _answer(reader, answers, line)
    _answer(reader, answers, rest)


def _answer(reader: Reader, answers: int, line: bytes) -> None:
    # Whatever goes wrong, the script must be able to print.
    with suppress(Exception):
        for answer in reader.read(line.decode(errors="replace")):
            _write(answers, json.dumps(answer).encode() + b"\n")


def _write(descriptor: int, data: bytes) -> None:
    with suppress(OSError):  # a full disk is reported elsewhere
        while data:
            data = data[os.write(descriptor, data) :]


if __name__ == "__main__":
    main(sys.argv[1:])
