"""Weights that a job starts from (`--weights`): read from safetensors, matched by name and shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mxnet as mx
from safetensors import SafetensorError, safe_open

from velodrome.errors import BadRequest
from velodrome.models.given_weights import Matching, check_readable


def load_given(parameters: Mapping[str, Any], file: str) -> tuple[str, ...]:
    """Copy what matches by name and shape into the parameters; what did not match, as sentences."""
    check_readable(file)
    try:
        with safe_open(file, framework="np") as stored:
            shapes = {name: tuple(stored.get_slice(name).get_shape()) for name in stored.keys()}  # noqa: SIM118
            matching = Matching.of(file, {name: tuple(one.shape) for name, one in parameters.items()}, shapes)
            for name in matching.loaded:
                parameters[name].set_data(mx.nd.array(stored.get_tensor(name), dtype=parameters[name].dtype))
    except SafetensorError as error:
        raise BadRequest(f"--weights {file!r} is no file of safetensors: {error}") from error
    return matching.notes()
