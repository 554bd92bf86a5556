"""Cleaning up when something ends early: a second Ctrl-C must not interrupt what the first one started."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: How long a program may take to finish what it has begun after it was asked to end.
PATIENCE_SECONDS = 5.0


class Patience:
    """Whether to give up what a program still has to finish: seconds after a first signal, at once after a second."""

    def __init__(self, signals: Sequence[int], *, interrupted: bool, seconds: float = PATIENCE_SECONDS) -> None:
        """`signals` are those that came since, as `deferred` notes them; `interrupted` if one came before."""
        self._signals, self._before, self._seconds = signals, int(interrupted), seconds
        self._since: float | None = None

    def is_over(self) -> bool:
        count = self._before + len(self._signals)
        if count and self._since is None:
            self._since = time.monotonic()
        return count > 1 or (self._since is not None and time.monotonic() - self._since > self._seconds)


@contextmanager
def deferred() -> Iterator[Sequence[int]]:
    """Defer the signals that end a program until the block is done, then deliver the first; those that have come."""
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield came
        return

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)

    before = {number: signal.signal(number, note) for number in _SIGNALS}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


@contextmanager
def rollback(undo: Callable[[], object]) -> Iterator[None]:
    """Call `undo`, with signals deferred, if the block does not end normally."""
    try:
        yield
    except BaseException:
        with deferred():
            undo()
        raise
