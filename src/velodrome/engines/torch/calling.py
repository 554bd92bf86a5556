"""How a user's model is called, on a copy if it must not notice, and how logits are found in what it returns."""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal, TypeAlias

import torch
import torch.nn.functional as functional
from torch import nn
from torch.overrides import TorchFunctionMode

from velodrome.models import own
from velodrome.models.checks import KINDS, Generator, Generators, class_scores, of_model, preserved

#: What a model is called with: a tensor, or several by name.
Inputs: TypeAlias = "torch.Tensor | dict[str, torch.Tensor]"


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
    elif isinstance(outputs, Mapping | tuple | list):
        for each in outputs.values() if isinstance(outputs, Mapping) else outputs:
            yield from tensors_in(each)


@cache
def _by_keyword(kind: Any, names: tuple[str, ...]) -> bool:
    try:
        parameters = inspect.signature(kind.forward).parameters
    except (TypeError, ValueError):
        return False
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return all(name in parameters and parameters[name].kind in named for name in names)


# -- without a trace


def _of_torch(generator: Any) -> Generator:
    """Of a `torch.Generator`."""
    return Generator(
        lambda: generator.get_state().numpy(), lambda state: generator.set_state(torch.from_numpy(state))
    )


def generators_of(model: nn.Module) -> Generators:
    """PyTorch's generators that a model may draw from, and those of any kind that it holds."""
    drawn_from = {"torch": _of_torch(torch.default_generator)}
    for device in sorted({tensor.device.index for tensor in model.parameters() if tensor.is_cuda}):
        drawn_from[f"cuda:{device}"] = _of_torch(torch.cuda.default_generators[device])
    return drawn_from | of_model(model, nn.Module, {**KINDS, torch.Generator: _of_torch})


@contextmanager
def untouched(model: nn.Module) -> Iterator[nn.Module]:
    """A copy of the model to be tried or, if it cannot be copied, the model itself, whose tensors are then restored.

    Random numbers that the trial draws are drawn again later.
    """
    with preserved(generators_of(model)):
        try:
            tried = copy.deepcopy(model)
        except Exception:  # a tensor with a history, a generator, an open file …
            tried = model
        if tried is not model:
            yield tried
            return
        places = [*model.parameters(), *model.buffers()]
        kept = [place.detach().clone() for place in places]
        try:
            yield model
        finally:
            with torch.no_grad():
                for place, value in zip(places, kept, strict=True):
                    place.copy_(value)
            model.train()


def shape_of(inputs: Inputs) -> Any:
    """The shape of one example, by name where a model takes several inputs."""
    if isinstance(inputs, torch.Tensor):
        return tuple(inputs.shape[1:])
    return {name: tuple(tensor.shape[1:]) for name, tensor in inputs.items()}


def size_of(inputs: Inputs) -> int:
    """How many examples a model is called with."""
    return len(inputs) if isinstance(inputs, torch.Tensor) else len(next(iter(inputs.values())))


def initialise(name: str, model: nn.Module, sample: Callable[[], Inputs]) -> bool:
    """Give lazy layers their shape by a call with a sample; whether there are some."""
    if not any(nn.parameter.is_lazy(tensor) for tensor in [*model.parameters(), *model.buffers()]):
        return False
    images = sample()
    with torch.no_grad(), own.fits_data(name, shape_of(images), building=False, batch=size_of(images)):
        model.eval()(images)
    model.train()
    return True


# -- logits


#: What a model returns: logits, or log-probabilities, which are normalised logits; a softmax whose input is recovered;
#: probabilities that were computed in some other way; or sigmoids, which serve as logits.
Outputs = Literal["logits", "softmax", "probabilities", "sigmoid"]

_SOFTMAX = {functional.softmax, torch.softmax, torch.special.softmax, torch.Tensor.softmax}
_LOG_SOFTMAX = {functional.log_softmax, torch.log_softmax, torch.special.log_softmax, torch.Tensor.log_softmax}
_EXPONENTIAL = {torch.exp, torch.Tensor.exp}
_SIGMOID = {functional.sigmoid, torch.sigmoid, torch.special.expit, torch.Tensor.sigmoid}
#: What may follow the softmax: other shapes, places and number formats of the same values.
_SAME_VALUES = {
    torch.flatten, torch.squeeze, torch.reshape, torch.unsqueeze, torch.permute, torch.transpose, torch.movedim,
    torch.select, torch.clone,
    torch.Tensor.flatten, torch.Tensor.squeeze, torch.Tensor.reshape, torch.Tensor.unsqueeze, torch.Tensor.permute,
    torch.Tensor.transpose, torch.Tensor.movedim, torch.Tensor.select, torch.Tensor.clone, torch.Tensor.__getitem__,
    torch.Tensor.view, torch.Tensor.contiguous, torch.Tensor.to, torch.Tensor.type, torch.Tensor.float,
    torch.Tensor.double,
}


class WatchedCalls(TorchFunctionMode, ABC):
    """Around a forward pass: sees every function of PyTorch that is called."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        self._see(function, args, kwargs or {}, result)
        return result

    @abstractmethod
    def _see(self, function: Any, args: Sequence[Any], named: Mapping[str, Any], result: Any) -> None:
        """Called after each call with its arguments and what it returned."""


class SoftmaxInput(WatchedCalls):
    """Around a forward pass: keeps what went into its last softmax, or its last sigmoid if that came later."""

    def __init__(self) -> None:
        super().__init__()
        self._outputs: torch.Tensor | None = None
        self._inputs: torch.Tensor | None = None
        self._sigmoid = False
        self._log_probabilities: torch.Tensor | None = None

    def _see(self, function: Any, args: Sequence[Any], named: Mapping[str, Any], result: Any) -> None:
        if function in _SOFTMAX or function in _SIGMOID:
            self._outputs, self._inputs = result, args[0] if args else named["input"]
            self._sigmoid = function in _SIGMOID
        elif function in _LOG_SOFTMAX:
            self._log_probabilities = result
        elif function in _EXPONENTIAL and args and args[0] is self._log_probabilities:
            self._outputs, self._inputs, self._sigmoid = result, self._log_probabilities, False
        elif function in _SAME_VALUES and args and args[0] is self._outputs:
            self._outputs, self._inputs = result, function(self._inputs, *args[1:], **named)

    def logits(self, outputs: torch.Tensor) -> torch.Tensor | None:
        """What a softmax made these outputs of; None if none did."""
        logits = None if self._sigmoid or outputs is not self._outputs else self._inputs
        return None if logits is None else logits.to(outputs.dtype)

    def sigmoid_input(self, outputs: torch.Tensor) -> torch.Tensor | None:
        """What a sigmoid made these outputs of; None if none did."""
        return self._inputs.to(outputs.dtype) if self._inputs is not None and self.is_sigmoid(outputs) else None

    def is_sigmoid(self, outputs: torch.Tensor) -> bool:
        """Whether these outputs came out of a sigmoid."""
        return self._sigmoid and outputs is self._outputs


def logarithm(probabilities: torch.Tensor) -> torch.Tensor:
    """Log-probabilities; the smallest number of the format stands for zero."""
    return probabilities.clamp(min=torch.finfo(probabilities.dtype).tiny).log()


class LogitsModel(nn.Module):
    """A user's model as the loss needs it: logits come out, in training and in evaluation.

    `evaluation_batch` is for a model that takes batches of one size only: evaluation then calls it with no other.
    `several` is for one that has several inputs, or returns its scores among other outputs.
    """

    def __init__(
        self, model: nn.Module, *, training: Outputs, evaluation: Outputs, evaluation_batch: int | None, several: bool
    ) -> None:
        super().__init__()
        self.model, self._several = model, several
        self._in_training, self._in_evaluation, self._evaluation_batch = training, evaluation, evaluation_batch

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.model.training:
            return self._logits(images, self._in_training)
        if self._evaluation_batch is None:
            return self._logits(images, self._in_evaluation)
        missing = -len(images) % self._evaluation_batch
        padded = torch.cat([images, images[:1].expand(missing, *images.shape[1:])])
        parts = [self._logits(part, self._in_evaluation) for part in padded.split(self._evaluation_batch)]
        return torch.cat(parts)[: len(images)]

    def _logits(self, images: torch.Tensor, kind: Outputs) -> torch.Tensor:
        if kind in ("logits", "sigmoid"):
            return self._scores(images)
        if kind == "probabilities":
            return logarithm(self._scores(images))
        with SoftmaxInput() as seen:
            outputs = self._scores(images)
        logits = seen.logits(outputs)
        return logarithm(outputs) if logits is None else logits

    def _scores(self, images: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = scores(self.model, images) if self._several else self.model(images)
        return outputs
