"""The user's model and its loss, tried before training on the batches that they will get: in both modes, and without a
trace."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from velodrome.data.examples import ExampleSet
from velodrome.engines.torch.calling import Inputs, Outputs, SoftmaxInput, call, scores, shape_of, size_of, untouched
from velodrome.engines.torch.feed import EVALUATION_BATCH
from velodrome.engines.torch.objectives import Objective, OutputObjective
from velodrome.errors import BadRequest, UsersCodeFailed, VelodromeError
from velodrome.job.job import Job
from velodrome.job.resolve import replicas_of
from velodrome.models import own
from velodrome.models.checks import (
    are_probabilities,
    auxiliary_note,
    check_outputs,
    has_auxiliary,
    other_size,
    probabilities_note,
    way_out,
    wrong_batch,
)
from velodrome.tasks.base import Batch
from velodrome.tasks.examples import ExampleTask
from velodrome.tasks.own import OwnTask

#: Whether a model ends in a sigmoid, in evaluation (False) and in training (True).
Sigmoid = dict[bool, bool]

#: Layers whose training needs more than one example. Lazy ones have become these by the time they are looked for.
BATCH_NORMALISATION = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


@dataclass(frozen=True)
class Sizes:
    """The batches that a model will get."""

    #: Numbers of examples that a process trains on at a time, largest first, and one that it evaluates.
    training: Sequence[int]
    evaluation: int
    #: What helps a model that takes only some of them.
    way_out: str


def sizes_of(job: Job, data: ExampleSet, task: ExampleTask) -> Sizes:
    """Those that a process of the job gets."""
    schedule = task.schedule(job, data, 1).in_parts(job.accumulate)
    training = [size for size in schedule.sizes(job.steps) if size]
    return Sizes(training, other_size(data, replicas_of(job), EVALUATION_BATCH, training[0]), way_out(job, data))


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

    @property
    def returns_logits(self) -> bool:
        """Whether it returns what the loss takes, for any batch; the scores may be among several outputs."""
        return {self.training, self.evaluation} <= {"logits", "sigmoid"} and self.evaluation_batch is None


def examine(name: str, model: nn.Module, sample: Callable[[int], Inputs], classes: int, sizes: Sizes) -> Findings:
    """Try a classifier on every size of batch that it will be trained on, largest first; refuse it if one fails.
    `sample` returns so many examples."""
    full, *smaller = sizes.training
    # What torch.compile wraps is tried instead: each copy would be compiled anew, for every mode and size.
    compiled, model = model, getattr(model, "_orig_mod", model)
    (evaluation, in_evaluation), (training, in_training) = (
        _outputs(name, model, sample(full), classes, training=mode) for mode in (False, True)
    )
    if compiled is not model:  # compiled code cannot be looked into
        evaluation, training = (
            "probabilities" if kind == "softmax" else kind for kind in (evaluation, training)
        )
    minimum = _minimum_batch(
        name, model, sizes, lambda size: _run(model, sample(size), training=True), may_fill=True
    )
    # A model that trains on batches of two sizes takes any.
    free = any(size >= minimum for size in smaller) or _evaluates(model, sample(sizes.evaluation))
    several = any(not isinstance(outputs, torch.Tensor) for outputs in (in_evaluation, in_training))
    notes = _notes(name, training, evaluation)
    if several and has_auxiliary(in_training, torch.Tensor):
        notes += (auxiliary_note(name),)
    return Findings(training, evaluation, minimum, None if free else full, several, notes)


def _run(model: nn.Module, inputs: Inputs, *, training: bool) -> Any:
    with untouched(model) as tried, torch.set_grad_enabled(training):
        return call(tried.train(training), inputs)


def _outputs(name: str, model: nn.Module, inputs: Inputs, classes: int, *, training: bool) -> tuple[Outputs, Any]:
    """What kind of scores the model returns for a batch in one of its modes, and all that it returned."""
    size = size_of(inputs)
    with own.fits_data(name, shape_of(inputs), building=False, batch=size, training=training):
        returned = _run(model, inputs, training=training)
    outputs = check_outputs(name, returned, torch.Tensor, size, classes, training=training)
    if training and not outputs.requires_grad:
        raise BadRequest(
            f"model {name!r} cannot be trained: what it returns does not depend on a parameter, or was detached from it"
        )
    values = outputs.detach().double().cpu().numpy()
    if values.min() < 0 or values.max() > 1:
        return "logits", returned
    kind = _end_of(model, inputs, training=training)
    if kind == "logits" and are_probabilities(values):
        kind = "probabilities"
    return kind, returned


def _end_of(model: nn.Module, inputs: Inputs, *, training: bool) -> Outputs:
    """The function that the model ends in: a softmax over the classes, a sigmoid, or (logits) neither."""
    try:
        with untouched(model) as tried, torch.no_grad():
            tried.train(training)
            with SoftmaxInput() as seen:
                outputs = scores(tried, inputs)
        if seen.is_sigmoid(outputs):
            return "sigmoid"
        logits = seen.logits(outputs)
        over_classes = logits is not None and torch.allclose(logits.softmax(1), outputs, atol=1e-5)
    except Exception:  # compiled code need not take a mode, and the trial of a loss reports what is wrong
        return "logits"
    return "softmax" if over_classes else "logits"


def _minimum_batch(
    name: str, model: nn.Module, sizes: Sizes, run: Callable[[int], object], *, may_fill: bool
) -> int:
    """The smallest batch that a process can train on, whose sizes `run` tries; `may_fill` if smaller ones may be filled
    by repeating examples."""
    full, *smaller = sizes.training
    minimum = 2 if any(isinstance(module, BATCH_NORMALISATION) for module in model.modules()) else 1
    for size in smaller:
        try:
            try:
                run(max(size, minimum) if may_fill else size)
            except Exception:
                if size > 1 or minimum > 1 or not may_fill:
                    raise
                run(2)
                minimum = 2
        except VelodromeError:
            raise
        except Exception as error:
            raise wrong_batch(name, size, full, error, sizes.way_out) from error
    return minimum


def _evaluates(model: nn.Module, inputs: Inputs) -> bool:
    try:
        _run(model, inputs, training=False)
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


# -- losses


def examine_loss(
    name: str, model: nn.Module, sample: Callable[[int], Batch], make: Callable[[Sigmoid], Objective],
    task: ExampleTask, sizes: Sizes,
) -> Objective:
    """Try model and loss on every size of batch that they will get, largest first; refuse them if one fails. Returns
    the loss, with the smallest batch that it takes."""
    full = sizes.training[0]
    model = getattr(model, "_orig_mod", model)  # as above
    batch = sample(full)
    objective = make({mode: _end_of(model, batch.x, training=mode) == "sigmoid" for mode in (False, True)})
    for training in (False, True):
        _try_first(name, model, objective, batch, task, training=training)
    objective.minimum_batch = _minimum_batch(
        name, model, sizes, lambda size: _run_loss(model, objective, sample(size), training=True),
        may_fill=isinstance(objective, OutputObjective),
    )
    with _users_code(name, task, sizes.evaluation):
        _run_loss(model, objective, sample(sizes.evaluation), training=False)
    return objective


@contextmanager
def _users_code(name: str, task: ExampleTask, size: int, *, training: bool = False) -> Iterator[None]:
    """Around a call of the user's loss or model: what it raises becomes one sentence with the user's traceback."""
    try:
        yield
    except VelodromeError:
        raise
    except Exception as error:
        when = "train" if training else "evaluate"
        what = f"--task {task.name!r}" if isinstance(task, OwnTask) else f"model {name!r}"
        raise UsersCodeFailed(
            f"{what} cannot {when} a first batch of {size} examples: {own.reason_of(error)}"
        ) from error


def _run_loss(model: nn.Module, objective: Objective, batch: Batch, *, training: bool) -> torch.Tensor:
    """The loss of a batch on a copy of the model; the copy, and what was drawn at random, are forgotten."""
    with untouched(model) as tried, torch.set_grad_enabled(training):
        tried.train(training)
        loss = objective.loss(tried, batch)
        if training and loss.requires_grad:
            loss.backward()
    return loss


def _try_first(
    name: str, model: nn.Module, objective: Objective, batch: Batch, task: ExampleTask, *, training: bool
) -> None:
    size = len(batch)
    if isinstance(objective, OutputObjective):
        with _users_code(name, task, size, training=training):
            outputs = _scores_of(model, batch, training=training)
        _check_shape(name, outputs, size, objective.shape, training=training)
    with _users_code(name, task, size, training=training):
        loss = _run_loss(model, objective, batch, training=training)
        counted = objective.try_counting(batch)
    if training and not loss.requires_grad:
        own_loss = f"--task {task.name!r}: loss(){task.place('loss')}" if isinstance(task, OwnTask) else ""
        what = own_loss or f"model {name!r}"
        raise BadRequest(
            f"{what} has no gradient: what it returns does not depend on a parameter of the model, or was detached "
            "from it"
        )
    value = float(loss.detach())
    if not math.isfinite(value):
        raise BadRequest(
            f"the loss of a first batch of {size} examples is {value}: look for a division by zero, a logarithm "
            "of zero, or numbers in the data that are not finite"
        )
    if isinstance(task, OwnTask):
        sums = {key: float(value) for key, value in counted.items()}
        with _users_code(name, task, size):
            task.learn(sums, objective.total, value)


def _scores_of(model: nn.Module, batch: Batch, *, training: bool) -> object:
    with untouched(model) as tried, torch.no_grad():
        return scores(tried.train(training), batch.x)


def _check_shape(name: str, outputs: object, size: int, shape: tuple[int, ...], *, training: bool) -> None:
    when = " in training" if training else ""
    if not isinstance(outputs, torch.Tensor):
        raise BadRequest(
            f"model {name!r} returns {type(outputs).__name__!r}{when}, and one tensor of shape {(size, *shape)} is "
            "needed: return one, or name a task of your own"
        )
    needed = (size, *shape)
    if outputs.numel() != size * max(1, int(torch.Size(shape).numel())) or outputs.shape[:1] != (size,):
        alone = f" or {(size, 1)}" if not shape else ""
        raise BadRequest(
            f"model {name!r} answers with shape {tuple(outputs.shape)} for {size} examples{when}; the target needs "
            f"{needed}{alone}"
        )
