"""The logs of a run's processes: the lines that contain a text, the newest ones first to be found."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

from velodrome import files
from velodrome.printable import printable

MOST_LINES = 400
_LONGEST = 4000
#: Bytes of a log that are searched, from its end.
_MOST_BYTES = 16 << 20


def names_of(folder: Path) -> list[str]:
    """The logs that a run has, by the name of their process. Links are not followed."""
    with suppress(OSError):
        return sorted(
            path.stem for path in (folder / "logs").glob("*.log")
            if path.is_file() and not files.is_linked(path, folder)
        )
    return []


def search(folder: Path, text: str = "", process: str = "") -> dict[str, Any]:
    """The last lines that contain a text, of one process or of all, and how many there are."""
    found: deque[dict[str, Any]] = deque(maxlen=MOST_LINES)
    total, wanted = 0, text.lower()
    for name in names_of(folder):
        if process and name != process:
            continue
        for number, line in _lines(folder, folder / "logs" / f"{name}.log"):
            if not wanted or wanted in line.lower():
                total += 1
                found.append({"process": name, "number": number, "text": printable(line, _LONGEST)})
    return {"lines": list(found), "total": total}


def _lines(folder: Path, path: Path) -> list[tuple[int | None, str]]:
    try:
        with files.open_regular(path, inside=folder) as stream:
            size = path.stat().st_size
            stream.seek(max(0, size - _MOST_BYTES))
            text = stream.read(_MOST_BYTES).decode("utf-8", "replace")
    except OSError as error:
        return [(None, f"this log cannot be read: {error.strerror}")]
    lines = text.splitlines()
    if size > _MOST_BYTES:
        return [(None, line) for line in lines[1:]]
    return list(enumerate(lines, 1))
