"""Counts as what people read: accuracy, or the perplexity of a language model. Imports no framework."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def value_of(counts: Mapping[str, Any], *, text: bool) -> float | None:
    """Accuracy or perplexity; None if nothing was counted or it is not finite."""
    if not counts["total"]:
        return None
    if not text:
        return float(counts["correct"] / counts["total"])
    loss = counts["loss_sum"]
    if loss is None or not math.isfinite(loss):
        return None
    return math.exp(min(loss / counts["total"], 700.0))


def in_words(counts: Mapping[str, Any], *, text: bool) -> str:
    """`accuracy 0.9731` or `perplexity 117.20`; nothing if nothing was counted."""
    if not counts["total"]:
        return ""
    value = value_of(counts, text=text)
    if value is None:
        return "perplexity not finite"
    return f"perplexity {value:,.2f}" if text else f"accuracy {value:.4f}"
