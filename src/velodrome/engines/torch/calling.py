"""How a user's model is called: with a tensor, a dictionary, or keywords if its `forward` names its inputs."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import nn

from velodrome.models.outputs import class_scores


def call(model: nn.Module, inputs: Any) -> Any:
    """What a model returns. Several inputs go by keyword to a `forward` that has parameters of these names, as those of
    Hugging Face's models have, and as one dictionary to any other."""
    if isinstance(inputs, dict) and _by_keyword(type(model), tuple(inputs)):  # type: ignore[arg-type]
        return model(**inputs)
    return model(inputs)


def scores(model: nn.Module, inputs: Any) -> Any:
    """The tensor that counts among what a model returns."""
    return class_scores(call(model, inputs), torch.Tensor)


def tensors_in(outputs: object) -> Iterator[torch.Tensor]:
    """The tensors among what a module returned."""
    if isinstance(outputs, torch.Tensor):
        yield outputs
    elif isinstance(outputs, dict):
        for each in outputs.values():
            yield from tensors_in(each)
    elif isinstance(outputs, tuple | list):
        for each in outputs:
            yield from tensors_in(each)


@cache
def _by_keyword(kind: Any, names: tuple[str, ...]) -> bool:
    try:
        parameters = inspect.signature(kind.forward).parameters
    except (TypeError, ValueError):
        return False
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return all(name in parameters and parameters[name].kind in named for name in names)
