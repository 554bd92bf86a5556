"""Weights that a job starts from (`--weights`): read from safetensors, matched by name and shape."""

from __future__ import annotations

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from velodrome.errors import BadRequest
from velodrome.models.given_weights import Matching, check_readable


@torch.no_grad()
def load(model: nn.Module, file: str) -> tuple[str, ...]:
    """Copy what matches by name and shape into the model; what did not match, as sentences."""
    check_readable(file)
    places = {name: value for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}
    try:
        with safe_open(file, framework="pt") as stored:
            # Shapes alone: only what fits is read.
            shapes = {name: tuple(stored.get_slice(name).get_shape()) for name in stored.keys()}  # noqa: SIM118
            matching = Matching.of(file, {name: tuple(place.shape) for name, place in places.items()}, shapes)
            for name in matching.loaded:
                places[name].copy_(stored.get_tensor(name))
    except SafetensorError as error:
        raise BadRequest(f"--weights {file!r} is no file of safetensors: {error}") from error
    return matching.notes()
