"""`parameter-server`: servers keep weights and optimizer state, each a slice; workers push gradients and get weights.

Under bsp every worker computes its part of each batch, and the servers make one update by the sum, as one process
would. Under the other models a worker makes whole steps by itself. The first server hands them out where examples can
be read in any order, so that a fast worker makes more of them; otherwise worker r makes every n-th.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from velodrome.engines.torch import model_file as saved
from velodrome.engines.torch.fused_optimizer import FlatOptimizer
from velodrome.engines.torch.learner import TorchLearner
from velodrome.engines.torch.network import Network
from velodrome.engines.torch.optimizer import Gradients, Optimizer, clip, squared_norm
from velodrome.engines.torch.strategies.allreduce import FlatLayout
from velodrome.engines.torch.strategies.server_store import WEIGHTS
from velodrome.tasks.base import Counts
from velodrome.tasks.schedule import Partition, Schedule
from velodrome.training.context import Context
from velodrome.training.learner import State
from velodrome.transport.base import Ranks, StarTransport, Transport
from velodrome.transport.server_links import NO_STEP, Numbers, ServerLinks


def connect_servers(context: Context) -> tuple[Transport, Any]:
    """What sums counts between workers, and the learner with its connections to the servers."""
    transport = StarTransport(Ranks.of(context.world), context.job.start_timeout)
    links = ServerLinks(context.rank, context.world.of_role("server"), context.job.start_timeout)
    return transport, partial(ServerLearner, links)


@dataclass(frozen=True)
class _Share:
    """What one worker may read of a queue of steps, which a worker makes as a whole: all of them, or every n-th."""

    queue: Schedule
    first: int = 0
    every: int = 1

    def in_parts(self, parts: int) -> _Share:
        return _Share(self.queue.in_parts(parts), self.first, self.every)

    def partition(self, rank: int) -> Partition:
        whole, parts = self.queue.partition(0), self.queue.parts
        if self.every == 1:
            return whole
        steps = [step * parts + part for step in range(self.first, self.queue.steps, self.every)
                 for part in range(parts)]
        chosen = [whole.step(step) for step in steps]
        ends = np.cumsum([0, *map(len, chosen)], dtype=np.int64)
        return Partition(np.concatenate([whole.indices[:0], *chosen]), ends, whole.batch[steps])


class RemoteOptimizer(Optimizer):
    """Stands for the optimizers of the servers, which make the steps; it has the learning rate that is sent to them."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def _step(self, gradients: Gradients) -> None:
        raise AssertionError("servers make the steps")

    def _own_state(self) -> dict[str, torch.Tensor]:
        return {}


class ServerLearner(TorchLearner):
    """One worker: pushes gradients in one flat buffer, and gets the weights for the next step."""

    collective_seconds: float = 0.0
    waited_seconds: float = 0.0
    _transport: StarTransport

    def __init__(
        self, links: ServerLinks, context: Context, network: Network, transport: Transport, device: torch.device
    ) -> None:
        self._links = links
        self._together = context.strategy.synchronous
        #: What this worker counted in the epoch, where workers make steps by themselves.
        self._counted = Counts()
        self._step, self._stride, self._last = NO_STEP, 0, False
        super().__init__(context, network, transport, device)

    def _make_optimizer(self) -> Optimizer:
        """Move the parameters into one flat buffer, and give the servers theirs."""
        layout, like = FlatLayout(self._trained), self._trained[0]
        self._layout, count = layout, len(self._links)
        self._weights = torch.zeros(layout.count, dtype=like.dtype, device=like.device)
        layout.move(self._trained, self._weights)
        cuts = [slice(*layout.slice_of(server, count)) for server in range(count)]
        self._cuts = cuts
        #: The numbers of the parameters of which each server has a piece, and where it lies there.
        self._pieces = [
            {number: (max(start, cut.start) - cut.start, min(end, cut.stop) - cut.start)
             for number, (start, end) in enumerate(layout.bounds) if max(start, cut.start) < min(end, cut.stop)}
            for cut in cuts
        ]
        self._flagged = not self._network.from_zoo
        self._gradient = torch.zeros_like(self._weights)
        self._views = layout.views(self._gradient)
        # The same memory as weights and gradient, if that is the host's.
        self._host_weights, self._host_gradient = self._weights.cpu().numpy(), self._gradient.cpu().numpy()
        flags = [len(pieces) if self._flagged else 0 for pieces in self._pieces]
        self._messages = [np.zeros(cut.stop - cut.start + more, self._host_weights.dtype)
                          for cut, more in zip(cuts, flags, strict=True)]
        self._received = [self._host_weights[cut] for cut in cuts]
        with self._context.waiting():
            if self._transport.rank == 0:
                for place, (cut, pieces) in enumerate(zip(cuts, self._pieces, strict=True)):
                    ends = [end for piece in pieces.values() for end in piece]
                    self._links.layout(place, [cut.stop - cut.start, self._flagged, *ends])
                self._write(WEIGHTS, self._host_weights)
            self._transport.barrier()
        self._state_names = list(FlatOptimizer(self._context.job, self._weights[:1], [(0, 1)]).state())
        return RemoteOptimizer(self._context.job.rate)

    def _write(self, row: int, numbers: Numbers) -> None:
        """Replace a row of all servers by its slices."""
        for place, cut in enumerate(self._cuts):
            self._links.write(place, row, numbers[cut])

    def _read(self, row: int) -> None:
        """Replace the weights by a row of the servers."""
        for place, into in enumerate(self._received):
            self._links.read(place, row, into)
        self._use_received()

    def _use_received(self) -> None:
        if self._weights.device.type != "cpu":
            self._weights.copy_(torch.from_numpy(self._host_weights))

    # -- training

    def begin_epoch(self, schedule: Any) -> None:
        steps, rank, size = schedule.steps, self._transport.rank, self._transport.size
        hands_out = False
        if not self._together and isinstance(schedule, Schedule):
            hands_out = self._context.data.train.in_memory
            schedule = _Share(schedule) if hands_out else _Share(schedule, rank, size)
        super().begin_epoch(schedule)
        self._stride, self._steps_of_epoch = 0 if hands_out else size, steps
        with self._context.waiting():
            handed_out = self._links.begin(steps if hands_out else 0)
        self._step = handed_out if hands_out else rank if rank < steps else NO_STEP

    def train(self, first: int, last: int) -> Counts:
        if self._together:
            return super().train(first, last)
        counts = Counts()
        while NO_STEP != self._step < last:
            number = self._step // self._stride if self._stride else self._step
            following = self._step + self._stride
            self._last = bool(self._stride) and following >= self._steps_of_epoch
            if self._rates is not None:
                self._next_rates = iter([float(self._rates[self._step])])
            counts += self._train_batches(number * self._accumulate, (number + 1) * self._accumulate)
            if self._stride:
                self._step = NO_STEP if self._last else following
        self._counted += counts
        return counts

    def sum(self, number: float) -> float:
        """What a loss is divided by: over all processes if they make a step together."""
        return super().sum(number) if self._together else number

    def _gradients(self, loss: torch.Tensor | None) -> Gradients:
        return [None] * len(self._trained) if loss is None else self._local_gradients(loss)

    def _update(self, gradients: Gradients) -> None:
        if self._rates is not None:
            self._optimizer.rate = next(self._next_rates)
        if self._clip_norm is not None and not self._together:
            clip(gradients, squared_norm(gradients) ** 0.5, self._clip_norm)
        self._fill(gradients)
        status, began = self._context.status, time.perf_counter()
        status.waiting = True
        step = self._exchange()
        status.waiting = False
        self.collective_seconds += time.perf_counter() - began
        self.waited_seconds = self._links.waited
        self._use_received()
        if not self._together and not self._stride:
            self._step = step

    def _fill(self, gradients: Gradients) -> None:
        """Write the gradients, and which parameters have one, into the messages to the servers."""
        for view, gradient in zip(self._views, gradients, strict=True):
            if gradient is None:
                view.zero_()
            else:
                view.copy_(gradient)
        if self._gradient.device.type != "cpu":
            self._host_gradient = self._gradient.cpu().numpy()
        for message, cut, pieces in zip(self._messages, self._cuts, self._pieces, strict=True):
            count = cut.stop - cut.start
            message[:count] = self._host_gradient[cut]
            if self._flagged:
                message[count:] = [gradients[number] is not None for number in pieces]

    def _exchange(self) -> int:
        """Push the gradients and receive weights; the number of this worker's next step, if the servers say it."""
        rate = self._optimizer.rate
        if self._clip_norm is None or not self._together:
            return self._links.push(self._messages, rate, self._received, last=self._last)
        norm = self._links.squared_norm(self._messages) ** 0.5
        self._links.apply(rate, min(1.0, self._clip_norm / norm) if norm else 1.0, self._received)
        return NO_STEP

    def agree(self, number: int) -> int:
        """A worker that makes steps by itself decides for itself: it waits for no other before the epoch ends."""
        return super().agree(number) if self._together else number

    def end_epoch(self) -> Counts:
        """Wait for all workers and get the weights after the last update; in the chief, which reports for all, what the
        others counted."""
        with self._context.waiting():
            counted = self._links.finish()
            if self._together:
                return Counts()
            self._read(WEIGHTS)
        of_others = super().total(Counts() if self._context.is_chief else self._counted)
        self._counted = Counts()
        if not self._context.is_chief:
            return Counts()
        updates = counted.ages.total()
        if updates:
            total = sum(age * count for age, count in counted.ages.items())
            self._context.events.emit("staleness", epoch=self.epoch, mean=total / updates, updates=updates,
                                      max=float(max(counted.ages)), lead=counted.lead,
                                      ages={str(age): count for age, count in sorted(counted.ages.items())})
        return of_others

    def total(self, counts: Counts) -> Counts:
        """The chief's counts are those of all where workers make steps by themselves (`end_epoch`)."""
        return super().total(counts if self._together or self._context.is_chief else Counts())

    @contextmanager
    def _averaged(self) -> Iterator[None]:
        """With the average that the servers keep, where the job asks for one."""
        if self._context.job.ema is None:
            yield
            return
        own = self._weights.clone()
        with self._context.waiting():
            self._read(1 + self._state_names.index("ema.0"))
        yield
        self._host_weights[:] = own.cpu().numpy()
        self._use_received()

    # -- state

    def collect_model(self) -> None:
        if self._context.job.ema is not None:
            with self._averaged():
                self._collected = saved.weights_of(self._model) if self._transport.rank == 0 else None

    def collect_state(self) -> None:
        """The chief gets the optimizer's state from the servers, while the others wait."""
        if self._transport.rank == 0:
            optimizer = {name: torch.from_numpy(self._state_row(1 + place, name))
                         for place, name in enumerate(self._state_names)}
            self._state = {**saved.to_arrays("model.", self._model.state_dict()),
                           **saved.to_arrays("optimizer.", optimizer)}
        with self._context.waiting():
            self._transport.barrier()

    def _state_row(self, row: int, name: str) -> NDArray[Any]:
        """A part of the optimizer's state, put together from the servers: a number for each weight, the steps of each
        parameter, or one number."""
        if name == "steps":
            steps = np.zeros(len(self._trained), np.float32)
            for place, pieces in enumerate(self._pieces):
                part = np.zeros(len(pieces), np.float32)
                self._links.read(place, row, part)
                steps[list(pieces)] = part
            return steps
        if name == "ema.updates":
            updates = np.zeros(1, np.int64)
            self._links.read(0, row, updates)
            return updates
        whole = np.zeros(self._layout.count, self._host_weights.dtype)
        for place, cut in enumerate(self._cuts):
            self._links.read(place, row, whole[cut])
        return whole

    def load(self, state: State) -> None:
        super().load(state)
        if self._weights.device.type != "cpu":
            self._host_weights[:] = self._weights.cpu().numpy()
        with self._context.waiting():
            if self._transport.rank == 0:
                self._write(WEIGHTS, self._host_weights)
                for row, name in enumerate(self._state_names, 1):
                    self._write_state(row, name, state[f"optimizer.{name}"])
            self._transport.barrier()

    def _write_state(self, row: int, name: str, value: NDArray[Any]) -> None:
        if name == "steps":
            for place, pieces in enumerate(self._pieces):
                self._links.write(place, row, np.ascontiguousarray(value[list(pieces)]))
        elif name == "ema.updates":
            for place in range(len(self._links)):
                self._links.write(place, row, value.reshape(1))
        else:
            self._write(row, np.ascontiguousarray(value))

    def close(self) -> None:
        self._links.leave()
        super().close()
