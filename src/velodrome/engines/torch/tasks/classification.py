"""Training on images with labels: batches by the epoch's order, evaluation with a confusion matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from velodrome.engines.torch.feed import Examples, examples_of
from velodrome.engines.torch.model_checks import differences_of
from velodrome.engines.torch.network import Network, build
from velodrome.engines.torch.tasks.base import EvaluationCounts, Replica, Stepper, TorchTask
from velodrome.models.equivalence import claims_equivalence, equivalence_warnings
from velodrome.tasks.counts import Counts
from velodrome.tasks.schedule import Schedule
from velodrome.worker.context import Context
from velodrome.worker.learner import Part

EVALUATION_BATCH = 512
#: A confusion matrix of more classes is unreadable and large.
MAX_CONFUSION_CLASSES = 100


class ClassificationTask(TorchTask):
    """Trains on the images of this process's partition."""

    def __init__(self, context: Context, network: Network, replica: Replica) -> None:
        super().__init__(context, network, replica)
        assert network.pixels is not None, "a network of images"
        self._pixels = network.pixels
        self._parts: dict[str, Examples] = {}
        self._train = self._examples("train")

    @classmethod
    def network(cls, context: Context, device: torch.device) -> Network:
        network = build(context.job, context.data, device, evaluation_batch=EVALUATION_BATCH)
        if context.is_chief:
            job, sample = context.job, network.sample
            reasons = (
                differences_of(network.model, lambda model: model(sample()))
                if claims_equivalence(job) and sample else ()
            )
            for note in (*network.notes, *equivalence_warnings(job.model, reasons)):
                context.events.emit("warning", message=note)
        return network

    def _examples(self, part: str) -> Examples:
        if part not in self._parts:
            self._parts[part] = examples_of(
                self._context.data, part, self._context.job, self._replica.device,
                channels_last=self._network.channels_last, pixels=self._pixels,
            )
        return self._parts[part]

    def begin_epoch(self, schedule: Schedule) -> None:
        partition = schedule.partition(self._replica.rank)
        self._offsets, self._batches = partition.offsets.tolist(), partition.batch.tolist()
        self._labels = self._train.begin(partition.indices, partition.offsets)

    def train(self, first: int, last: int, stepper: Stepper) -> Counts:
        device = self._replica.device
        start, end = self._offsets[first], self._offsets[last]
        predicted = torch.empty(end - start, dtype=torch.int64, device=device)
        losses: list[torch.Tensor] = []
        images, loss_of, minimum = self._train.images, self._network.loss, self._network.minimum_batch
        offsets, batches, labels, forward, step_with = (
            self._offsets, self._batches, self._labels, stepper.forward, stepper.step
        )
        for step in range(first, last):
            low, high = offsets[step], offsets[step + 1]
            count = high - low
            if count >= minimum:
                outputs = forward(images(low, high))
            elif count:
                outputs = forward(self._padded(low, high))[:count]
            else:
                step_with(None, batches[step])
                continue
            loss = loss_of(outputs, labels[low:high])
            step_with(loss, batches[step])
            losses.append(loss.detach())
            torch.argmax(outputs.detach(), 1, out=predicted[low - start : high - start])
        correct = (predicted == labels[start:end]).sum()
        loss_sum = torch.stack(losses).sum(dtype=torch.float64) if losses else torch.zeros((), dtype=torch.float64)
        return Counts(end - start, float(loss_sum), {"correct": int(correct)})

    def images_of(self, step: int) -> torch.Tensor:
        """The images of a step."""
        return self._train.images(self._offsets[step], self._offsets[step + 1])

    def labels_of(self, step: int) -> torch.Tensor:
        return self._labels[self._offsets[step] : self._offsets[step + 1]]

    def batch_of(self, step: int) -> int:
        """The examples of a step over all processes."""
        return int(self._batches[step])

    def _padded(self, low: int, high: int) -> torch.Tensor:
        """At least the model's minimum batch: the images of the step repeated; the extra ones are not counted."""
        return self._train.images(low, high).repeat(self._network.minimum_batch, 1, 1, 1)

    def evaluate(self, part: Part) -> EvaluationCounts:
        data, device, model = self._context.data, self._replica.device, self._network.forward
        examples = self._examples(part)
        mine, offsets = self._replica.evaluation_batches(len(examples), EVALUATION_BATCH)
        labels = examples.begin(mine, offsets)
        predicted = torch.empty(len(mine), dtype=torch.int64, device=device)
        loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        model.eval()
        with torch.no_grad():  # a model may keep tensors, which inference_mode would spoil for training
            for low, high in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
                outputs = model(examples.images(low, high))
                torch.argmax(outputs, 1, out=predicted[low:high])
                loss_sum += self._network.evaluation_loss(outputs, labels[low:high])
                self._context.status.seen += 1
        model.train()
        right = (predicted == labels).cpu().numpy()
        counts = Counts(len(mine), float(loss_sum), {"correct": int(right.sum())})
        answers = np.zeros(len(examples), np.bool_)
        answers[mine] = right
        if data.classes > MAX_CONFUSION_CLASSES:
            return EvaluationCounts(counts, None, answers)
        pairs = torch.bincount(labels * data.classes + predicted, minlength=data.classes**2)
        return EvaluationCounts(counts, pairs.double().cpu().numpy(), answers)

    def description(self) -> dict[str, Any]:
        data = self._context.data
        height, width, channels = data.input_shape
        return {
            "input_shape": [channels, height, width], "classes": data.classes, "dataset": data.name,
            **self._pixels.description(), **self._network.saved_as,
        }


TASK = ClassificationTask
