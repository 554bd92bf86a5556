"""Shows the progress of an installation or a removal: one line that changes on a terminal, a line a step elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from velodrome.cli.safe_console import SafeConsole


@contextmanager
def progress_of(name: str, *, quiet: bool) -> Iterator[Callable[[str], None]]:
    """What is called with each phrase of progress; `quiet` shows none."""
    console = SafeConsole(stderr=True, markup=False)
    if quiet or not console.is_terminal:
        yield lambda phrase: None if quiet else console.print(f"{name}: {phrase}", soft_wrap=True)
        return
    with console.status(f"{name}: preparing") as status:
        yield lambda phrase: status.update(f"{name}: {phrase}")
