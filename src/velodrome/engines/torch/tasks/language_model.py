"""Training a language model: rows of a text side by side, what is remembered of each carried from step to step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as functional

from velodrome import files
from velodrome.engines.torch.network import Network, build_text
from velodrome.engines.torch.tasks.base import Seen, Stepper, TorchTask
from velodrome.models.torch_zoo import Memory
from velodrome.tasks.counts import Counts
from velodrome.tasks.text_schedule import TextSchedule, Words, evaluation_rows
from velodrome.worker.context import Context
from velodrome.worker.learner import Part

VOCABULARY = "vocabulary.json"


class LanguageModelTask(TorchTask):
    """The rows of a text that this process reads."""

    @classmethod
    def network(cls, context: Context, device: torch.device) -> Network:
        return build_text(context.job, len(context.data.vocabulary), device)

    def begin_epoch(self, schedule: TextSchedule) -> None:
        rows = self._tensor(schedule.rows(self._context.data.train, self._place.rank))
        self._inputs, self._targets = rows[:, :-1], rows[:, 1:]
        self._unroll, self._batch = schedule.unroll, schedule.batch
        self._memory: Memory = self._network.model.fresh(len(rows))

    def _tensor(self, words: Words) -> torch.Tensor:
        return torch.from_numpy(words).to(self._place.device, torch.int64)

    def train(self, first: int, last: int, stepper: Stepper) -> Counts:
        losses: list[torch.Tensor] = []
        for step in range(first, last):
            columns = slice(step * self._unroll, (step + 1) * self._unroll)
            logits, memory = stepper.forward(self._inputs[:, columns], self._memory)
            loss = functional.cross_entropy(_by_word(logits), self._targets[:, columns].t().flatten(), reduction="sum")
            # The gradient ends with the step; the memory goes on.
            self._memory = memory[0].detach(), memory[1].detach()
            stepper.step(loss, self._batch)
            losses.append(loss.detach())
        words = (last - first) * self._unroll * len(self._inputs)
        return Counts(words, float(torch.stack(losses).sum(dtype=torch.float64)))

    def evaluate(self, part: Part) -> Seen:
        read = evaluation_rows(getattr(self._context.data, part), self._place.rank, self._place.size)
        model, unroll = self._network.model, self._context.job.unroll
        loss_sum = torch.zeros((), dtype=torch.float64, device=self._place.device)
        model.eval()
        if len(read.inputs):
            inputs, targets = self._tensor(read.inputs), self._tensor(read.targets)
            real = torch.from_numpy(read.real).to(self._place.device)
            memory = model.fresh(len(inputs))
            with torch.inference_mode():
                for first in range(0, inputs.shape[1], unroll):
                    columns = slice(first, first + unroll)
                    logits, memory = model(inputs[:, columns], memory)
                    losses = functional.cross_entropy(
                        _by_word(logits), targets[:, columns].t().flatten(), reduction="none"
                    )
                    loss_sum += (losses * real[:, columns].t().flatten()).sum(dtype=torch.float64)
                    self._context.status.seen += 1
        model.train()
        return Seen(Counts(int(read.real.sum(dtype="float64")), float(loss_sum)))

    def description(self) -> dict[str, Any]:
        text = self._context.data
        return {"kind": "text", "vocabulary": len(text.vocabulary), "dataset": text.name}

    def write_beside(self, folder: Path) -> None:
        words = json.dumps(self._context.data.vocabulary, ensure_ascii=False)
        files.write_text(folder / VOCABULARY, words + "\n", sync=False)


def _by_word(logits: torch.Tensor) -> torch.Tensor:
    """(words, vocabulary), column by column, which is how they lie in memory."""
    return logits.transpose(0, 1).flatten(0, 1)


TASK = LanguageModelTask
