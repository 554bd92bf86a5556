"""PyTorch's side of a task: its network, its batches, and what a saved model records."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from velodrome import files
from velodrome.catalog.models import UNROLL
from velodrome.engines.torch.feed import Columns, ExampleFeed, Feed, Replica, TextFeed, dtype_of
from velodrome.engines.torch.inspection import differences_of
from velodrome.engines.torch.model_file import load_saved
from velodrome.engines.torch.network import Network, arguments_of, build, build_text, input_shape_of
from velodrome.models.checks import claims_equivalence, equivalence_warnings
from velodrome.models.model_files import COLUMNS, VOCABULARY
from velodrome.tasks.examples import ExampleTask
from velodrome.training.context import Context


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

    def write_extra_files(self, folder: Path) -> None:  # noqa: B027 (most have none)
        """Write further files that belong to the saved model."""


class Examples(TorchTask):
    """Examples by their numbers: images of bytes and any other named columns."""

    def network(self, device: torch.device) -> Network:
        context, job = self._context, self._context.job
        model, about = load_saved(context)
        network = build(job, context.data, _task_of(context), device, model=model, about=about)
        if context.is_chief and model is None:
            tried = claims_equivalence(job) and network.sample is not None
            differences = differences_of(network.model, network.call_copy) if tried else ()
            for note in (*network.notes, *equivalence_warnings(job.model, differences)):
                context.events.emit("warning", message=note)
        return network

    def feed(self, network: Network, replica: Replica) -> ExampleFeed:
        data, dtype = self._context.data, dtype_of(self._context.job)
        columns = Columns(
            data, dtype, replica.device, channels_last=network.channels_last, pixels=network.pixels
        )
        return ExampleFeed(data, columns, replica)

    def description(self, network: Network) -> dict[str, Any]:
        data, context, pixels = self._context.data, self._context, network.pixels
        shape, scaling = input_shape_of(data), pixels.description() if pixels else {}
        if context.task.classifies_images(data):
            return {"input_shape": list(shape), "classes": data.classes, "dataset": data.name, **scaling,
                    **network.saved_as}
        task = _task_of(context)
        return {
            "kind": "arrays", "task": task.name, "dataset": data.name,
            "inputs": {field.name: {"shape": list(field.shape), "dtype": field.dtype} for field in data.inputs},
            "images": sorted(data.images), "classes": data.classes, "class_names": list(data.class_names),
            "input_shape": shape, "returns": task.outputs(data), "arguments": arguments_of(context.job, data, task),
            **scaling, **network.saved_as,
        }

    def write_extra_files(self, folder: Path) -> None:
        if columns := self._context.data.columns:
            text = json.dumps(columns, ensure_ascii=False, indent=2)
            files.write_text(folder / COLUMNS, text + "\n", sync=False)


def _task_of(context: Context) -> ExampleTask:
    assert isinstance(context.task, ExampleTask), "examples have such a task"
    return context.task


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

    def write_extra_files(self, folder: Path) -> None:
        words = json.dumps(self._context.data.vocabulary, ensure_ascii=False)
        files.write_text(folder / VOCABULARY, words + "\n", sync=False)


#: By the sides of tasks that come with Velodrome; the side of another task is a module, whose `TASK` is its class.
_TASKS: dict[str, type[TorchTask]] = {"arrays": Examples, "language-model": LanguageModel}


def task_of_job(context: Context) -> TorchTask:
    """PyTorch's side of the job's task."""
    side = context.task.side or context.task.name
    task_class: type[TorchTask] = _TASKS.get(side) or import_module(context.task.module("torch")).TASK
    return task_class(context)
