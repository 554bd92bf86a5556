"""Training a language model: rows of a text side by side. The state of each row is carried from step to step, where
the network has one; a network without state reads every step's words by themselves.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as functional
from torch import nn

from velodrome import files
from velodrome.engines.torch.network import Network, build_text
from velodrome.engines.torch.tasks.base import EvaluationCounts, Stepper, TorchTask
from velodrome.models.recipe import VOCABULARY
from velodrome.models.torch_zoo import LstmState
from velodrome.tasks.counts import Counts
from velodrome.tasks.schedule import TextSchedule, Words, evaluation_rows
from velodrome.worker.context import Context
from velodrome.worker.learner import Part


class LanguageModelTask(TorchTask):
    """Trains on the rows of a text that are this process's."""

    @classmethod
    def network(cls, context: Context, device: torch.device) -> Network:
        return build_text(context.job, len(context.data.vocabulary), device)

    def begin_epoch(self, schedule: TextSchedule) -> None:
        rows = self._tensor(schedule.rows(self._context.data.train, self._replica.rank))
        ends = [len(rows) * part // schedule.parts for part in range(schedule.parts + 1)]
        #: The rows of each part of a step; the last has some unless none has.
        self._parts = [rows[low:high] for low, high in pairwise(ends)]
        self._unroll, self._batch = schedule.unroll, schedule.batch
        self._states = [self._initial_state(len(part)) for part in self._parts]

    def _initial_state(self, rows: int) -> LstmState | None:
        """The state at the beginning of a text; None for a network that carries none."""
        begin = getattr(self._network.model, "initial_state", None)
        found: LstmState | None = None if begin is None else begin(rows)
        return found

    def _tensor(self, words: Words) -> torch.Tensor:
        return torch.from_numpy(words).to(self._replica.device, torch.int64)

    def train(self, first: int, last: int, stepper: Stepper) -> Counts:
        losses: list[torch.Tensor] = []
        words = 0
        for number in range(first, last):
            step, part = divmod(number, len(self._parts))
            rows, columns = self._parts[part], slice(step * self._unroll, (step + 1) * self._unroll)
            if not len(rows):
                stepper.step(None, self._batch)
                continue
            inputs, targets = rows[:, columns], rows[:, 1:][:, columns]
            loss, self._states[part] = _loss(stepper.forward, inputs, targets, self._states[part])
            stepper.step(loss, self._batch)
            losses.append(loss.detach())
            words += targets.numel()
        return Counts(words, float(torch.stack(losses).sum(dtype=torch.float64)) if losses else 0.0)

    def evaluate(self, part: Part) -> EvaluationCounts:
        read = evaluation_rows(getattr(self._context.data, part), self._replica.rank, self._replica.size)
        if self._replica.together:
            read = read.with_a_row()
        model, unroll = self._network.forward, self._context.job.unroll
        loss_sum = torch.zeros((), dtype=torch.float64, device=self._replica.device)
        model.eval()
        if len(read.inputs):
            inputs, targets = self._tensor(read.inputs), self._tensor(read.targets)
            real = torch.from_numpy(read.real).to(self._replica.device)
            state = self._initial_state(len(inputs))
            with torch.no_grad():
                for first in range(0, inputs.shape[1], unroll):
                    columns = slice(first, first + unroll)
                    counted = real[:, columns].flatten() if state is None else real[:, columns].t().flatten()
                    logits, expected, state = _read(model, inputs[:, columns], targets[:, columns], state)
                    losses = functional.cross_entropy(logits, expected, reduction="none")
                    loss_sum += (losses * counted).sum(dtype=torch.float64)
                    self._context.status.seen += 1
        model.train()
        return EvaluationCounts(Counts(int(read.real.sum(dtype="float64")), float(loss_sum)))

    def description(self) -> dict[str, Any]:
        text = self._context.data
        about = {"kind": "text", "vocabulary": len(text.vocabulary), "dataset": text.name}
        carries = hasattr(self._network.model, "initial_state")
        return about if carries else {**about, "context": self._context.job.unroll}

    def write_extra_files(self, folder: Path) -> None:
        words = json.dumps(self._context.data.vocabulary, ensure_ascii=False)
        files.write_text(folder / VOCABULARY, words + "\n", sync=False)


def _loss(
    forward: nn.Module, words: torch.Tensor, targets: torch.Tensor, state: LstmState | None
) -> tuple[torch.Tensor, LstmState | None]:
    """The summed loss of words, and the state after them. The logits end here: the backward pass takes their memory,
    which is the largest of all with a large vocabulary."""
    logits, expected, state = _read(forward, words, targets, state)
    return functional.cross_entropy(logits, expected, reduction="sum"), state


def _read(
    forward: nn.Module, words: torch.Tensor, targets: torch.Tensor, state: LstmState | None
) -> tuple[torch.Tensor, torch.Tensor, LstmState | None]:
    """Logits (words, vocabulary) and the targets in the same order, which is that of the logits in memory; the state
    after the words."""
    if state is None:
        return forward(words).flatten(0, 1), targets.flatten(), None
    logits, (hidden, cell) = forward(words, state)
    # Truncated back-propagation: the state continues into the next step, the gradient does not.
    return logits.transpose(0, 1).flatten(0, 1), targets.t().flatten(), (hidden.detach(), cell.detach())


TASK = LanguageModelTask
