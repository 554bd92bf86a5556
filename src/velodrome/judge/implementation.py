"""The implementation that a result reports, in words: which form trained, whose parts, over which path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def implementation_kind(result: Mapping[str, Any]) -> str:
    """`velodrome` or `stock`; results of versions that had only one implementation name none."""
    reported = result.get("implementation")
    return str(reported.get("kind", "velodrome")) if isinstance(reported, Mapping) else "velodrome"


def implementation_lines(result: Mapping[str, Any]) -> list[str]:
    """The form with its path, then the parts of each side: `velodrome over shared-memory`, `Velodrome: …`,
    `framework: …`; empty if the result reports none."""
    reported = result.get("implementation")
    if not isinstance(reported, Mapping):
        return []
    path = f" over {reported['path']}" if reported.get("path") else ""
    sides = (("own", "Velodrome"), ("framework", "framework"))
    parts = [f"{whose}: {', '.join(map(str, reported[key]))}" for key, whose in sides if reported.get(key)]
    return [implementation_kind(result) + path, *parts]
