"""The one language between training processes and everything else: a JSON object a line, behind a fixed prefix."""

from __future__ import annotations

import json
import math
from typing import Any, Literal, get_args

PREFIX = "@velodrome "

Kind = Literal[
    "phase", "progress", "epoch", "resources", "staleness", "shares", "checkpoint", "warning", "error", "result", "lost"
]
KINDS: tuple[str, ...] = get_args(Kind)

Phase = Literal["import", "connect", "data", "build", "train", "evaluate", "save"]
PHASES: tuple[str, ...] = get_args(Phase)

#: Why a process ends early. `request`: what was asked cannot be done (exit code 2). `user`: the user's own code raised.
#: `peer`: another process of the job went away, so this one is not the cause. `port`: try again with another port.
Cause = Literal["request", "user", "peer", "port", "engine"]


def _finite(value: Any) -> Any:
    """NaN and infinity have no place in JSON: they travel as null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def to_line(event: dict[str, Any]) -> str:
    return json.dumps(_finite(event), separators=(",", ":"), default=float)


def parse(line: str) -> dict[str, Any] | None:
    """The event in a line of a process's output, or None for a line of its log."""
    if not line.startswith(PREFIX):
        return None
    try:
        event = json.loads(line[len(PREFIX) :])
    except ValueError:
        return None
    return event if isinstance(event, dict) and event.get("kind") in KINDS else None
