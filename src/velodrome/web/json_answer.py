"""Answers as JSON that every browser reads, whatever the files hold that they are made of."""

from __future__ import annotations

import json
import math
from typing import Any

from starlette.responses import Response


def encoded(content: Any) -> str:
    """Strict JSON in ASCII: what is not finite is null, and half a surrogate in a name is escaped."""
    try:
        return json.dumps(content, allow_nan=False, separators=(",", ":"))
    except ValueError:  # looking at every number first would cost every answer
        return json.dumps(_finite(content), allow_nan=False, separators=(",", ":"))


def _finite(content: Any) -> Any:
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if isinstance(content, dict):
        return {name: _finite(value) for name, value in content.items()}
    return [_finite(one) for one in content] if isinstance(content, list | tuple) else content


class JsonAnswer(Response):
    """Plain data as an answer."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return encoded(content).encode("ascii")
