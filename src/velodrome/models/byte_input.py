"""A model that computes with its input as if pixels were bytes, such as `x / 255`: found by the first thing it does."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

#: What is done to the input, with a number or an array.
Operation = Literal["divide", "multiply", "subtract"]
#: Factors below this are for bytes: 1/255, 1/127.5 and 1/128 are usual.
FOR_BYTES = 1 / 16


def is_for_bytes(operation: Operation, number: Any) -> bool:
    """Whether this makes sense for numbers up to 255, and none for numbers up to 1."""
    try:
        size = float(np.abs(np.asarray(number, np.float64)).max())
    except (TypeError, ValueError):
        return False
    if operation == "subtract":
        return 1 < size <= 255  # the mean of bytes
    return size > 1 / FOR_BYTES if operation == "divide" else 0 < size < FOR_BYTES


def byte_input_note(name: str, form: str) -> str:
    """The sentence about a model that expects bytes and is fed something else."""
    return (
        f"model {name!r} begins by scaling its input as if pixels were from 0 to 255, and --pixels {form} feeds "
        "others: choose --pixels byte, or leave the scaling out of the model"
    )
