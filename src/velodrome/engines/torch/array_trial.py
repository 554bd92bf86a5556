"""A network on arrays and its loss, tried before training on the batches that they will get, without a trace."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from velodrome.engines.torch import trial
from velodrome.engines.torch.calling import SoftmaxInput, scores
from velodrome.engines.torch.objectives import Objective, OutputObjective, OwnObjective
from velodrome.errors import BadRequest, UsersCodeFailed, VelodromeError
from velodrome.models import own
from velodrome.models.checks import wrong_batch
from velodrome.tasks.counts import Batch
from velodrome.tasks.examples import ExampleTask
from velodrome.tasks.own import OwnTask

#: Whether a model ends in a sigmoid, in evaluation (False) and in training (True).
Sigmoid = dict[bool, bool]


@dataclass(frozen=True)
class Findings:
    """What a trial found out about a model and its loss."""

    objective: Objective
    #: The smallest batch a process can train on: batch normalisation has no variance of one example.
    minimum_batch: int = 1
    #: What the user should know, as sentences.
    notes: tuple[str, ...] = ()


def examine(
    name: str, model: nn.Module, sample: Callable[[int], Batch], make: Callable[[Sigmoid], Objective],
    task: ExampleTask, *, sizes: Sequence[int], evaluation_size: int, way_out: str,
) -> Findings:
    """Try model and loss on every size of batch that they will get, largest first; refuse them if one fails."""
    full, *smaller = sizes
    model = getattr(model, "_orig_mod", model)  # as for images: each copy would be compiled anew
    batch = sample(full)
    objective = make({mode: _ends_in_sigmoid(model, batch, training=mode) for mode in (False, True)})
    for training in (False, True):
        _try_first(name, model, objective, batch, task, training=training)
    minimum = 2 if any(isinstance(each, trial.BATCH_NORMALISATION) for each in model.modules()) else 1
    for size in smaller:
        try:
            minimum = _smallest(model, objective, sample, size, minimum)
        except VelodromeError:
            raise
        except Exception as error:
            raise wrong_batch(name, size, full, error, way_out) from error
    with _users_code(name, task, evaluation_size):
        _run(model, objective, sample(evaluation_size), training=False)
    return Findings(objective, minimum)


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


def _run(model: nn.Module, objective: Objective, batch: Batch, *, training: bool) -> torch.Tensor:
    """The loss of a batch on a copy of the model; the copy, and what was drawn at random, are forgotten."""
    with trial.untouched(model) as tried, torch.set_grad_enabled(training):
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
            outputs = _outputs(model, batch, training=training)
        _check_outputs(name, outputs, size, objective.shape, training=training)
    with _users_code(name, task, size, training=training):
        loss = _run(model, objective, batch, training=training)
        counted = objective.try_counting(batch) if isinstance(objective, OwnObjective) else {}
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
    if isinstance(task, OwnTask) and isinstance(objective, OwnObjective):
        sums = {key: float(value) for key, value in counted.items()}
        with _users_code(name, task, size):
            task.learn(sums, objective.total, value)


def _outputs(model: nn.Module, batch: Batch, *, training: bool) -> object:
    with trial.untouched(model) as tried, torch.no_grad():
        return scores(tried.train(training), batch.x)


def _check_outputs(name: str, outputs: object, size: int, shape: tuple[int, ...], *, training: bool) -> None:
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


def _ends_in_sigmoid(model: nn.Module, batch: Batch, *, training: bool) -> bool:
    try:
        with trial.untouched(model) as tried, torch.no_grad():
            tried.train(training)
            with SoftmaxInput() as seen:
                outputs = scores(tried, batch.x)
        return seen.is_sigmoid(outputs)
    except Exception:  # what is wrong is reported by the trial of the loss
        return False


def _smallest(
    model: nn.Module, objective: Objective, sample: Callable[[int], Batch], size: int, minimum: int
) -> int:
    """The smallest batch that this process can train on, if it trains on one of this size; raises if it cannot."""
    may_fill = isinstance(objective, OutputObjective)
    try:
        _run(model, objective, sample(max(size, minimum) if may_fill else size), training=True)
    except Exception:
        if size > 1 or minimum > 1 or not may_fill:
            raise
        _run(model, objective, sample(2), training=True)
        return 2
    return minimum
