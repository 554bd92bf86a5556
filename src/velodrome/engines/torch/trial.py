"""The user's model, tried before training on the batches that it will get: in both modes, and without a trace."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import nn

from velodrome.engines.torch.calling import Outputs, SoftmaxInput, call, scores
from velodrome.engines.torch.generators import generators_of
from velodrome.errors import BadRequest
from velodrome.models import generators, own
from velodrome.models.checks import (
    are_probabilities,
    auxiliary_note,
    check_outputs,
    has_auxiliary,
    probabilities_note,
    wrong_batch,
)

#: What a model is called with: a tensor, or several by name.
Inputs: TypeAlias = "torch.Tensor | dict[str, torch.Tensor]"

#: Layers whose training needs more than one example. Lazy ones have become these by the time they are looked for.
BATCH_NORMALISATION = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


@dataclass(frozen=True)
class Findings:
    """What a trial found out about a model."""

    #: What it returns in training and in evaluation.
    training: Outputs
    evaluation: Outputs
    #: The smallest batch a process can train on: batch normalisation has no variance of one example.
    minimum_batch: int
    #: The only batch that it can evaluate; None if it takes any.
    evaluation_batch: int | None
    #: Whether the scores are among several outputs, in one of the modes.
    several: bool = False
    #: What the user should know, as sentences.
    notes: tuple[str, ...] = ()


@contextmanager
def untouched(model: nn.Module) -> Iterator[nn.Module]:
    """A copy of the model to be tried or, if it cannot be copied, the model itself, whose tensors are then restored.

    Random numbers that are drawn meanwhile are drawn again later.
    """
    with generators.preserved(generators_of(model)):
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


def examine(
    name: str, model: nn.Module, sample: Callable[[int], Inputs], classes: int, *, sizes: Sequence[int],
    evaluation_size: int, way_out: str,
) -> Findings:
    """Try the model on every size of batch that it will be trained on, largest first; refuse it if one fails.

    `sample` returns so many images, `evaluation_size` is one of the sizes of batches that are evaluated, and `way_out`
    is what helps a model that takes only some of `sizes`.
    """
    full, *smaller = sizes
    # What torch.compile wraps is tried instead: each copy would be compiled anew, for every mode and size.
    compiled, model = model, getattr(model, "_orig_mod", model)
    (evaluation, in_evaluation), (training, in_training) = (
        _outputs(name, model, sample(full), classes, training=mode) for mode in (False, True)
    )
    if compiled is not model:  # compiled code cannot be looked into
        evaluation, training = (
            "probabilities" if kind == "softmax" else kind for kind in (evaluation, training)
        )
    normalised = any(isinstance(module, BATCH_NORMALISATION) for module in model.modules())
    minimum = 2 if normalised else 1
    for size in smaller:
        try:
            minimum = _smallest(model, sample, size, minimum)
        except Exception as error:
            raise wrong_batch(name, size, full, error, way_out) from error
    # A model that trains on batches of two sizes takes any.
    free = any(size >= minimum for size in smaller) or _evaluates(model, sample(evaluation_size))
    several = any(not isinstance(outputs, torch.Tensor) for outputs in (in_evaluation, in_training))
    notes = _notes(name, training, evaluation)
    if several and has_auxiliary(in_training, torch.Tensor):
        notes += (auxiliary_note(name),)
    return Findings(training, evaluation, minimum, None if free else full, several, notes)


def _run(model: nn.Module, images: Inputs, *, training: bool) -> Any:
    with untouched(model) as tried, torch.set_grad_enabled(training):
        return call(tried.train(training), images)


def _outputs(name: str, model: nn.Module, images: Inputs, classes: int, *, training: bool) -> tuple[Outputs, Any]:
    """What kind of scores the model returns for a batch in one of its modes, and all that it returned."""
    size = size_of(images)
    with own.fits_data(name, shape_of(images), building=False, batch=size, training=training):
        returned = _run(model, images, training=training)
    outputs = check_outputs(name, returned, torch.Tensor, size, classes, training=training)
    if training and not outputs.requires_grad:
        raise BadRequest(
            f"model {name!r} cannot be trained: what it returns does not depend on a parameter, or was detached from it"
        )
    values = outputs.detach().double().cpu().numpy()
    if values.min() < 0 or values.max() > 1:
        return "logits", returned
    kind = _end_of(model, images, training=training)
    if kind == "logits" and are_probabilities(values):
        kind = "probabilities"
    return kind, returned


def _end_of(model: nn.Module, images: Inputs, *, training: bool) -> Outputs:
    """The function that the model ends in: a softmax over the classes, a sigmoid, or (logits) neither."""
    try:
        with untouched(model) as tried, torch.no_grad():
            tried.train(training)
            with SoftmaxInput() as seen:
                outputs = scores(tried, images)
    except Exception:  # compiled code need not take a mode
        return "logits"
    if seen.is_sigmoid(outputs):
        return "sigmoid"
    logits = seen.logits(outputs)
    over_classes = logits is not None and torch.allclose(logits.softmax(1), outputs, atol=1e-5)
    return "softmax" if over_classes else "logits"


def _smallest(model: nn.Module, sample: Callable[[int], Inputs], size: int, minimum: int) -> int:
    """The smallest batch that this process can train on, if it trains on one of this size; raises if it cannot."""
    try:
        _run(model, sample(max(size, minimum)), training=True)
    except Exception:
        if size > 1 or minimum > 1:
            raise
        _run(model, sample(2), training=True)
        return 2
    return minimum


def _evaluates(model: nn.Module, images: Inputs) -> bool:
    try:
        _run(model, images, training=False)
    except Exception:
        return False
    return True


def _notes(name: str, training: Outputs, evaluation: Outputs) -> tuple[str, ...]:
    if "probabilities" in (training, evaluation):
        return (probabilities_note(name),)
    if training == "sigmoid":
        return (
            f"model {name!r} ends in a sigmoid, and the loss takes what it returns as logits, as torch.nn."
            "CrossEntropyLoss does: numbers between 0 and 1 keep it high; return logits",
        )
    return ()
