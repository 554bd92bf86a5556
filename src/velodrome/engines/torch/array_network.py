"""The network of a job on arrays: built from the zoo or the user's function, tried, and joined with its objective."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from velodrome.catalog.models import is_own
from velodrome.data.examples import ExampleSet
from velodrome.data.pixels import transform_of_arrays
from velodrome.engines.torch import array_trial, trial
from velodrome.engines.torch.calling import LogitsModel
from velodrome.engines.torch.feed import Columns, dtype_of
from velodrome.engines.torch.model_checks import put_channels_last
from velodrome.engines.torch.network import Network, loss_of_logits, seed_everything
from velodrome.engines.torch.objectives import ObjectiveModule, OwnObjective, objective_of
from velodrome.errors import BadRequest
from velodrome.job.job import Job
from velodrome.job.resolve import replicas_of
from velodrome.models import own, torch_zoo
from velodrome.models.checks import other_size, way_out
from velodrome.tasks.counts import Batch
from velodrome.tasks.examples import ExampleTask

Shape = tuple[int, ...] | dict[str, tuple[int, ...]]


def input_shape_of(data: ExampleSet) -> Shape:
    """The shape of the only input, or of each by name; images are (channels, height, width)."""
    shapes = {
        one.name: (one.shape[-1], *one.shape[:-1]) if one.name in data.images else one.shape for one in data.inputs
    }
    return next(iter(shapes.values())) if len(shapes) == 1 else shapes


def make(model: str, given: dict[str, Any], input_shape: Shape, outputs: int | dict[str, int]) -> nn.Module:
    """Build a model by name; `given` are the arguments of a user's function."""
    if not is_own(model):
        return torch_zoo.build(model, input_shape, outputs)  # type: ignore[arg-type]  # it has one input
    builder = own.builder_of(model)
    with own.fits_data(model, input_shape, building=True, engine="torch"):
        built = builder(**given)
    if not isinstance(built, nn.Module):
        raise own.wrong_framework(model, built, "torch")
    return built


def arguments_of(job: Job, data: ExampleSet, task: ExampleTask) -> dict[str, Any]:
    """What the user's function is called with."""
    if not is_own(job.model):
        if job.model_args:
            raise BadRequest(
                f"--model-arg {next(iter(job.model_args))!r}: model {job.model!r} of the zoo takes no arguments"
            )
        return {}
    return own.arguments_for(own.builder_of(job.model), input_shape_of(data), task.outputs(data), job.model_args)


def columns_of(job: Job, data: ExampleSet, device: torch.device, *, channels_last: bool) -> Columns:
    """How the job's arrays become tensors."""
    pixels = transform_of_arrays(job.pixels, data)
    return Columns(data, dtype_of(job), device, channels_last=channels_last, pixels=pixels)


def build(
    job: Job, data: ExampleSet, task: ExampleTask, device: torch.device, *, evaluation_batch: int,
    model: nn.Module | None = None,
) -> Network:
    """The job's network with the weights that its seed decides, or `BadRequest`; with `model`, one that was loaded."""
    seed_everything(job.seed)
    shape, outputs, given = input_shape_of(data), task.outputs(data), arguments_of(job, data, task)
    if model is None:
        model = make(job.model, given, shape, outputs)
    model = model.to(device=device, dtype=dtype_of(job))
    pixels = transform_of_arrays(job.pixels, data)
    zoo = not is_own(job.model)
    if zoo and data.images:
        model = model.to(memory_format=torch.channels_last)
    columns = {layout: columns_of(job, data, device, channels_last=layout) for layout in (False, True)}

    def sample(count: int, *, channels_last: bool = zoo) -> Batch:
        """So many training examples; they come round again where there are fewer."""
        return columns[channels_last].batch(*data.train.gather(np.arange(count, dtype=np.int64) % len(data.train)))

    if zoo and not task.has_own_loss:
        objective = objective_of(task, job.model, data, device)
        objective.smoothing = job.label_smoothing
        return Network(model=model, loss=loss_of_logits, from_zoo=True, channels_last=True, pixels=pixels,
                       adapter=ObjectiveModule(model, objective, autocast=job.dtype == "bfloat16"))
    sizes = [size for size in task.schedule(job, data, 1).in_parts(job.accumulate).sizes(job.steps) if size]
    lazy = trial.initialise(job.model, model, lambda: sample(sizes[0]).x)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise BadRequest(f"model {job.model!r} has nothing to train: none of its parameters requires a gradient")
    evaluation_size = other_size(data, replicas_of(job), evaluation_batch, sizes[0])
    called, saved, notes = _adapted(job, data, task, model, sample, sizes, evaluation_size)
    found = array_trial.examine(
        job.model, called, sample, lambda sigmoid: objective_of(task, job.model, data, device, sigmoid=sigmoid),
        task, sizes=sizes, evaluation_size=evaluation_size, way_out=way_out(job, data),
    )
    found.objective.minimum_batch, found.objective.smoothing = found.minimum_batch, job.label_smoothing
    if job.accumulate > 1 and not found.objective.by_examples:
        raise BadRequest(
            f"--accumulate {job.accumulate}: loss() of {task.name!r} returns a sum and a count, and the count of all "
            "batches is not known before the last is computed; return one value per example, or use a larger batch"
        )
    channels_last, slow = put_channels_last(job.model, called, lambda tried, layout: _results(
        found.objective, tried, sample(sizes[0], channels_last=layout is torch.channels_last)
    ))
    return Network(
        model=model, loss=loss_of_logits, from_zoo=False, channels_last=zoo or channels_last,
        minimum_batch=found.minimum_batch, pixels=pixels,
        adapter=ObjectiveModule(called, found.objective, autocast=job.dtype == "bfloat16"),
        saved_as={"outputs": "logits", "only_batch": None, "lazy": lazy, "channels_last": channels_last, **saved},
        notes=(*notes, *found.notes, *slow), call=_calls(found.objective, sample(sizes[0])),
    )


def _adapted(
    job: Job, data: ExampleSet, task: ExampleTask, model: nn.Module, sample: Callable[[int], Batch], sizes: list[int],
    evaluation_size: int,
) -> tuple[nn.Module, dict[str, Any], tuple[str, ...]]:
    """A classifier that returns logits, what a saved model records of it, and notes: others stay as they are."""
    if task.name != "classification":
        return model, {}, ()
    assert data.classes is not None, "classes were counted when it was loaded"
    found = trial.examine(
        job.model, model, lambda count: sample(count).x, data.classes, sizes=sizes, evaluation_size=evaluation_size,
        way_out=way_out(job, data),
    )
    saved = {"outputs": found.evaluation, "only_batch": found.evaluation_batch, "several": found.several}
    if {found.training, found.evaluation} <= {"logits", "sigmoid"} and found.evaluation_batch is None:
        return model, saved, found.notes  # the objective finds the scores among several outputs
    adapter = LogitsModel(
        model, training=found.training, evaluation=found.evaluation, evaluation_batch=found.evaluation_batch,
        several=found.several or len(data.inputs) > 1,
    )
    return adapter, saved, found.notes


def _results(objective: Any, model: nn.Module, batch: Batch) -> list[Any]:
    """The loss of a batch and, where a task of the user's own counts something, that."""
    loss = objective.loss(model, batch)
    return [loss, *(objective.counted(batch).values() if isinstance(objective, OwnObjective) else ())]


def _calls(objective: Any, batch: Batch) -> Callable[[nn.Module], object]:
    return lambda model: objective.loss(model, batch)
