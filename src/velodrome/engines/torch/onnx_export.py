"""A saved PyTorch model as ONNX. The graph takes what the data set stores: bytes of images, numbers, words."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from velodrome.engines.torch.calling import scores
from velodrome.engines.torch.model_file import restored
from velodrome.models.description import Exported, ServedState
from velodrome.tasks.base import Batch
from velodrome.training.actions import Named, in_parts

NEEDS = ("onnx", "onnxscript")
_OPSET = 18


class _Fed(nn.Module):
    """A model behind what turns stored arrays into its inputs: images (count, height, width, channels) of bytes."""

    def __init__(self, model: nn.Module, about: Mapping[str, Any], names: list[str]) -> None:
        super().__init__()
        self.model, self._names = model, names
        self._images = set(about["images"]) if about.get("kind") == "arrays" else set(names)
        self._dtype = next((parameter.dtype for parameter in model.parameters()), torch.float32)
        for name in ("scale", "offset"):
            values = torch.tensor(about.get(name, 1.0 if name == "scale" else 0.0), dtype=self._dtype)
            self.register_buffer(f"_{name}", values, persistent=False)
        self._shifted = bool(self.get_buffer("_offset").any())

    def forward(self, *arrays: torch.Tensor) -> torch.Tensor:
        fed = {name: self._ready(name, array) for name, array in zip(self._names, arrays, strict=True)}
        returned: torch.Tensor = scores(self.model, Batch(fed, {}).x)
        return returned

    def _ready(self, name: str, array: torch.Tensor) -> torch.Tensor:
        if name not in self._images:
            return array if array.dtype == torch.int64 else array.to(self._dtype)
        numbers = array.to(self._dtype)
        if array.dtype == torch.uint8:
            numbers = numbers * self.get_buffer("_scale")
            if self._shifted:
                numbers = numbers + self.get_buffer("_offset")
        return numbers.permute(0, 3, 1, 2)


class _WithState(nn.Module):
    """A language model whose state is plain tensors."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, words: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        logits, (h, c) = self.model(words, (h, c))
        return logits, h, c


def export(saved: Path, about: Mapping[str, Any], file: Path, inputs: Named) -> Exported:
    """Write the model of a folder; its own outputs for these examples."""
    expected = outputs(saved, about, inputs)
    model = restored(saved, about).float()
    if about.get("kind") == "text":
        return Exported(expected, _write_text(model, about, file, inputs["words"]))
    names, arrays = list(inputs), [_tensor(array) for array in inputs.values()]
    only = about.get("only_batch")
    fed = _Fed(model, about, names).eval()
    if only is None:
        try:
            _write(fed, [array[:2] for array in arrays], file, names, [{0: torch.export.Dim.DYNAMIC}] * len(arrays))
            return Exported(expected)
        except Exception:  # a model that looks at the size of its batch is exported for single examples
            _write(fed, [array[:1] for array in arrays], file, names, None)
            return Exported(expected, only_batch=1)
    _write(fed, [_repeated(array, only) for array in arrays], file, names, None)
    return Exported(expected, only_batch=only)


def outputs(saved: Path, about: Mapping[str, Any], inputs: Named) -> np.ndarray:
    """What the model of a folder returns for these examples, in the precision that it was saved in."""
    torch.manual_seed(0)
    model: Any = restored(saved, about)
    with torch.no_grad():
        if about.get("kind") == "text":
            rows = torch.from_numpy(inputs["words"])
            scores = model(rows) if "context" in about else model(rows, model.initial_state(len(rows)))[0]
            return scores[:, -1].float().numpy()  # type: ignore[no-any-return]
        fed = _Fed(model, about, list(inputs)).eval()
        return in_parts(
            lambda part: fed(*map(_tensor, part)).float().numpy(), list(inputs.values()), about.get("only_batch")
        )


def _write_text(model: Any, about: Mapping[str, Any], file: Path, words: np.ndarray) -> tuple[ServedState, ...]:
    """Write a language model; what it carries from word to word."""
    rows, dynamic = torch.from_numpy(words), torch.export.Dim.DYNAMIC
    with torch.no_grad():
        if "context" in about:
            _write(model, [rows[:2, :5]], file, ["words"], [{0: dynamic, 1: dynamic}])
            return ()
        state = model.initial_state(2)
        # One word at a time: a loop over words of any number would be unrolled for the number of this example.
        _write(_WithState(model).eval(), [rows[:2, :1], *state], file, ["words", "h", "c"],
               [{0: dynamic}, {1: dynamic}, {1: dynamic}])
    layers, _, units = state[0].shape
    return tuple(ServedState(name=name, shape=(layers, -1, units)) for name in ("h", "c"))


def _write(
    module: nn.Module, arrays: list[torch.Tensor], file: Path, names: list[str], dynamic: list[Any] | None
) -> None:
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    shapes = None if dynamic is None else (tuple(dynamic),) if isinstance(module, _Fed) else tuple(dynamic)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module, tuple(arrays), dynamo=True, dynamic_shapes=shapes, input_names=names, opset_version=_OPSET,
            verbose=False,
        )
    program.save(str(file))


def _repeated(array: torch.Tensor, size: int) -> torch.Tensor:
    """So many examples: repeats examples if there are too few."""
    return array[torch.arange(size) % len(array)]


def _tensor(array: np.ndarray) -> torch.Tensor:
    whole = array.dtype.kind in "iu" and array.dtype != np.uint8
    return torch.from_numpy(np.ascontiguousarray(array.astype(np.int64) if whole else array))
