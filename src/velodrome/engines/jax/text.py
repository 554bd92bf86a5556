"""Training a language model under JAX: rows of a text side by side, whose state is carried from step to step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.sharding import Mesh

from velodrome import files
from velodrome.engines.jax.division import Arrays, in_all, in_each, local
from velodrome.engines.jax.images import cross_entropy
from velodrome.engines.jax.learner import JaxLearner, Made
from velodrome.models import jax_zoo
from velodrome.models.recipe import VOCABULARY
from velodrome.tasks.counts import Counts
from velodrome.tasks.schedule import EVALUATION_ROWS, TextSchedule, evaluation_rows
from velodrome.transport.base import Transport
from velodrome.worker.context import Context
from velodrome.worker.learner import Part


class Feed(NamedTuple):
    """The rows of this process, and 1 for each of them; rows that only fill up have 0."""

    rows: Any
    counted: Any


class TextLearner(JaxLearner):
    """Trains on the rows of a text that are this process's."""

    def __init__(self, context: Context, transport: Transport, mesh: Mesh) -> None:
        self._text, self._unroll = context.data, context.job.unroll
        super().__init__(context, transport, mesh)
        self._evaluate_columns = jax.jit(self._look)

    def _build(self) -> jax_zoo.TextNetwork:
        job = self._context.job
        return jax_zoo.build_text(job.model, len(self._text.vocabulary), job.unroll, job.seed, job.weights_dtype)

    # -- training

    def begin_epoch(self, schedule: TextSchedule) -> None:
        self._collected = None
        rows = schedule.rows(self._text.train, self._transport.rank)
        most = -(-schedule.batch // schedule.workers)
        filled = np.zeros((most, schedule.width + 1), np.int32)
        filled[: len(rows)] = rows
        counted = (np.arange(most) < len(rows)).astype(self._dtype)
        self._rows, mesh = len(rows), self._mesh
        self._feed = Feed(in_each(mesh, filled[None]), in_each(mesh, counted[None]))
        steps = schedule.steps
        self._shared = in_all(mesh, np.full(steps, schedule.batch, self._dtype)), in_all(mesh, self._rates_of(steps))
        state = self._network.initial_state(most)
        self._state_of_rows = jax.tree.map(lambda one: in_each(mesh, one[None]), state)

    def _first_feed(self) -> tuple[Any, Any, Any]:
        return self._state_of_rows, self._feed, self._shared

    def train(self, first: int, last: int) -> Counts:
        with self._together():
            self._state_of_rows, losses, _ = self._run(self._state_of_rows, self._feed, self._shared, first, last)
            loss = float(np.asarray(local(losses), np.float64).sum())
        return Counts(self._rows * self._unroll * (last - first), loss)

    def _loss(self, tensors: Arrays, carried: Any, feed: Any, step: jax.Array) -> tuple[jax.Array, Made]:
        columns = lax.dynamic_slice_in_dim(feed.rows, step * self._unroll, self._unroll + 1, axis=1)
        logits, state = self._network.apply(tensors, columns[:, :-1], carried)
        losses = cross_entropy(logits, columns[:, 1:].T) * feed.counted
        # Truncated back-propagation: the state continues into the next step, the gradient does not.
        return losses.sum(), Made(jnp.int32(0), {}, lax.stop_gradient(state))

    # -- evaluation

    def _look(
        self, tensors: Arrays, words: jax.Array, targets: jax.Array, real: jax.Array, state: Any
    ) -> tuple[jax.Array, Any]:
        logits, state = self._network.apply(tensors, words, state)
        return cross_entropy(logits, targets.T) * real.T, state

    def _prepare_evaluation(self) -> None:
        rows, tensors = len(range(self._transport.rank, EVALUATION_ROWS, self._transport.size)), self._evaluated()
        if rows:
            words, real = np.zeros((rows, self._unroll), np.int32), np.zeros((rows, self._unroll), np.float32)
            state = self._network.initial_state(rows)
            jax.block_until_ready(self._evaluate_columns(tensors, words, words, real, state))

    def evaluate(self, part: Part) -> Counts:
        read = evaluation_rows(getattr(self._text, part), self._transport.rank, self._transport.size)
        loss, tensors = 0.0, self._evaluated()
        if len(read.inputs):
            state = self._network.initial_state(len(read.inputs))
            # Filled up to whole calls, so that the last one needs no compiling.
            fill = ((0, 0), (0, -read.inputs.shape[1] % self._unroll))
            inputs, targets, real = (np.pad(one, fill) for one in (read.inputs, read.targets, read.real))
            for first in range(0, inputs.shape[1], self._unroll):
                columns = slice(first, first + self._unroll)
                losses, state = self._evaluate_columns(
                    tensors, inputs[:, columns], targets[:, columns], real[:, columns], state
                )
                loss += float(np.asarray(losses, np.float64).sum())
                self._context.status.seen += 1
        return self.total(Counts(int(read.real.sum(dtype="float64")), loss))

    def _description(self) -> dict[str, Any]:
        about = {"kind": "text", "vocabulary": len(self._text.vocabulary), "dataset": self._text.name}
        return about if self._network.initial_state(1) else {**about, "context": self._unroll}

    def save(self, folder: Path) -> None:
        super().save(folder)
        words = json.dumps(self._text.vocabulary, ensure_ascii=False)
        files.write_text(folder / VOCABULARY, words + "\n", sync=False)
