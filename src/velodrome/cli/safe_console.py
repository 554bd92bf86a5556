"""The console for tables, colours and progress: as in `cli/output.py`, text from outside cannot act on the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from velodrome.printable import printable


class SafeConsole(Console):
    """A console of rich that escapes what it is given; the sequences that it adds itself for colours remain."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**{"highlight": False, "emoji": False, **more})

    def render_str(self, text: str, **more: Any) -> Text:  # type: ignore[override]
        # Before it is measured, so that columns stay aligned.
        return super().render_str(printable(text), **more)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            clean = segment.control or segment.text.isprintable()
            yield segment if clean else Segment(printable(segment.text, None), segment.style)
