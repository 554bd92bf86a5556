"""Copies what a script prints to its log and finds figures in it by regular expressions: a program of its own.

`python reading.py DESCRIPTOR PATTERN…` copies standard input to standard output, and writes a line of JSON to the
descriptor for each line with a match. An expression that takes for ever on some line is interrupted, which only the
main thread of a process can be; in the training process it would hold up training. Standard library only.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

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

    def __init__(self, patterns: Sequence[str], limit: float = LIMIT) -> None:
        self._patterns = {text: re.compile(text) for text in patterns}
        self._timeouts = dict.fromkeys(patterns, 0)
        self._limit = limit
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
                yield {"warning": f"--read {text!r} is not used any more: it took longer than {self._limit:g} s on "
                       f"{MOST_TIMEOUTS} lines; make it simpler"}
        if figures:
            yield {"figures": figures}

    def _search(self, text: str, line: str) -> dict[str, str]:
        try:
            signal.setitimer(signal.ITIMER_REAL, self._limit)
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
