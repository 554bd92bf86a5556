"""Scores as answers: classes with probabilities, numbers with names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from velodrome.data.tables.encoding import Encoding, Scaled
from velodrome.models.served import Served
from velodrome.serving.model import Array

Answer = list[dict[str, Any]]
#: Classes that are listed, unless more are asked for.
TOP = 10
_FEW = 64


def answers_of(about: Served, scores: Array, top: int = TOP) -> list[Answer]:
    """For each example, what the model says: classes with probabilities, the most probable first, or numbers."""
    if about.task in ("classification", "language-model"):
        return _classes(about, probabilities_of(about, scores), top)
    if about.task == "binary":
        found = _sigmoid(about, scores).reshape(len(scores), -1)[:, 0]
        return _classes(about, np.stack([1 - found, found], 1), top)
    if about.task == "multi-label":
        return _classes(about, _sigmoid(about, scores).reshape(len(scores), -1), top)
    return _numbers(about, scores.reshape(len(scores), -1))


def probabilities_of(about: Served, scores: Array) -> Array:
    """Probabilities of a classifier, one row for each example."""
    numbers = scores.astype(np.float64)
    if about.outputs in ("softmax", "probabilities"):
        return numbers
    if about.outputs == "sigmoid":
        shares: Array = numbers / np.maximum(numbers.sum(1, keepdims=True), 1e-12)
        return shares
    raised = np.exp(numbers - numbers.max(1, keepdims=True))
    found: Array = raised / raised.sum(1, keepdims=True)
    return found


def _sigmoid(about: Served, scores: Array) -> Array:
    numbers = scores.astype(np.float64)
    if about.outputs in ("sigmoid", "probabilities", "softmax"):
        return numbers
    found: Array = 0.5 * (1 + np.tanh(0.5 * numbers))
    return found


def _classes(about: Served, probabilities: Array, top: int) -> list[Answer]:
    names = about.vocabulary or about.classes
    width = probabilities.shape[1]
    if width <= _FEW:
        # Python sorts a few numbers in a fraction of the time that NumPy takes to begin.
        rows = probabilities.tolist()
        places_of = [sorted(range(width), key=row.__getitem__, reverse=True)[:top] for row in rows]
        return [_listed(names, places, [row[place] for place in places])
                for places, row in zip(places_of, rows, strict=True)]
    if width <= top:
        order = np.argsort(-probabilities, axis=1, kind="stable")
    else:
        best = np.argpartition(-probabilities, top, axis=1)[:, :top]
        by_size = np.argsort(-np.take_along_axis(probabilities, best, 1), axis=1, kind="stable")
        order = np.take_along_axis(best, by_size, 1)
    chosen = np.take_along_axis(probabilities, order, 1)
    return [_listed(names, places, values) for places, values in zip(order.tolist(), chosen.tolist(), strict=True)]


def _listed(names: Sequence[str], places: Sequence[int], values: Sequence[float]) -> Answer:
    return [{"class": names[place] if place < len(names) else str(place), "probability": round(value, 6)}
            for place, value in zip(places, values, strict=True)]


def _numbers(about: Served, scores: Array) -> list[Answer]:
    """Predicted numbers in the units of the data: a target that was standardised is brought back."""
    names, width = about.classes, scores.shape[1]
    scaled = [column for column in Encoding.from_json(about.columns).targets if isinstance(column, Scaled)] \
        if about.columns else []
    numbers = scores.astype(np.float64)
    if len(scaled) == width:
        numbers = numbers * [one.deviation for one in scaled] + [one.mean for one in scaled]
    labels = names if len(names) == width else [f"output {place + 1}" for place in range(width)]
    return [[{"name": name, "value": value} for name, value in zip(labels, row, strict=True)]
            for row in numbers.tolist()]
