"""Tasks on examples: classification, regression, binary and multi-label classification, and tasks of the user's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from velodrome import files
from velodrome.engines.torch.feed import Columns, ExampleFeed, Replica, dtype_of
from velodrome.engines.torch.inspection import differences_of
from velodrome.engines.torch.model_file import load_saved
from velodrome.engines.torch.network import Network, arguments_of, build, input_shape_of
from velodrome.engines.torch.tasks import TorchTask
from velodrome.models.equivalence import claims_equivalence, equivalence_warnings
from velodrome.models.recipe import COLUMNS
from velodrome.tasks.examples import ExampleTask
from velodrome.worker.context import Context


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
        if data.kind == "images":
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


TASK = Examples
