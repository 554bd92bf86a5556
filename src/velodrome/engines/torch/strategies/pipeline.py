"""`pipeline`: each process has some of a model's layers. A batch passes through all of them in micro-batches, by
PyTorch's `torch.distributed.pipelining`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.distributed as distributed
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from velodrome.catalog.engines.torch import MICRO_BATCHES, PIPELINE_SCHEDULE
from velodrome.engines.torch.feed import Columns, dtype_of
from velodrome.engines.torch.fused_optimizer import make_optimizer
from velodrome.engines.torch.learner import TorchLearner
from velodrome.engines.torch.model_file import from_arrays, to_arrays
from velodrome.engines.torch.objectives import ObjectiveModule
from velodrome.engines.torch.optimizer import Gradients, Optimizer, squared_norm
from velodrome.engines.torch.process_group import (
    ProcessGroup,
    translate_errors_of_collectives,
    translate_peer_errors,
)
from velodrome.engines.torch.strategies.pipeline_stages import (
    Count,
    PassingBatch,
    Stage,
    chain_of,
    costs_of,
    cuts_of,
    given_stages,
    given_starts,
    groups_of,
    owners_of,
    refuse_small_parts,
    refuse_what_cannot_pass,
)
from velodrome.tasks.base import Counts
from velodrome.training import checkpoint
from velodrome.training.learner import Part, State

#: More axes than outputs have.
_MOST_AXES = 8
#: What the names of the optimizer's state of one stage begin with in a checkpoint; its number follows.
_STAGE = "stage."


class _Pipe(nn.Module):
    """What evaluation calls in every process, with the same inputs: they pass through all stages."""

    def __init__(self, learner: PipelineLearner, stage: Stage) -> None:
        super().__init__()
        self.stage, self._evaluated = stage, learner.outputs_of

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self._evaluated(inputs)


class PipelineLearner(TorchLearner):
    """One process's layers. All processes count the same: what the last one finds out."""

    _transport: ProcessGroup

    def _make_optimizer(self) -> Optimizer:
        job, transport = self._context.job, self._transport
        self._group, self._micro_batches = transport.group, MICRO_BATCHES.of(job) or 1
        self._is_first, self._is_last = transport.rank == 0, transport.rank == transport.size - 1
        refuse_what_cannot_pass(job, self._context.data, self._network)
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
        self._network = replace(self._network, module=ObjectiveModule(_Pipe(self, self._stage), self._objective))
        self._minimum_batch = self._objective.minimum_batch
        self._evaluations: dict[int, Any] = {}
        self._training: Any = None
        self._passing: PassingBatch | None = None
        self._padded, self._computed = 0, list[Count | None]()
        return make_optimizer(job, self._trained)

    @property
    def _drawing_rank(self) -> int:
        return self._transport.rank  # dropout of one stage has nothing to do with that of another

    def _divide(self, layers: list[tuple[str, nn.Module]]) -> list[int]:
        """The stage of every layer: as the model says, or as rank 0 finds it out; a resumed run keeps its stages."""
        context, size, names = self._context, self._transport.size, [name for name, _ in layers]
        groups = groups_of(context.job.model, layers, size)
        given = given_starts(context.job.model, self._model)
        stages = np.zeros(len(layers), np.int64)
        if given is not None:
            stages[:] = given_stages(context.job.model, layers, given, size)
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
        inputs = self._like_inputs(-(-self._context.job.batch_size // self._micro_batches))
        costs = costs_of([[layers[number][1] for number in group] for group in groups], inputs)
        return cuts_of(costs, self._transport.size)

    def _like_inputs(self, count: int) -> torch.Tensor:
        """What the first stage might take for this many examples."""
        data, network = self._context.data, self._network
        dtype, last = dtype_of(self._context.job), network.channels_last
        columns = Columns(data, dtype, self._device, channels_last=last, pixels=network.pixels)
        inputs: torch.Tensor = columns.batch(*data.train.gather(np.arange(count) % len(data.train))).x
        return inputs

    # -- training

    def agree(self, number: int) -> int:
        return self.number_of_first(number)

    def begin_epoch(self, schedule: Any) -> None:
        super().begin_epoch(schedule)
        largest = schedule.in_parts(self._accumulate).sizes()[0]
        self._padded = -(-largest // self._micro_batches) * self._micro_batches
        refuse_small_parts(self._context.job, self._minimum_batch, self._padded // self._micro_batches)

    def train(self, first: int, last: int) -> Counts:
        if self._rates is not None:
            self._next_rates = iter(self._rates[first:last].tolist())
        names = self._context.task.counted
        if self._passing is None:
            self._passing = PassingBatch(self._feed, self._objective, tuple(names), self._context.task.name)
        with translate_errors_of_collectives():
            for step in range(first * self._accumulate, last * self._accumulate):
                self._pass(self._passing, step)
        sums = self._passing.counts().vector(names)
        with self._context.waiting():
            self._transport.broadcast(sums, self._transport.size - 1)
        return Counts.of(sums, names)

    def _pass(self, batch: PassingBatch, step: int) -> None:
        """Let the batch of a step pass through the stages, and update the weights of this one."""
        if self._training is None:
            kind = Schedule1F1B if PIPELINE_SCHEDULE.of(self._context.job) == "1f1b" else ScheduleGPipe
            self._training = kind(self._new_stage(), self._micro_batches, loss_fn=self._loss, scale_grads=False)
            self._stage.forget_first_call()
        self._added = (self._added + 1) % self._accumulate
        if self._added == 1 % self._accumulate:
            for parameter in self._trained:
                parameter.grad = None
        if self._is_first or self._is_last:
            batch.enter(step)
        given = [self._filled(batch.inputs)] if self._is_first else []
        targets = {"target": torch.arange(self._padded)} if self._is_last else {}
        self._computed.clear()
        with self._context.waiting():  # a stage computes, or waits for another one
            self._training.step(*given, **targets)
        for count in self._computed[-self._micro_batches :]:  # any before them were losses of no data
            if count is not None:
                count()
        if self._added == 0:
            gradients = [parameter.grad for parameter in self._trained]
            self._update(gradients if batch.by_examples else self._divided(gradients, batch))

    def _divided(self, gradients: Gradients, batch: PassingBatch) -> Gradients:
        """Gradients of a sum, divided by what it is a sum over: the last stage knows it."""
        total = np.array([batch.total if self._is_last else 0.0])
        with self._context.waiting():
            self._transport.broadcast(total, self._transport.size - 1)
        return [None if each is None else each / (float(total[0]) or 1.0) for each in gradients]

    def _new_stage(self) -> PipelineStage:
        return PipelineStage(self._stage, self._transport.rank, self._transport.size, self._device, group=self._group)

    def _loss(self, outputs: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Of a micro-batch: examples at places that the batch does not have only fill it, and count nothing.

        PyTorch calls it once more, with outputs and places of no meaning, to find out shapes.
        """
        batch = self._passing
        assert batch is not None
        real = int((places < batch.examples).sum())
        if not real:
            self._computed.append(None)
            return outputs.sum() * 0
        loss, count = batch.loss(outputs[:real], places[:real].clamp(0, batch.examples - 1).to(outputs.device))
        self._computed.append(count)
        return loss / batch.batch if batch.by_examples else loss

    def _filled(self, inputs: torch.Tensor, size: int | None = None) -> torch.Tensor:
        """As many examples as a batch has: repeats examples if there are too few."""
        wanted = size or self._padded
        filled = inputs if len(inputs) == wanted else inputs[torch.arange(wanted, device=inputs.device) % len(inputs)]
        return filled.contiguous()

    def _norm(self, gradients: Gradients) -> float:
        (squares,) = self.sum_vector(np.array([squared_norm(gradients)]))
        return float(squares) ** 0.5

    # -- evaluation

    def evaluate(self, part: Part) -> Counts:
        with translate_errors_of_collectives():
            return super().evaluate(part)

    def outputs_of(self, inputs: torch.Tensor) -> torch.Tensor:
        """What the last stage returns for these inputs, in every process."""
        count = -(-len(inputs) // self._micro_batches) * self._micro_batches
        if count not in self._evaluations:
            self._evaluations[count] = ScheduleGPipe(self._new_stage(), self._micro_batches)
        outputs = self._evaluations[count].step(*([self._filled(inputs, count)] if self._is_first else []))
        shape = torch.zeros(_MOST_AXES, dtype=torch.int64)
        if self._is_last:
            shape[: outputs.ndim] = torch.tensor(outputs.shape)
        last = self._transport.size - 1
        with translate_peer_errors():
            distributed.broadcast(shape, last, group=self._group)
            if not self._is_last:
                outputs = torch.empty([size for size in shape.tolist() if size], dtype=self._trained[0].dtype,
                                      device=self._device)
            distributed.broadcast(outputs, last, group=self._group)
        return outputs[: len(inputs)]

    # -- state

    def _owned(self) -> Iterator[tuple[str, torch.Tensor, int]]:
        """Every tensor of the model with its name and the process that has it."""
        for name, value in self._model.state_dict().items():
            if isinstance(value, torch.Tensor):
                yield name, value, self._stage_of.get(name.partition(".")[0], 0)  # of no layer: all have it

    def _whole_model(self) -> dict[str, torch.Tensor]:
        tensors = {name: self._transport.bring(value, owner) for name, value, owner in self._owned()}
        return {name: value for name, value in tensors.items() if value is not None}

    def collect_model(self) -> None:
        with self._averaged():
            self._collected = self._whole_model()

    def collect_state(self) -> None:
        model = self._whole_model()
        states = self._transport.collect_states(_STAGE, to_arrays("", self._optimizer.state()))
        self._state = {**to_arrays("model.", model), "stages": self._stages, **states}

    def load(self, state: State) -> None:
        weights = from_arrays("model.", state)
        with torch.no_grad():
            for name, value, owner in self._owned():
                if owner == self._transport.rank:
                    value.copy_(weights[name])
        self._optimizer.load(from_arrays(f"{_STAGE}{self._transport.rank}.", state))
        self._epochs = int(state["epochs"])
