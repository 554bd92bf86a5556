"""Training on named arrays: regression, binary and multi-label classification, classes of anything, own tasks."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from velodrome import files
from velodrome.engines.torch.array_network import arguments_of, build, columns_of, input_shape_of
from velodrome.engines.torch.feed import Feed, feed_of
from velodrome.engines.torch.model_checks import differences_of
from velodrome.engines.torch.model_file import load
from velodrome.engines.torch.network import Network
from velodrome.engines.torch.objectives import ObjectiveModule, OutputObjective, OwnObjective
from velodrome.engines.torch.tasks.base import EvaluationCounts, Replica, Stepper, TorchTask
from velodrome.engines.torch.tasks.classification import EVALUATION_BATCH, MAX_CONFUSION_CLASSES
from velodrome.models.equivalence import claims_equivalence, equivalence_warnings
from velodrome.models.recipe import COLUMNS
from velodrome.tasks.counts import Batch, Counts
from velodrome.tasks.examples import ExampleTask
from velodrome.tasks.schedule import Schedule
from velodrome.worker.context import Context
from velodrome.worker.learner import Part

#: Outputs of so many numbers wait to be counted together, which takes less time than counting every step.
_PENDING_NUMBERS = 1 << 18


class ArrayTask(TorchTask):
    """Trains on the examples of this process's partition."""

    def __init__(self, context: Context, network: Network, replica: Replica) -> None:
        super().__init__(context, network, replica)
        self._learns = _task_of(context)
        assert isinstance(network.adapter, ObjectiveModule), "a network with an objective"
        self._module, self._objective = network.adapter, network.adapter.objective
        self._columns = columns_of(
            context.job, context.data, replica.device, channels_last=network.channels_last
        )
        self._feeds: dict[str, Feed] = {}
        self._train = self._feed("train")

    @classmethod
    def network(cls, context: Context, device: torch.device) -> Network:
        job, saved = context.job, context.saved_model
        network = build(
            job, context.data, _task_of(context), device, evaluation_batch=EVALUATION_BATCH,
            model=None if saved is None else load(saved, job.model, job.model_args).train(),
        )
        if context.is_chief and saved is None:
            reasons = differences_of(network.model, network.call) if claims_equivalence(job) and network.call else ()
            for note in (*network.notes, *equivalence_warnings(job.model, reasons)):
                context.events.emit("warning", message=note)
        return network

    def _feed(self, part: str) -> Feed:
        if part not in self._feeds:
            self._feeds[part] = feed_of(getattr(self._context.data, part), self._columns, self._replica.device)
        return self._feeds[part]

    def begin_epoch(self, schedule: Schedule) -> None:
        partition = schedule.partition(self._replica.rank)
        self._offsets, self._batches = partition.offsets.tolist(), partition.batch.tolist()
        self._train.begin(partition.indices, partition.offsets, self.epoch)

    def rows_of(self, step: int) -> Batch:
        """The examples of a step; one step after another."""
        return self._train.batch(self._offsets[step], self._offsets[step + 1])

    def batch_of(self, step: int) -> int:
        """The examples of a step over all processes."""
        return int(self._batches[step])

    def train(self, first: int, last: int, stepper: Stepper) -> Counts:
        if not isinstance(self._objective, OwnObjective):
            return self._steps(first, last, stepper)
        # The learner adds up and scales in one operation. FSDP warns of modules that return views, which losses may be.
        self._objective.adds_up = self._replica.together
        try:
            return self._steps(first, last, stepper)
        finally:
            self._objective.adds_up = True

    def _steps(self, first: int, last: int, stepper: Stepper) -> Counts:
        objective, forward, tally = self._objective, stepper.forward, Tally(self._objective)
        by_examples, counts_first = objective.by_examples, not objective.changes_tensors
        for step in range(first, last):
            low, high = self._offsets[step], self._offsets[step + 1]
            if low == high:
                idle = stepper.idle_loss()  # where forward passes wait for one another, the sum comes after them
                stepper.step(idle, self._batches[step] if by_examples else stepper.sum(0) or 1)
                continue
            batch = self._train.batch(low, high)
            loss = forward(batch.inputs, batch.targets)
            whole = self._batches[step] if by_examples else stepper.sum(objective.total) or 1
            if counts_first:
                tally.add(loss.detach(), batch)
                del batch  # the backward pass ends its use: the optimizer has more of the processor's cache
                stepper.step(loss, whole)
            else:
                stepper.step(loss, whole)
                tally.add(loss.detach(), batch)
                del batch
            del loss  # the next batch takes the memory of this one, which is in the cache
        return tally.counts(self._context.task.counted)

    def evaluate(self, part: Part) -> EvaluationCounts:
        data, objective, module = self._context.data, self._objective, self._module
        examples, chosen = len(getattr(data, part)), self._feed(part)
        mine, offsets = self._replica.evaluation_batches(examples, EVALUATION_BATCH)
        chosen.begin(mine, offsets)
        tally, found = Tally(objective, part), _Answers(examples, mine, self._learns.scored)
        module.eval()
        with torch.no_grad():  # a model may keep tensors, which inference_mode would spoil for training
            for low, high in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
                batch = chosen.batch(low, high)
                loss = module(batch.inputs, batch.targets)
                found.add(low, high, objective.right(batch), objective.scores(batch))
                if found.is_class and data.classes <= MAX_CONFUSION_CLASSES:
                    found.confuse(batch.y, objective.outputs, data.classes)
                tally.add(loss, batch)
                self._context.status.seen += 1
        module.train()
        classes = data.classes if self._context.task.name == "classification" else None
        return found.counts(tally.counts(self._context.task.counted), classes, self._width(data))

    def _width(self, data: Any) -> int:
        return int(np.prod(data.targets[0].shape)) if data.targets else 1

    def description(self) -> dict[str, Any]:
        data, pixels, context = self._context.data, self._network.pixels, self._context
        shape = input_shape_of(data)
        given = arguments_of(context.job, data, self._learns)
        return {
            "kind": "arrays", "task": context.task.name, "dataset": data.name,
            "inputs": {one.name: {"shape": list(one.shape), "dtype": one.dtype} for one in data.inputs},
            "images": sorted(data.images), "classes": data.classes, "class_names": list(data.class_names),
            "input_shape": shape, "returns": self._learns.outputs(data), "arguments": given,
            **(pixels.description() if pixels else {}), **self._network.saved_as,
        }

    def write_extra_files(self, folder: Path) -> None:
        if columns := self._context.data.columns:
            text = json.dumps(columns, ensure_ascii=False, indent=2)
            files.write_text(folder / COLUMNS, text + "\n", sync=False)


def _task_of(context: Context) -> ExampleTask:
    assert isinstance(context.task, ExampleTask), "arrays are examples"
    return context.task


class Tally:
    """Sums over batches, of which nothing is read back from the device before the end."""

    def __init__(self, objective: Any, part: str = "train") -> None:
        self._objective, self._part, self._total = objective, part, 0
        self._losses: list[torch.Tensor] = []
        self._sums: list[Sequence[torch.Tensor | float]] = []
        self._deferred = isinstance(objective, OutputObjective)
        self._outputs: list[torch.Tensor] = []
        self._targets: list[torch.Tensor] = []
        self._pending = 0

    def add(self, loss: torch.Tensor, batch: Batch) -> None:
        """Count the batch of the objective's last loss."""
        self._total += self._objective.total
        self._losses.append(loss)
        if not self._deferred:
            self._sums.append(self._objective.count(batch, self._part))
            return
        self._outputs.append(self._objective.outputs)
        self._targets.append(batch.y)
        self._pending += self._objective.outputs.numel()
        if self._pending > _PENDING_NUMBERS:
            self._flush()

    def _flush(self) -> None:
        if not self._outputs:
            return
        together = torch.cat(self._outputs), torch.cat(self._targets)
        self._objective.outputs = together[0]
        self._sums.append(self._objective.count(Batch({}, {"y": together[1]}), self._part))
        self._outputs, self._targets, self._pending = [], [], 0

    def counts(self, names: Sequence[str]) -> Counts:
        self._flush()
        joined = torch.cat if self._losses and self._losses[0].ndim else torch.stack
        loss = float(joined(self._losses).sum(dtype=torch.float64)) if self._losses else 0.0
        sums = [_added(values) for values in zip(*self._sums, strict=True)] if self._sums else [0.0] * len(names)
        own = {name: int(value) if value.is_integer() else value for name, value in zip(names, sums, strict=True)}
        return Counts(round(self._total), loss, own)


def _added(values: Sequence[torch.Tensor | float]) -> float:
    """The sum of numbers, most of which are on the device."""
    tensors = [each.reshape(()) if each.ndim else each for each in values if isinstance(each, torch.Tensor)]
    plain = math.fsum(each for each in values if not isinstance(each, torch.Tensor))
    return plain + (float(torch.stack(tensors).sum(dtype=torch.float64)) if tensors else 0.0)


class _Answers:
    """What an evaluation knows of single examples: which are right, their scores, and a confusion matrix."""

    def __init__(self, examples: int, mine: np.ndarray, scored: bool) -> None:
        self._examples, self._mine, self._scored = examples, mine, scored
        self._right: list[torch.Tensor] = []
        self._scores: list[torch.Tensor] = []
        self._pairs: np.ndarray | None = None
        self.is_class = False

    def add(self, low: int, high: int, right: torch.Tensor | None, scores: torch.Tensor | None) -> None:
        self.is_class = right is not None and scores is None
        if right is not None:
            self._right.append(right)
        if scores is not None:
            self._scores.append(scores)

    def confuse(self, labels: torch.Tensor, outputs: torch.Tensor, classes: int) -> None:
        pairs = torch.bincount(labels * classes + torch.argmax(outputs, 1), minlength=classes**2)
        found = pairs.double().cpu().numpy()
        self._pairs = found if self._pairs is None else self._pairs + found

    def counts(self, counts: Counts, classes: int | None, width: int) -> EvaluationCounts:
        confusion = scores = None
        answers = None
        if classes is not None and classes <= MAX_CONFUSION_CLASSES:
            confusion = np.zeros(classes**2) if self._pairs is None else self._pairs
        if classes is not None or self._scored:
            answers = np.zeros(self._examples, np.bool_)
            if self._right:
                answers[self._mine] = torch.cat(self._right).cpu().numpy()
        if self._scored:
            table = np.zeros((self._examples, width))
            if self._scores:
                table[self._mine] = torch.cat(self._scores).double().cpu().numpy()
            scores = table.ravel()
        return EvaluationCounts(counts, confusion, answers, scores)


TASK = ArrayTask
