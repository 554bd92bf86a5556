"""What a model returned: one tensor with a number per example and class, or a refusal that names what it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.errors import BadRequest


def _describe(outputs: object) -> str:
    """A returned object in words: its type and, where it has several entries, which."""
    name = type(outputs).__name__
    if isinstance(outputs, Mapping):
        keys = ", ".join(map(repr, outputs))
        return f"a {name} with the keys {keys}" if keys else f"an empty {name}"
    if isinstance(outputs, tuple | list):
        kind = "tuple" if isinstance(outputs, tuple) else "list"
        return f"a {kind} of {len(outputs)}" + (f" ({name})" if name != kind else "")
    return f"{name!r}"


def check_outputs(
    model: str, outputs: Any, tensor: type, examples: int, classes: int, *, training: bool = False
) -> None:
    """Refuse a model that does not return one number per example and class, in one tensor of this type."""
    when = " in training" if training else ""
    if not isinstance(outputs, tensor):
        way_out = "turn its auxiliary outputs off, or return the logits only" if training else "return the logits only"
        raise BadRequest(
            f"model {model!r} returns {_describe(outputs)}{when}, and one tensor of logits is needed: {way_out}"
        )
    shape, needed = tuple(outputs.shape), (examples, classes)  # type: ignore[attr-defined]
    if shape != needed:
        raise BadRequest(
            f"model {model!r} answers with shape {shape} for {examples} examples{when}; {classes} classes need {needed}"
        )


def are_probabilities(outputs: NDArray[np.floating[Any]]) -> bool:
    """Whether outputs went through a softmax already: not negative, and every row adds up to one."""
    return bool(np.all(outputs >= 0) and np.allclose(outputs.sum(axis=1), 1.0, atol=1e-3))
