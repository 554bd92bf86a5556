"""Asynchronous training with TensorFlow's parameter servers: the chief schedules closures, workers pull and push.

All weights are one flat buffer, split over the servers if it is large, so that a step takes one message to each server
and one back. A closure is a few steps on one worker; it returns its counts, so that these stay exact when a lost
worker's closure runs again elsewhere. What it trains on is the business of the dispatchers of each task."""

from __future__ import annotations

import queue
from abc import abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from velodrome.catalog.engines.tensorflow import MIN_SHARD_BYTES
from velodrome.engines.tensorflow.flat import Batch, FlatModel, StepResult, gradient_in_parts
from velodrome.engines.tensorflow.stock import KerasWeights
from velodrome.engines.tensorflow.strategies.cluster import PeerMonitor, cluster_resolver, is_about_peers
from velodrome.engines.tensorflow.weights import (
    FlatWeights,
    GraphRates,
    clip_by_norm,
    is_by_keras,
    over_total,
    steps_of_epoch,
    total_of,
)
from velodrome.job.job import Job
from velodrome.tasks.base import Counts
from velodrome.training.context import Context
from velodrome.training.learner import Learner, State

#: Closures per worker that are scheduled at a time: one runs, one is queued.
AHEAD = 2
_POLL_SECONDS = 0.5

#: The key of a closure, and the values that it returned.
Result = tuple[Any, list[NDArray[Any]]]


@dataclass
class _Closure:
    """One call on a worker, and how often it was lost with a worker after it had run."""

    key: Any
    function: Any
    arguments: tuple[Any, ...]
    lost: int = 0


class Closures:
    """Schedules closures on TensorFlow's coordinator and collects results, in the order in which they arrive.

    The coordinator waits without limit for a lost worker to return, so separate threads wait for results, and the
    caller checks the peers while it waits. The coordinator runs a closure again whose worker is lost while it runs; one
    whose worker is lost before its result was fetched is scheduled again here.
    """

    def __init__(self, coordinator: Any, monitor: PeerMonitor, context: Context) -> None:
        self.coordinator, self._monitor, self._context = coordinator, monitor, context
        self._returned: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._pending = 0
        self.capacity = AHEAD * context.job.workers - 1
        self._waiters = ThreadPoolExecutor(self.capacity + 1)

    def _fetch(self, closure: _Closure, value: Any) -> None:
        try:
            self._returned.put((closure, [np.asarray(each) for each in value.fetch()], None))
        except BaseException as error:
            self._returned.put((closure, None, error))

    def schedule(self, key: Any, function: Any, *arguments: Any) -> None:
        """Have one worker, whichever is free, call a function that returns several tensors."""
        self._start(_Closure(key, function, arguments))
        self._pending += 1

    def _start(self, closure: _Closure) -> None:
        value = self.coordinator.schedule(closure.function, args=closure.arguments)
        self._waiters.submit(self._fetch, closure, value)

    def _run_again(self, closure: _Closure, error: BaseException) -> None:
        """Schedule a closure whose result is lost; raise the error if that cannot or may not help."""
        self._monitor.check(self._context.job.keep_going)
        closure.lost += 1
        if not (self._context.job.keep_going and is_about_peers(error)) or closure.lost > self._context.job.workers:
            raise error
        self._start(closure)

    def results(self, left: int) -> list[Result]:
        """The results that arrived, after waiting until at most `left` closures are pending."""
        results = []
        with self._context.waiting():
            while self._pending:
                try:
                    closure, result, error = self._returned.get(timeout=_POLL_SECONDS if self._pending > left else 0)
                except queue.Empty:
                    if self._pending <= left:
                        break
                    self._monitor.check(self._context.job.keep_going)
                    continue
                if error is not None:
                    self._run_again(closure, error)
                    continue
                self._pending -= 1
                self._context.status.seen += 1
                results.append((closure.key, result))
        self._monitor.check(self._context.job.keep_going)
        return results


#: Steps in a closure: enough that scheduling costs little, few enough that the last ones of an epoch end together.
STEPS_PER_CLOSURE = 20
#: Closures of an epoch that each worker gets at least, if there are enough steps.
CLOSURES_PER_WORKER = 4
#: By default, the fewest bytes of a part of weights that are split over servers.
SMALLEST = 256 * 2**10


def partitioner(servers: int, smallest: int = SMALLEST) -> Any:
    """Splits large variables into at most as many parts as there are servers, none with fewer bytes than `smallest`."""
    return tf.distribute.experimental.partitioners.MinSizePartitioner(min_shard_bytes=smallest, max_shards=servers)


def make_strategy(context: Context) -> Any:
    """The strategy; Keras optimizers cannot use variables that are split."""
    job = context.job
    split = None if is_by_keras(job) else partitioner(job.servers, MIN_SHARD_BYTES.of(job) or SMALLEST)
    return tf.distribute.ParameterServerStrategy(cluster_resolver(context.world), variable_partitioner=split)


class FlatServerWeights(FlatWeights):
    """A buffer on parameter servers, split over them as the strategy's partitioner decides."""

    def __init__(self, job: Job, network: FlatModel, strategy: Any, steps: int) -> None:
        """`steps` are those of an epoch."""
        super().__init__(job, network)
        with strategy.scope():
            weights = tf.Variable(network.weights())
        self._parts = list(getattr(weights, "variables", [weights]))
        for part in self._parts:
            with tf.device(part.device):
                zeros = np.zeros(part.shape, job.weights_dtype)
                self._slots.append([tf.Variable(zeros) for _ in range(self._optimizer.slots)])
                self._rates.append(GraphRates(job, network.dtype, steps))
                if job.ema is not None:
                    self._averages.append(tf.Variable(part.numpy()))

    def pull(self) -> list[tf.Tensor]:
        return [part.read_value() for part in self._parts]

    def layers(self, pulled: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return self._network.layout.layers(pulled[0] if len(pulled) == 1 else tf.concat(pulled, 0))

    def send(self, gradient: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The gradient with respect to what was pulled, after it has arrived where it is applied."""
        arrived = []
        for part, piece in zip(self._parts, gradient, strict=True):
            with tf.device(part.device):
                arrived.append(tf.identity(piece))
        return arrived

    def apply(self, gradient: Sequence[tf.Tensor], iteration: tf.Tensor) -> None:
        """Apply a gradient that was sent, as update number `iteration`, counted from 1."""
        with tf.device(iteration.device):
            powers = self._optimizer.powers(iteration)
        for index, (part, slots, rates, piece) in enumerate(
            zip(self._parts, self._slots, self._rates, gradient, strict=True)
        ):
            with tf.device(part.device):
                handles = [slot.handle for slot in slots]
                self._optimizer.apply(part.handle, handles, piece, rates.at(iteration), powers)
                if self._averages and not self._network.is_constrained:
                    self._optimizer.move_average(self._averages[index].handle, part.handle, iteration)
        if self._network.is_constrained:
            self._constrain(iteration)

    def _constrain(self, iteration: tf.Tensor) -> None:
        """Move the weights to where the layers' constraints want them. Added, not assigned: updates of other workers
        that arrive in between are not lost."""
        pulled = self.pull()
        whole = pulled[0] if len(pulled) == 1 else tf.concat(pulled, 0)
        moves = tf.split(self._network.constrained(whole) - whole, [part.shape[0] for part in self._parts])
        for index, (part, move) in enumerate(zip(self._parts, moves, strict=True)):
            with tf.device(part.device):
                part.assign_add(move, read_value=False)
                if self._averages:
                    self._optimizer.move_average(self._averages[index].handle, part.handle, iteration)

    def evaluated_layers(self) -> list[tf.Tensor]:
        return self.layers([part.read_value() for part in self._averages or self._parts])


class KerasServerWeights(KerasWeights):
    """The variables of a Keras model, each whole on one of the servers: Keras cannot use one that is split."""

    on_servers = True

    def send(self, gradient: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return [tf.convert_to_tensor(piece) for piece in gradient]

    def apply(self, gradient: Sequence[tf.Tensor], iteration: tf.Tensor) -> None:
        def apply_in_replica(pieces: Sequence[tf.Tensor]) -> None:
            # The strategy reduces on the device of a tensor, and an argument has none until it is copied.
            self._apply_share([tf.identity(piece) for piece in pieces])

        self._strategy.run(apply_in_replica, args=(gradient,))


class ParameterServer(Learner):
    """A network whose weights live on servers, as the chief sees it."""

    def __init__(self, context: Context, network: FlatModel, strategy: Any, monitor: PeerMonitor) -> None:
        self._context, self._network = context, network
        self.parameters, self.pixels = network.parameters, network.pixel_form
        self.implementation = network.implementation(context.strategy)
        servers = [f"/job:ps/replica:0/task:{rank}/device:CPU:0" for rank in range(context.job.servers)]
        self._stock = is_by_keras(context.job)
        kind: type[FlatServerWeights | KerasServerWeights] = KerasServerWeights if self._stock else FlatServerWeights
        self._weights = kind(context.job, network, strategy, steps_of_epoch(context))
        with tf.device(servers[0]):
            self._iterations = tf.Variable(0, dtype=tf.int64)
            # The staleness of an update: how many others were applied between its pull and its push, this epoch.
            self._staleness_sum, self._staleness_max = (tf.Variable(0, dtype=tf.int64) for _ in range(2))
        self._statistics = []
        for index, value in enumerate([] if network.stateful else network.initial_statistics(0)):
            with tf.device(servers[index % len(servers)]):
                self._statistics.append(tf.Variable(value))
        self._closures = Closures(tf.distribute.coordinator.ClusterCoordinator(strategy), monitor, context)
        self._requested, self._before = 0, 0
        # A worker prepares the graph at its first closure: each has done so after these.
        self.warmup_steps = 4 * STEPS_PER_CLOSURE * context.job.workers

    # In the graph of a closure.

    def _layers(self) -> list[tf.Tensor]:
        """Each layer's weights that are evaluated, as they are now."""
        return self._weights.evaluated_layers()

    def _push(self, gradient: list[tf.Tensor], before: tf.Tensor) -> None:
        """Apply a gradient where the weights are, and count how many others were applied since `before`."""
        arrived = self._weights.send(gradient)
        # Counted early, an update would miss those that others apply until it arrives, so this waits until the gradient
        # is on the server. Counting there saves a message, which costs more time than the sums.
        with tf.control_dependencies(arrived[:1]), tf.device(self._iterations.device):
            done = self._iterations.assign_add(1).read_value()
            staleness = done - before - 1
            self._staleness_sum.assign_add(staleness)
            self._staleness_max.assign(tf.maximum(self._staleness_max.read_value(), staleness))
        self._weights.apply(arrived, done)

    def _step(self, statistics: Sequence[tf.Tensor], batch: Batch) -> StepResult:
        """Pull, compute, push."""
        with tf.device(self._iterations.device):
            before = self._iterations.read_value()
        gradient, result = gradient_in_parts(
            self._network, self._weights.pull(), self._weights.layers, statistics, batch
        )
        dense = [tf.convert_to_tensor(piece) for piece in gradient]
        if self._network.by_total:
            dense = [over_total(piece, total_of(result, piece.dtype)) for piece in dense]
        self._push(clip_by_norm(dense, self._context.job.clip_norm), before)
        return result

    # In the chief.

    def _steps_per_closure(self, steps: int) -> int:
        if self._stock:
            return 1
        return max(1, min(STEPS_PER_CLOSURE, steps // (CLOSURES_PER_WORKER * self._context.job.workers)))

    def begin_epoch(self, schedule: Any) -> None:
        self._requested, self._before = 0, int(self._iterations.numpy())
        self._staleness_sum.assign(0)
        self._staleness_max.assign(0)

    def set_rates(self, rates: NDArray[np.float64]) -> None:
        self._weights.set_rates(rates, int(self._iterations.numpy()))

    def end_epoch(self) -> Counts:
        counts = self._finish_steps()
        total, most, done = (int(each.numpy()) for each in (self._staleness_sum, self._staleness_max, self._iterations))
        if updates := done - self._before:
            events = self._context.events
            events.emit("staleness", epoch=self.epoch, mean=total / updates, max=float(most), updates=updates)
        return counts

    @abstractmethod
    def _finish_steps(self) -> Counts:
        """Schedule the remaining steps that `train` was asked for, and wait for all closures; their counts."""

    def average_statistics(self) -> None:
        """Nothing to do: there is one copy of them, on the servers."""

    def total(self, counts: Counts) -> Counts:
        return counts

    def state(self) -> State:
        return self._weights.state(self._saved_statistics(), int(self._iterations.numpy()))

    def _saved_statistics(self) -> list[NDArray[Any]]:
        return [variable.numpy() for variable in self._statistics]

    def load(self, state: State) -> None:
        statistics, iterations = self._weights.load(state)
        for variable, value in zip(self._statistics, statistics, strict=True):
            variable.assign(value)
        self._iterations.assign(iterations)

    def check_saving(self, folder: Path) -> tuple[str, ...]:
        return self._network.check_saving(folder)

    def save(self, folder: Path) -> None:
        self._network.save(folder, self._weights.saved(), self._saved_statistics())
