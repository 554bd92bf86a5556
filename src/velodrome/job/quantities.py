"""Durations such as `1h30m` and shares such as `5%`, as a user writes them on the command line or in a race file."""

from __future__ import annotations

import math
import re
from typing import Any

_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m(?:in)?)?(?:(\d+(?:\.\d+)?)s?)?")
_UNITS = (3600.0, 60.0, 1.0)


def seconds_of(value: Any) -> float:
    """A duration in seconds: `20m`, `1h30m`, `90s`, or a number; `ValueError` if it is none or not positive."""
    seconds = math.nan
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    elif isinstance(value, str) and (match := _DURATION.fullmatch(value.strip().lower().replace(" ", ""))):
        parts = [float(part) * unit for part, unit in zip(match.groups(), _UNITS, strict=True) if part]
        seconds = sum(parts) if parts else math.nan
    if not 0 < seconds < math.inf:
        raise ValueError("write a duration of more than zero as 20m, 1h30m or 90s")
    return seconds


def share_of(value: Any) -> float:
    """A share as a fraction: `5%` or 0.05; `ValueError` if it is none between 0 and 100 %."""
    text = str(value).strip()
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = math.nan
    if isinstance(value, bool) or not 0 < share < 1:
        raise ValueError("write a share between 0 and 100 % as 5% or 0.05")
    return share
