"""The weights that all processes begin with, and the statistics that they average."""

from __future__ import annotations

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from velodrome.errors import BadRequest
from velodrome.models.initial_weights import Matching, check_readable
from velodrome.transport.base import Transport


@torch.no_grad()
def load_initial_weights(model: nn.Module, file: str) -> tuple[str, ...]:
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


@torch.no_grad()
def broadcast_weights(model: nn.Module, transport: Transport) -> None:
    """Give every process the tensors of rank 0."""
    if transport.size == 1:
        return
    for value in model.state_dict().values():
        if isinstance(value, torch.Tensor) and value.numel():
            array = value.detach().cpu().contiguous().numpy()  # the memory of the value itself, if that is possible
            transport.broadcast(array.reshape(-1).view(np.uint8))
            value.copy_(torch.from_numpy(array))


@torch.no_grad()
def average_buffers(model: nn.Module, among: Transport) -> None:
    """Replace the buffers of a model, which are its statistics, by their mean over processes."""
    buffers = [buffer for buffer in model.buffers() if buffer.is_floating_point() and buffer.numel()]
    if among.size == 1 or not buffers:
        return
    flat = np.concatenate([buffer.detach().double().cpu().numpy().ravel() for buffer in buffers])
    among.all_reduce(flat)
    flat /= among.size
    offset = 0
    for buffer in buffers:
        mean = torch.from_numpy(flat[offset : offset + buffer.numel()])
        buffer.copy_(mean.view(buffer.shape))
        offset += buffer.numel()
