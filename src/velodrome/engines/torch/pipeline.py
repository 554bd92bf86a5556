"""`pipeline`: each process has some of a model's layers. A batch passes through all of them in micro-batches, by
PyTorch's `torch.distributed.pipelining`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.distributed as distributed
import torch.nn.functional as functional
from safetensors.torch import load as unpack
from safetensors.torch import save as pack
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from velodrome.engines.torch.learner import TorchLearner
from velodrome.engines.torch.optimizer import Gradients, Optimizer, make_optimizer, squared_norm
from velodrome.engines.torch.process_group import (
    ProcessGroup,
    translate_errors_of_collectives,
    translate_peer_errors,
)
from velodrome.engines.torch.stages import Stage, chain_of, cuts_of, given_stages, groups_of, owners_of, seconds_of
from velodrome.engines.torch.tasks.classification import ClassificationTask
from velodrome.errors import BadRequest
from velodrome.tasks.counts import Counts
from velodrome.worker import checkpoint
from velodrome.worker.learner import Part, State

#: A label that the loss leaves out: of examples that fill a batch.
_NO_LABEL = -100
#: What the names of the optimizer's state of one stage begin with in a checkpoint; its number follows.
_STAGE = "stage."


class _Pipe(nn.Module):
    """What evaluation calls in every process, with the same images: they pass through all stages."""

    def __init__(self, learner: PipelineLearner, stage: Stage) -> None:
        super().__init__()
        self.stage, self._evaluated = stage, learner.outputs_of

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self._evaluated(images)


class PipelineLearner(TorchLearner):
    """One process's layers. All processes count the same: what the last one finds out."""

    _state: State | None = None

    def _make_optimizer(self) -> Optimizer:
        job, transport = self._context.job, self._transport
        assert isinstance(transport, ProcessGroup)
        self._group, self._micro_batches = transport.group, job.micro_batches or 1
        self._is_first, self._is_last = transport.rank == 0, transport.rank == transport.size - 1
        self._refuse()
        layers = chain_of(job.model, self._model)
        self._owners = self._divide(layers)
        mine = [layer for (_, layer), owner in zip(layers, self._owners, strict=True) if owner == transport.rank]
        for parameter in self._model.parameters():
            parameter.data = parameter.data.contiguous()
        self._stage_of = {name: owner for (name, _), owner in zip(layers, self._owners, strict=True)}
        for (_, layer), owner in zip(layers, self._owners, strict=True):
            if owner != transport.rank:
                layer.to("meta")  # shapes without memory
        self._stage = Stage(*mine)
        self._trained = [parameter for parameter in self._stage.parameters() if parameter.requires_grad]
        self._network = replace(self._network, adapter=_Pipe(self, self._stage))
        self._evaluations: dict[int, Any] = {}
        self._training: Any = None
        self._scale, self._padded = 1.0, 0
        return make_optimizer(job, self._trained)

    def _refuse(self) -> None:
        """Refuse what does not pass through a chain of layers as it is."""
        job, network = self._context.job, self._network
        if network.pixels is None or not hasattr(self._context.data.train, "images"):
            raise BadRequest(f"--strategy pipeline: it trains classifiers of images, and {job.model!r} is none here; "
                             "choose another strategy")
        if network.adapter is not None:
            raise BadRequest(f"--strategy pipeline: model {job.model!r} must return logits, and compute in its own "
                             "format (no --dtype bfloat16); choose another strategy")

    def _divide(self, layers: list[tuple[str, nn.Module]]) -> list[int]:
        """The stage of every layer: as the model says, or as rank 0 finds it out; a resumed run keeps its stages."""
        context, size, names = self._context, self._transport.size, [name for name, _ in layers]
        groups = groups_of(context.job.model, layers, size)
        given = getattr(self._model, "stage_starts", None)
        stages = np.zeros(len(layers), np.int64)
        if given is not None:
            stages[:] = given_stages(context.job.model, layers, [str(name) for name in given], size)
        elif self._is_first:
            before = checkpoint.latest(context.folder) if context.resume else None
            kept = before.state.get("stages") if before is not None else None
            stages[:] = owners_of(groups, self._cuts(layers, groups)) if kept is None else kept
        with context.waiting():
            self._transport.broadcast(stages)
        self._stages = stages
        members = ["+".join(name for name, stage in zip(names, stages, strict=True) if stage == each)
                   for each in range(size)]
        self.path = f"stages {' | '.join(members)}"
        return [int(stage) for stage in stages]

    def _cuts(self, layers: list[tuple[str, nn.Module]], groups: list[list[int]]) -> list[int]:
        job, (height, width, channels) = self._context.job, self._context.data.input_shape
        count = -(-job.batch_size // self._micro_batches)
        like = next(self._model.parameters())
        images = torch.rand(count, channels, height, width, dtype=like.dtype, device=like.device)
        seconds = seconds_of([layer for _, layer in layers], images)
        return cuts_of([sum(seconds[number] for number in group) for group in groups], self._transport.size)

    # -- training

    def agree(self, number: int) -> int:
        agreed = np.array([number], np.int64)
        with self._context.waiting():
            self._transport.broadcast(agreed)
        return int(agreed[0])

    def begin_epoch(self, schedule: Any) -> None:
        super().begin_epoch(schedule)
        largest = schedule.in_parts(self._accumulate).sizes()[0]
        self._padded = -(-largest // self._micro_batches) * self._micro_batches

    def train(self, first: int, last: int) -> Counts:
        if self._rates is not None:
            self._next_rates = iter(self._rates[first:last].tolist())
        task = self._task
        assert isinstance(task, ClassificationTask)
        found = np.zeros(3)
        with translate_errors_of_collectives():
            for step in range(first * self._accumulate, last * self._accumulate):
                found += self._passed(task, step)
        with self._context.waiting():
            self._transport.broadcast(found, self._transport.size - 1)
        total, loss, correct = found.tolist()
        return Counts(round(total), loss, {"correct": round(correct)})

    def _passed(self, task: ClassificationTask, step: int) -> np.ndarray[Any, Any]:
        """Let the batch of a step pass through the stages; examples, summed loss and right answers, in the last one."""
        if self._training is None:
            kind = Schedule1F1B if self._context.job.pipeline_schedule == "1f1b" else ScheduleGPipe
            self._training = kind(self._new_stage(), self._micro_batches, loss_fn=self._loss, scale_grads=False)
            self._stage.forget_first_call()
        self._added = (self._added + 1) % self._accumulate
        if self._added == 1 % self._accumulate:
            for parameter in self._trained:
                parameter.grad = None
        losses: list[torch.Tensor] = []
        self._scale = 1 / task.batch_of(step)
        given = [self._filled(task.images_of(step))] if self._is_first else []
        targets: dict[str, Any] = {}
        if self._is_last:
            labels = task.labels_of(step)
            missing = self._padded - len(labels)
            targets = {"target": functional.pad(labels, (0, missing), value=_NO_LABEL), "losses": losses}
        with self._context.waiting():  # a stage computes, or waits for another one
            outputs = self._training.step(*given, **targets)
        if self._added == 0:
            self._update([parameter.grad for parameter in self._trained])
        if not self._is_last:
            return np.zeros(3)
        right = (outputs.detach()[: len(labels)].argmax(1) == labels).sum()
        loss = torch.stack(losses).detach().sum(dtype=torch.float64) / self._scale
        return np.array([len(labels), float(loss), float(right)])

    def _new_stage(self) -> PipelineStage:
        return PipelineStage(self._stage, self._transport.rank, self._transport.size, self._device, group=self._group)

    def _loss(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self._network.loss(outputs, labels) * self._scale

    def _filled(self, images: torch.Tensor, size: int | None = None) -> torch.Tensor:
        """As many images as a batch has: they come round again where there are fewer."""
        wanted = size or self._padded
        filled = images if len(images) == wanted else images[torch.arange(wanted, device=images.device) % len(images)]
        return filled.contiguous()

    def _norm(self, gradients: Gradients) -> float:
        squares = np.array([squared_norm(gradients)])
        with self._context.waiting():
            self._transport.all_reduce(squares)
        return float(squares[0]) ** 0.5

    # -- evaluation

    def evaluate(self, part: Part) -> Counts:
        with translate_errors_of_collectives():
            return super().evaluate(part)

    def outputs_of(self, images: torch.Tensor) -> torch.Tensor:
        """What the last stage returns for these images, in every process."""
        count = -(-len(images) // self._micro_batches) * self._micro_batches
        if count not in self._evaluations:
            self._evaluations[count] = ScheduleGPipe(self._new_stage(), self._micro_batches)
        outputs = self._evaluations[count].step(*([self._filled(images, count)] if self._is_first else []))
        width = torch.tensor([outputs.shape[1] if self._is_last else 0])
        last = self._transport.size - 1
        with translate_peer_errors():
            distributed.broadcast(width, last, group=self._group)
            if not self._is_last:
                outputs = images.new_empty(count, int(width))
            distributed.broadcast(outputs, last, group=self._group)
        return outputs[: len(images)]

    # -- state

    def _owned(self) -> Iterator[tuple[str, torch.Tensor, int]]:
        """Every tensor of the model with its name and the process that has it."""
        for name, value in self._model.state_dict().items():
            if isinstance(value, torch.Tensor):
                yield name, value, self._stage_of[name.partition(".")[0]]

    def _whole_model(self) -> dict[str, torch.Tensor]:
        assert isinstance(self._transport, ProcessGroup)
        found = {name: self._transport.bring(value, owner) for name, value, owner in self._owned()}
        return {name: value for name, value in found.items() if value is not None}

    def collect_model(self) -> None:
        with self._averaged():
            self._collected = self._whole_model()

    def collect_state(self) -> None:
        assert isinstance(self._transport, ProcessGroup)
        model = self._whole_model()
        packed = pack({name: value.detach().cpu().contiguous() for name, value in self._optimizer.state().items()})
        states = [unpack(each) for each in self._transport.collect(packed)]
        self._state = {f"model.{name}": value.numpy() for name, value in model.items()} | {
            f"{_STAGE}{stage}.{name}": value.numpy()
            for stage, held in enumerate(states) for name, value in held.items()
        }

    def state(self) -> State:
        assert self._state is not None, "collected before"
        found, self._state = self._state, None
        return {**found, "epochs": np.array(self._epochs, dtype=np.int64), "stages": self._stages}

    def load(self, state: State) -> None:
        prefix = f"{_STAGE}{self._transport.rank}."
        with torch.no_grad():
            for name, value, owner in self._owned():
                if owner == self._transport.rank:
                    value.copy_(torch.from_numpy(np.array(state[f"model.{name}"])))
        self._optimizer.load({
            name.removeprefix(prefix): torch.from_numpy(np.array(value))
            for name, value in state.items() if name.startswith(prefix)
        })
        self._epochs = int(state["epochs"])
