"""Text from outside (names of files, classes and runs, words of a text, messages of other programs) made fit to print.

A terminal acts on control characters and a page on invisible ones, so they are escaped; nothing prints megabytes.
"""

from __future__ import annotations

#: Characters of a name or a reason within a sentence.
LONGEST = 120
#: Characters of a line. No path of the operating system is longer, so none is ever cut.
LONGEST_LINE = 5_000


def shown(text: object, longest: int = LONGEST) -> str:
    """A name or a reason as part of a line: line breaks are escaped, too."""
    return _escaped(_shortened(str(text), longest), "")


def printable(text: object, longest: int | None = LONGEST_LINE) -> str:
    """Text of several lines, with its tabs; a line that is longer than that is shortened."""
    whole = str(text)
    if longest is not None and len(whole) > longest:
        whole = "\n".join(_shortened(line, longest) for line in whole.split("\n"))
    return _escaped(whole, "\n\t")


def bytes_text(count: float) -> str:
    """A number of bytes in the unit that suits it: `812 bytes`, `3.4 MiB`."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count:.0f} bytes"


def _shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}…"


def _escaped(text: str, kept: str) -> str:
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in kept else repr(one)[1:-1] for one in text)
