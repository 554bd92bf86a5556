"""Scores as answers: classes with probabilities, numbers with names."""

from __future__ import annotations

from typing import Any

import numpy as np

from velodrome.data.tables.encoding import Scaled
from velodrome.models.served import Served
from velodrome.serving.model import Array

Answer = list[dict[str, Any]]
#: Classes that are listed, unless more are asked for.
TOP = 10
_FEW = 64
_CLASSES = frozenset({"classification", "language-model", "binary", "multi-label"})


def answers_of(about: Served, scores: Array, top: int = TOP) -> list[Answer]:
    """For each example, what the model says: classes with probabilities, the most probable first, or numbers."""
    return [answer_of(about, row, top) for row in numbers_of(about, scores).tolist()]


def numbers_of(about: Served, scores: Array) -> Array:
    """What scores mean, a row for each example: a probability for each class, or numbers in the units of the data."""
    if about.task in ("classification", "language-model"):
        return probabilities_of(about, scores)
    flat = scores.reshape(len(scores), -1)
    if about.task == "binary":
        found = _sigmoid(about, flat)[:, :1]
        return np.concatenate([1 - found, found], 1)
    if about.task == "multi-label":
        return _sigmoid(about, flat)
    return _in_units(about, flat)


def answer_of(about: Served, row: list[float], top: int = TOP) -> Answer:
    """One row of `numbers_of` in words."""
    if about.task not in _CLASSES:
        labels = about.classes if len(about.classes) == len(row) else [f"output {n + 1}" for n in range(len(row))]
        return [{"name": name, "value": value} for name, value in zip(labels, row, strict=True)]
    names = about.vocabulary or about.classes
    return [{"class": names[place] if place < len(names) else str(place), "probability": round(row[place], 6)}
            for place in _largest(row, top)]


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


def _largest(row: list[float], top: int) -> list[int]:
    """The places of the largest numbers, in order."""
    width = len(row)
    if width <= _FEW or width <= top:  # Python sorts a few numbers in a fraction of the time that NumPy takes to begin
        return sorted(range(width), key=row.__getitem__, reverse=True)[:top]
    numbers = np.asarray(row)
    best = np.sort(np.argpartition(-numbers, top)[:top])  # equal ones in the order of the classes
    found: list[int] = best[np.argsort(-numbers[best], kind="stable")].tolist()
    return found


def _in_units(about: Served, scores: Array) -> Array:
    """Predicted numbers in the units of the data: a target that was standardised is brought back."""
    scaled = [column for column in about.encoding.targets if isinstance(column, Scaled)] if about.encoding else []
    numbers: Array = scores.astype(np.float64)
    if len(scaled) == numbers.shape[1]:
        numbers = numbers * [one.deviation for one in scaled] + [one.mean for one in scaled]
    return numbers
