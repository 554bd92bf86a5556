"""The state of a model that processes have in common: initial weights, statistics, random number generators."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from velodrome.errors import BadRequest
from velodrome.models.generators import KINDS, Generator, Generators, of_model
from velodrome.models.initial_weights import Matching, check_readable
from velodrome.transport.base import Transport
from velodrome.worker import checkpoint
from velodrome.worker.context import Context


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


def start_from_weights(context: Context, model: nn.Module, rank: int) -> None:
    """Load the weights that the job starts from; the other processes get them from rank 0."""
    file = context.job.weights
    if file is None or rank or (context.resume and checkpoint.latest(context.folder)):
        return
    for note in load_initial_weights(model, file):
        context.events.emit("warning", message=note)


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


def _of_torch(one: Any) -> Generator:
    """Of a `torch.Generator`."""
    return Generator(lambda: one.get_state().numpy(), lambda state: one.set_state(torch.from_numpy(state)))


def generators_of(model: nn.Module) -> Generators:
    """PyTorch's generators that a model may draw from, and those of any kind that it holds."""
    found = {"torch": _of_torch(torch.default_generator)}
    for device in sorted({tensor.device.index for tensor in model.parameters() if tensor.is_cuda}):
        found[f"cuda:{device}"] = _of_torch(torch.cuda.default_generators[device])
    return found | of_model(model, nn.Module, {**KINDS, torch.Generator: _of_torch})
