"""The user's model and its loss, tried before training on the batches that they will get: in both modes, and without a
trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from velodrome.data.examples import ExampleSet
from velodrome.engines.torch.calling import Inputs, Outputs, SoftmaxInput, call, scores, shape_of, size_of, untouched
from velodrome.engines.torch.feed import EVALUATION_BATCH
from velodrome.engines.torch.objectives import Objective, OutputObjective
from velodrome.errors import BadRequest, VelodromeError
from velodrome.job.job import Job
from velodrome.job.resolve import replicas_of
from velodrome.models import own
from velodrome.models.checks import (
    are_probabilities,
    auxiliary_note,
    check_outputs,
    has_auxiliary,
    how_to_fix,
    other_size,
    probabilities_note,
    wrong_batch,
)
from velodrome.tasks.base import Batch
from velodrome.tasks.examples import ExampleTask
from velodrome.tasks.own import OwnTask
from velodrome.training.trial import Trial

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
    how_to_fix: str


def sizes_of(job: Job, data: ExampleSet, task: ExampleTask) -> Sizes:
    """Those that a process of the job gets."""
    schedule = task.schedule(job, data, 1).in_parts(job.accumulate)
    training = [size for size in schedule.sizes(job.steps) if size]
    return Sizes(training, other_size(data, replicas_of(job), EVALUATION_BATCH, training[0]), how_to_fix(job, data))


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


class TorchTrial(Trial):
    """Calls copies of a model, and its loss, with every size of batch that they will get."""

    def __init__(self, name: str, model: nn.Module, task: ExampleTask, sizes: Sizes) -> None:
        super().__init__(name, task)
        self._sizes = sizes
        # What torch.compile wraps is tried instead: each copy would be compiled again, for every mode and size.
        self._is_compiled, self._model = hasattr(model, "_orig_mod"), getattr(model, "_orig_mod", model)

    # -- a classifier

    def examine(self, sample: Callable[[int], Inputs], classes: int) -> Findings:
        """Try a classifier on every size of batch that it will be trained on, largest first; refuse it if one fails.
        `sample` returns a number of examples."""
        name, sizes, (full, *smaller) = self._name, self._sizes, self._sizes.training
        (evaluation, in_evaluation), (training, in_training) = (
            self._outputs(sample(full), classes, training=mode) for mode in (False, True)
        )
        if self._is_compiled:  # compiled code cannot be looked into
            evaluation, training = (
                "probabilities" if kind == "softmax" else kind for kind in (evaluation, training)
            )
        minimum = self._minimum_batch(lambda size: self._run(sample(size), training=True), may_fill=True)
        # A model that trains on batches of two sizes takes any.
        free = any(size >= minimum for size in smaller) or self._evaluates(sample(sizes.evaluation))
        several = any(not isinstance(outputs, torch.Tensor) for outputs in (in_evaluation, in_training))
        notes = _notes(name, training, evaluation)
        if several and has_auxiliary(in_training, torch.Tensor):
            notes += (auxiliary_note(name),)
        return Findings(training, evaluation, minimum, None if free else full, several, notes)

    def _run(self, inputs: Inputs, *, training: bool) -> Any:
        with untouched(self._model) as tried, torch.set_grad_enabled(training):
            return call(tried.train(training), inputs)

    def _evaluates(self, inputs: Inputs) -> bool:
        try:
            self._run(inputs, training=False)
        except Exception:
            return False
        return True

    def _outputs(self, inputs: Inputs, classes: int, *, training: bool) -> tuple[Outputs, Any]:
        """What kind of scores the model returns for a batch in one of its modes, and all that it returned."""
        name, size = self._name, size_of(inputs)
        with own.fits_data(name, shape_of(inputs), building=False, batch=size, training=training):
            returned = self._run(inputs, training=training)
        outputs = check_outputs(name, returned, torch.Tensor, size, classes, training=training)
        if training and not outputs.requires_grad:
            raise BadRequest(
                f"model {name!r} cannot be trained: what it returns does not depend on a parameter, or was detached "
                "from it"
            )
        values = outputs.detach().double().cpu().numpy()
        if values.min() < 0 or values.max() > 1:
            return "logits", returned
        kind = self._ending(inputs, training=training)
        if kind == "logits" and are_probabilities(values):
            kind = "probabilities"
        return kind, returned

    def _ending(self, inputs: Inputs, *, training: bool) -> Outputs:
        """The function that the model ends in: a softmax over the classes, a sigmoid, or (logits) neither."""
        try:
            with untouched(self._model) as tried, torch.no_grad():
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

    def _minimum_batch(self, run: Callable[[int], object], *, may_fill: bool) -> int:
        """The smallest batch that a process can train on, whose sizes `run` tries; `may_fill` if smaller ones may be
        filled by repeating examples."""
        full, *smaller = self._sizes.training
        minimum = 2 if any(isinstance(module, BATCH_NORMALISATION) for module in self._model.modules()) else 1
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
                raise wrong_batch(self._name, size, full, error, self._sizes.how_to_fix) from error
        return minimum

    # -- a loss

    def examine_loss(self, sample: Callable[[int], Batch], make: Callable[[Sigmoid], Objective]) -> Objective:
        """Try model and loss on every size of batch that they will get, largest first; refuse them if one fails.
        Returns the loss, with the smallest batch that it takes."""
        batch = sample(self._sizes.training[0])
        objective = make({mode: self._ending(batch.x, training=mode) == "sigmoid" for mode in (False, True)})
        for training in (False, True):
            self._try_first(objective, batch, training=training)
        objective.minimum_batch = self._minimum_batch(
            lambda size: self._run_loss(objective, sample(size), training=True),
            may_fill=isinstance(objective, OutputObjective),
        )
        with self._users_code(self._sizes.evaluation):
            self._run_loss(objective, sample(self._sizes.evaluation), training=False)
        return objective

    def _run_loss(self, objective: Objective, batch: Batch, *, training: bool) -> torch.Tensor:
        """The loss of a batch on a copy of the model; the copy, and what was drawn at random, are forgotten."""
        with untouched(self._model) as tried, torch.set_grad_enabled(training):
            tried.train(training)
            loss = objective.loss(tried, batch)
            if training and loss.requires_grad:
                loss.backward()
        return loss

    def _try_first(self, objective: Objective, batch: Batch, *, training: bool) -> None:
        size, task = len(batch), self._task
        if isinstance(objective, OutputObjective):
            with self._users_code(size, training=training), untouched(self._model) as tried, torch.no_grad():
                outputs = scores(tried.train(training), batch.x)
            self._check_shape(outputs, torch.is_tensor, size, objective.shape, training=training)
        with self._users_code(size, training=training):
            loss = self._run_loss(objective, batch, training=training)
            counted = objective.try_counting(batch)
        value = float(loss.detach())
        self._check_first(
            value, size, has_gradient=loss.requires_grad or not training, no_gradient="what it returns does not depend "
            "on a parameter of the model, or was detached from it",
        )
        if isinstance(task, OwnTask):
            sums = {key: float(value) for key, value in counted.items()}
            with self._users_code(size):
                task.learn(sums, objective.total, value)


def _notes(name: str, training: Outputs, evaluation: Outputs) -> tuple[str, ...]:
    if "probabilities" in (training, evaluation):
        return (probabilities_note(name),)
    if training == "sigmoid":
        return (
            f"model {name!r} ends in a sigmoid, but the loss treats its outputs as logits, as torch.nn."
            "CrossEntropyLoss does: with numbers between 0 and 1 the loss stays high; return logits",
        )
    return ()
