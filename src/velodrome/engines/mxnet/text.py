"""Training a language model under MXNet: rows of a text side by side, whose state is carried from step to step."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

from velodrome import files
from velodrome.engines.mxnet.learner import MxnetLearner, restore
from velodrome.models import mxnet_zoo
from velodrome.models.recipe import VOCABULARY
from velodrome.tasks.counts import Counts
from velodrome.tasks.schedule import TextSchedule, evaluation_rows
from velodrome.transport.base import Transport
from velodrome.worker.context import Context
from velodrome.worker.learner import Part


class Counting(gluon.HybridBlock):
    """The sum of the losses of a batch of words, and the state after them."""

    def __init__(self, network: Any) -> None:
        super().__init__(prefix="")
        self.network = network

    def hybrid_forward(self, F: Any, words: Any, targets: Any, hidden: Any, cell: Any) -> Any:  # noqa: N803 (Gluon's name)
        logits, (hidden, cell) = self.network(words, hidden, cell)
        losses = -F.pick(F.log_softmax(F.reshape(logits, (-1, 0), reverse=True)), F.reshape(targets, -1))
        return F.reshape(F.sum(losses), (1,)), hidden, cell


class TextLearner(MxnetLearner):
    """Trains on the rows of a text that are this worker's."""

    def __init__(self, context: Context, transport: Transport, store: Any) -> None:
        self._text = context.data
        super().__init__(context, transport, store)

    def _build(self) -> Any:
        job = self._context.job
        return mxnet_zoo.build_text(job.model, len(self._text.vocabulary), job.seed, job.weights_dtype)

    def _load(self, folder: Path) -> Any:
        return restore(self._build(), folder, self._context.job.weights_dtype)

    def begin_epoch(self, schedule: TextSchedule) -> None:
        self._schedule = schedule
        self._rows = schedule.rows(self._text.train, self._transport.rank)
        self._state = self._network.initial_state(max(len(self._rows), 1), self._context.job.weights_dtype)

    def _with_loss(self) -> Any:
        return Counting(self._network)

    def _train_step(self, step: int) -> Callable[[], Counts]:
        unroll = self._schedule.unroll
        # Under asp a worker has rows of its own, and every n-th step of the epoch is its.
        number = step if self._synchronous else step // self._transport.size
        has_rows = len(self._rows) > 0
        rows = self._rows if has_rows else np.zeros((1, self._schedule.width + 1), np.int32)
        first = number * unroll
        words = mx.nd.array(rows[:, first : first + unroll].T)
        targets = mx.nd.array(rows[:, first + 1 : first + 1 + unroll].T)
        with autograd.record():
            loss, hidden, cell = self._counting(words, targets, *self._state)
        weight = mx.nd.array([has_rows / self._schedule.batch], dtype=self._context.job.weights_dtype)
        autograd.backward([loss], [weight])
        # Truncated back-propagation: the state continues into the next step, the gradient does not.
        self._state = [hidden.detach(), cell.detach()]

        def count() -> Counts:
            return Counts(rows.shape[0] * unroll, float(loss.asscalar())) if has_rows else Counts()

        return count

    def evaluate(self, part: Part) -> Counts:
        read = evaluation_rows(getattr(self._text, part), self._transport.rank, self._transport.size)
        unroll, loss_sum = self._context.job.unroll, 0.0
        if len(read.inputs):
            state = self._network.initial_state(len(read.inputs), self._context.job.weights_dtype)
            for first in range(0, read.inputs.shape[1], unroll):
                columns = slice(first, first + unroll)
                logits, state = self._network(mx.nd.array(read.inputs[:, columns].T), *state)
                targets = mx.nd.array(read.targets[:, columns].T).reshape(-1)
                losses = self._loss(logits.reshape((-1, 0), reverse=True), targets).asnumpy()
                loss_sum += float((losses.astype(np.float64) * read.real[:, columns].T.reshape(-1)).sum())
                self._context.status.seen += 1
        return self.sum_counts(Counts(int(read.real.sum(dtype="float64")), loss_sum))

    def _description(self) -> dict[str, Any]:
        return {"kind": "text", "vocabulary": len(self._text.vocabulary), "dataset": self._text.name}

    def save(self, folder: Path) -> None:
        super().save(folder)
        words = json.dumps(self._text.vocabulary, ensure_ascii=False)
        files.write_text(folder / VOCABULARY, words + "\n", sync=False)
