"""Weights that a job starts from (`--weights`), matched by name and shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mxnet as mx

from velodrome.models.initial_weights import read_matching


def load_given(parameters: Mapping[str, Any], file: str) -> tuple[str, ...]:
    """Copy what matches by name and shape into the parameters; what did not match, as sentences."""
    found, notes = read_matching(file, {name: tuple(one.shape) for name, one in parameters.items()})
    for name, value in found.items():
        parameters[name].set_data(mx.nd.array(value, dtype=parameters[name].dtype))
    return notes
