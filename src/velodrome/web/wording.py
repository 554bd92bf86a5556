"""How pages write numbers, durations and moments."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from velodrome.errors import bytes_text
from velodrome.reporting.write import code

ABSENT = "–"


def duration(seconds: float | None) -> str:
    """`0.8 s`, `12 s`, `3 min 5 s`, `2 h 10 min`."""
    if seconds is None or not math.isfinite(seconds):
        return ABSENT
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def number(value: float | None, digits: int = 3) -> str:
    """Three significant digits, with separators for thousands."""
    if value is None or not isinstance(value, int | float) or not math.isfinite(value):
        return ABSENT
    if value == 0 or abs(value) >= 100 or (isinstance(value, int) and abs(value) >= 10):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def share(value: float | None) -> str:
    return ABSENT if value is None or not math.isfinite(value) else f"{100 * value:.1f} %"


def quality(value: float | None, metric: str | None = "accuracy") -> str:
    """The metric that decides: accuracies in per cent, others as they are."""
    if value is None or not math.isfinite(value):
        return ABSENT
    return f"{100 * value:.2f} %" if metric == "accuracy" else f"{value:.4g}"


def moment(seconds: float | None) -> str:
    """A moment in local time; the page has the exact one beside it."""
    if not seconds or not math.isfinite(seconds):
        return ABSENT
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
    except (OverflowError, OSError, ValueError):
        return ABSENT


def size(count: float | None) -> str:
    return ABSENT if count is None or not math.isfinite(count) else bytes_text(count)


def path(name: str) -> str:
    """A name as part of an address, its slashes kept."""
    return quote(os.fsencode(name), safe="/")


FILTERS: dict[str, Callable[..., Any]] = {
    "code": code, "duration": duration, "number": number, "share": share, "quality": quality, "moment": moment,
    "size": size, "path": path,
}
