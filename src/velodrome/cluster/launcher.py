"""What a launcher offers the supervisor, whatever it starts processes on."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Protocol

from velodrome.cluster.plan import Plan, Process


class Started(Protocol):
    """A process that was started: its output, its end, and the way to end it."""

    @property
    def process(self) -> Process: ...

    @property
    def pid(self) -> int: ...

    @property
    def output(self) -> IO[bytes]: ...

    def exit_code(self) -> int | None:
        """None while it runs; negative for the signal that ended it."""

    def end(self) -> None:
        """End it and everything it started in its session, at once."""

    def wait(self, seconds: float) -> bool:
        """Whether it ended within that time."""


class Launch(Protocol):
    """Starts one process of a plan, with the run's token in its environment."""

    def __call__(self, plan: Plan, process: Process, folder: Path, token: str, *, resume: bool = False) -> Started: ...
