"""PyTorch's side of a task: the network of a job, built from the zoo or the user's function, checked against the data
and joined with its loss; its batches; what a saved model records."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from velodrome.catalog.models import UNROLL, is_own
from velodrome.data.examples import ExampleSet
from velodrome.data.pixels import PixelTransform, transform_of_arrays
from velodrome.engines.torch import inspection, trial
from velodrome.engines.torch.calling import LogitsModel, initialise, untouched
from velodrome.engines.torch.feed import Columns, ExampleFeed, Feed, Replica, TextFeed, dtype_of
from velodrome.engines.torch.model_file import Shape, load_saved, make
from velodrome.engines.torch.objectives import Objective, ObjectiveModule
from velodrome.engines.torch.task_objectives import LanguageObjective, objective_of
from velodrome.errors import BadRequest
from velodrome.job.job import Job
from velodrome.models import checks, own, torch_zoo
from velodrome.tasks.base import Batch
from velodrome.tasks.examples import ExampleTask
from velodrome.training.context import Context


@dataclass(frozen=True)
class Network:
    """A model that fits the data, on its device and in its number format, joined with its objective."""

    model: nn.Module
    #: What strategies call and wrap: the model, or what returns logits in its place, and the objective.
    module: ObjectiveModule
    #: Whether the model is from the zoo: then its properties are known and need no checks.
    from_zoo: bool
    #: Whether images lie in memory with the channels last.
    channels_last: bool = False
    #: How bytes become its input; None where it gets no images of bytes.
    pixels: PixelTransform | None = None
    #: What a saved model records of it: what it returns in evaluation, the only batch it takes, whether a call gave it
    #: its shapes.
    saved_as: Mapping[str, Any] = field(
        default_factory=lambda: {"outputs": "logits", "only_batch": None, "lazy": False}
    )
    #: What the user should know about the model, as sentences.
    notes: tuple[str, ...] = ()
    #: Makes a batch for trying the model; None for a language model.
    sample: Callable[[], Batch] | None = None

    @property
    def objective(self) -> Any:
        return self.module.objective

    def call_copy(self, tried: nn.Module) -> object:
        """Compute the loss of a copy of the model, as training does."""
        assert self.sample is not None, "a model of examples"
        return self.objective.loss(tried, self.sample())

    def leaves_parameters_unchanged(self) -> bool:
        """Whether a forward pass in training changes no parameter: only then may processes share them."""
        if self.from_zoo:
            return True
        before = [parameter.detach().clone() for parameter in self.model.parameters()]
        try:
            with untouched(self.model) as tried, torch.no_grad():
                if tried is self.model:  # it cannot be copied, and a call may change more than tensors
                    return False
                self.call_copy(tried.train())
                return all(torch.equal(*pair) for pair in zip(before, tried.parameters(), strict=True))
        except Exception:
            return False


def seed_everything(seed: int) -> None:
    torch.manual_seed(seed)
    # A user's model may draw from these.
    np.random.seed(seed)
    random.seed(seed)


# -- the model


def input_shape_of(data: ExampleSet) -> Shape:
    """The shape of the only input, or of each by name; images are (channels, height, width)."""
    shapes = {
        column.name: (column.shape[-1], *column.shape[:-1]) if column.image else column.shape
        for column in data.inputs
    }
    return next(iter(shapes.values())) if len(shapes) == 1 else shapes


def arguments_of(job: Job, data: ExampleSet, task: ExampleTask) -> dict[str, Any]:
    """What the user's function is called with."""
    shape, outputs = input_shape_of(data), task.outputs(data)
    return own.building_arguments(job, shape, outputs, classifies_images=task.classifies_images(data))


# -- the model with its objective


def build_text(job: Job, vocabulary: int, device: torch.device, *, model: nn.Module | None = None) -> Network:
    """The job's language model with the weights that its seed decides, or `model`, which was saved."""
    seed_everything(job.seed)
    if model is None:
        model = torch_zoo.build_text(job.model, vocabulary, UNROLL.of(job))
    model = model.to(device=device, dtype=dtype_of(job))
    module = ObjectiveModule(model, LanguageObjective(model), autocast=job.dtype == "bfloat16")
    return Network(model=model, module=module, from_zoo=True)


def build(
    job: Job, data: ExampleSet, task: ExampleTask, device: torch.device, *, model: nn.Module | None = None,
    about: Mapping[str, Any] | None = None,
) -> Network:
    """The job's network with the weights that its seed decides, or `BadRequest`; with `model`, one that was saved with
    the description `about`."""
    seed_everything(job.seed)
    if model is None:
        model = make(job.model, arguments_of(job, data, task), input_shape_of(data), task.outputs(data))
    model = model.to(device=device, dtype=dtype_of(job))
    zoo, autocast = not is_own(job.model), job.dtype == "bfloat16"
    if zoo and data.images:
        model = model.to(memory_format=torch.channels_last)
    builder = _Builder(job, data, task, device, model, about)
    if zoo and not task.has_own_loss:
        objective = objective_of(task, job.model, data, device)
        objective.smoothing = job.label_smoothing
        return Network(
            model=model, module=ObjectiveModule(model, objective, autocast=autocast), from_zoo=True,
            channels_last=True, pixels=builder.pixels, sample=lambda: builder.sample(builder.sizes.training[0]),
        )
    return builder.tried()


class _Builder:
    """Tries the user's model, or loss, and joins both."""

    def __init__(
        self, job: Job, data: ExampleSet, task: ExampleTask, device: torch.device, model: nn.Module,
        about: Mapping[str, Any] | None,
    ) -> None:
        self._job, self._data, self._task, self._device = job, data, task, device
        self._model, self._about, self._zoo = model, about, not is_own(job.model)
        self.pixels = transform_of_arrays(job.pixels, data)
        self._columns = {
            layout: Columns(data, dtype_of(job), device, channels_last=layout, pixels=self.pixels)
            for layout in (False, True)
        }

    @cached_property
    def sizes(self) -> trial.Sizes:
        """The batches that a process of the job gets."""
        return trial.sizes_of(self._job, self._data, self._task)

    def sample(self, count: int, *, channels_last: bool | None = None) -> Batch:
        """`count` training examples, repeated if there are too few."""
        train = self._data.train
        columns = self._columns[self._zoo if channels_last is None else channels_last]
        return columns.batch(*train.gather(np.arange(count, dtype=np.int64) % len(train)))

    def tried(self) -> Network:
        job, model, full = self._job, self._model, self.sizes.training[0]
        lazy = initialise(job.model, model, lambda: self.sample(full).x)
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise BadRequest(f"model {job.model!r} has nothing to train: none of its parameters requires a gradient")
        called, saved, notes, minimum = self._classifier()
        objective = self._objective(called, minimum)
        notes += self._byte_notes()
        channels_last, slow = inspection.put_channels_last(job.model, called, lambda tried, layout: objective.results(
            tried, self.sample(full, channels_last=layout is torch.channels_last)
        ))
        return Network(
            model=model, module=ObjectiveModule(called, objective, autocast=job.dtype == "bfloat16"), from_zoo=False,
            channels_last=self._zoo or channels_last, pixels=self.pixels, notes=(*notes, *slow),
            sample=lambda: self.sample(full),
            saved_as={"outputs": "logits", "only_batch": None, "lazy": lazy, "channels_last": channels_last, **saved},
        )

    def _classifier(self) -> tuple[nn.Module, dict[str, Any], tuple[str, ...], int]:
        """What returns logits, what a saved model records of it, notes, and the smallest batch that it trains on: a
        model of any other task stays as it is."""
        job, data, model = self._job, self._data, self._model
        if self._task.name != "classification":
            return model, {}, (), 1
        if self._about is not None:  # as it was found before it was trained
            findings = trial.Findings(
                "logits", self._about["outputs"], 1, self._about["only_batch"], self._about.get("several", False)
            )
        else:
            tried = trial.TorchTrial(job.model, model, self._task, self.sizes)
            findings = tried.examine(lambda count: self.sample(count).x, data.class_count)
        saved = {"outputs": findings.evaluation, "only_batch": findings.evaluation_batch, "several": findings.several}
        if findings.returns_logits:
            # The objective finds scores among several outputs.
            return model, saved, findings.notes, findings.minimum_batch
        adapter = LogitsModel(
            model, training=findings.training, evaluation=findings.evaluation,
            evaluation_batch=findings.evaluation_batch, several=findings.several or len(data.inputs) > 1,
        )
        return adapter, saved, findings.notes, findings.minimum_batch

    def _objective(self, called: nn.Module, minimum: int) -> Objective:
        """The objective, tried with the model; labelled images were tried enough."""
        job, data, task = self._job, self._data, self._task
        if task.classifies_images(data):
            objective = objective_of(task, job.model, data, self._device)
            objective.minimum_batch = minimum
        else:
            objective = trial.TorchTrial(job.model, called, task, self.sizes).examine_loss(
                self.sample, lambda sigmoid: objective_of(task, job.model, data, self._device, sigmoid=sigmoid)
            )
        objective.smoothing = job.label_smoothing
        if job.accumulate > 1 and not objective.by_examples:
            raise BadRequest(
                f"--accumulate {job.accumulate}: loss() of {task.name!r} returns a sum and a count, and the count of "
                "all batches is not known before the last is computed; return one value per example, or use a larger "
                "batch"
            )
        return objective

    def _byte_notes(self) -> tuple[str, ...]:
        """Whether a model of images scales its input as if it were bytes, and is fed others."""
        if not self._task.classifies_images(self._data) or self.pixels is None or self.pixels.form == "byte":
            return ()
        with untouched(self._model) as tried:
            scales = inspection.expects_bytes(tried, self.sample(self.sizes.training[0]).x)
        return (checks.byte_input_note(self._job.model, self.pixels.form),) if scales else ()


# -- tasks


class TorchTask(ABC):
    """What a learner of any strategy needs to know of a task. The loss and what is counted are the network's objective
    (`engines/torch/objectives.py`)."""

    def __init__(self, context: Context) -> None:
        self._context = context

    @abstractmethod
    def network(self, device: torch.device) -> Network:
        """The job's network with the weights that its seed decides, checked against the data, or the saved model that
        is to be evaluated."""

    @abstractmethod
    def feed(self, network: Network, replica: Replica) -> Feed:
        """The batches of this process."""

    @abstractmethod
    def description(self, network: Network) -> dict[str, Any]:
        """What is required, besides the weights, to load the model."""


class Examples(TorchTask):
    """Examples by their numbers: images of bytes and any other named columns."""

    @property
    def _task(self) -> ExampleTask:
        return cast(ExampleTask, self._context.task)

    def network(self, device: torch.device) -> Network:
        context, job = self._context, self._context.job
        model, about = load_saved(context)
        network = build(job, context.data, self._task, device, model=model, about=about)
        if context.is_chief and model is None:
            tried = checks.claims_equivalence(job) and network.sample is not None
            differences = inspection.differences_of(network.model, network.call_copy) if tried else ()
            for note in (*network.notes, *checks.equivalence_warnings(job.model, differences)):
                context.events.emit("warning", message=note)
        return network

    def feed(self, network: Network, replica: Replica) -> ExampleFeed:
        data, dtype = self._context.data, dtype_of(self._context.job)
        columns = Columns(data, dtype, replica.device, channels_last=network.channels_last, pixels=network.pixels)
        return ExampleFeed(data, columns, replica)

    def description(self, network: Network) -> dict[str, Any]:
        data, task, pixels = self._context.data, self._task, network.pixels
        inputs = {field.name: {"shape": list(field.shape), "dtype": field.dtype} for field in data.inputs}
        return {
            **task.saved_fields(data, input_shape_of(data), inputs, arguments_of(self._context.job, data, task)),
            **(pixels.description() if pixels else {}), **network.saved_as,
        }


class LanguageModel(TorchTask):
    """Words as their places in the vocabulary of the text."""

    def network(self, device: torch.device) -> Network:
        model, _ = load_saved(self._context)
        return build_text(self._context.job, len(self._context.data.vocabulary), device, model=model)

    def feed(self, network: Network, replica: Replica) -> TextFeed:
        return TextFeed(self._context.data, UNROLL.of(self._context.job), network.objective, replica)

    def description(self, network: Network) -> dict[str, Any]:
        text = self._context.data
        about = {"kind": "text", "vocabulary": len(text.vocabulary), "dataset": text.name}
        carries = hasattr(network.model, "initial_state")
        return about if carries else {**about, "context": UNROLL.of(self._context.job)}


#: By the sides of tasks that come with Velodrome; the side of another task is a module, whose `TASK` is its class.
_TASKS: dict[str, type[TorchTask]] = {"arrays": Examples, "language-model": LanguageModel}


def task_of_job(context: Context) -> TorchTask:
    """PyTorch's side of the job's task."""
    side = context.task.side or context.task.name
    task_class: type[TorchTask] = _TASKS.get(side) or import_module(context.task.module("torch")).TASK
    return task_class(context)
