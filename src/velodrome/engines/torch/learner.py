"""The network in training: what `single` does, and what every distributed strategy shares with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from velodrome.catalog.engines.torch import Mesh
from velodrome.engines.torch import calling, inspection, model_file
from velodrome.engines.torch.feed import Replica
from velodrome.engines.torch.fused_optimizer import make_optimizer, report_implementation
from velodrome.engines.torch.network import Network, task_of_job
from velodrome.engines.torch.objectives import Answers, Tally
from velodrome.engines.torch.optimizer import Gradients, Optimizer, clip, copy_by_name, squared_norm
from velodrome.models.checks import Generators
from velodrome.tasks.base import Counts
from velodrome.tasks.correctness_bits import Evaluated, Vector
from velodrome.training.context import Context
from velodrome.training.learner import Inspection, Part, State, TransportLearner
from velodrome.transport.base import Alone, Transport


class TorchLearner(TransportLearner):
    """One process's copy of the network. Subclasses define how the gradients of several processes are combined."""

    #: What a subclass multiplies the loss with, to undo what its engine divides by.
    loss_factor = 1.0
    #: What carries the gradients, where a strategy has several ways.
    path: str | None = None
    #: The weights to save, by name, where a process has only some of them: set in the chief by `collect_model`.
    _collected: dict[str, torch.Tensor] | None = None
    #: Everything in `state` but the number of epochs, where a process has only some of it: set in the chief by
    #: `collect_state`, and taken by the next call of `state`.
    _state: State | None = None
    #: Whether forward passes wait for one another, so that every process must make as many.
    lockstep = False
    #: What the losses of the last batch that came one per example were multiplied by, and for which batches it is.
    _last_factors: tuple[tuple[float, int, torch.dtype], torch.Tensor] | None = None

    def __init__(self, context: Context, network: Network, transport: Transport, device: torch.device) -> None:
        super().__init__(context, transport)
        self._network, self._device = network, device
        self._task, self._objective = task_of_job(context), network.objective
        #: The processes among which examples are divided.
        self._among: Transport = transport if context.strategy.divides_batch else Alone()
        self._model = network.model
        self._trained = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        self.parameters = sum(parameter.numel() for parameter in self._trained)
        self.pixels = network.pixels.form if network.pixels else None
        model_file.start_from_weights(context, self._model, transport.rank)
        self._broadcast_model()
        self._optimizer, self._clip_norm = self._make_optimizer(), context.job.clip_norm
        #: The rates of the steps to come, where they differ; and the batches whose gradients a step adds up.
        self._rates: NDArray[np.float64] | None = None
        self._next_rates: Iterator[float] = iter(())
        self._accumulate, self._added = context.job.accumulate, 0
        self.implementation = report_implementation(context, self._optimizer, self.path)
        self.forward: nn.Module = self._wrapped()
        among = Replica(self._among.rank, self._among.size, device, self.lockstep)
        self._feed = self._task.feed(self._network, among)
        self._epochs = 0

    # -- what a strategy may change

    def _make_optimizer(self) -> Optimizer:
        """The optimizer that steps by what `_gradients` returns."""
        return make_optimizer(self._context.job, self._trained)

    def _wrapped(self) -> nn.Module:
        """The module that the forward pass calls."""
        return self._network.module

    @property
    def _drawing_rank(self) -> int:
        """What this process's random numbers depend on: processes that compute with the same examples draw the same."""
        return self._among.rank

    def _gradients(self, loss: torch.Tensor | None) -> Gradients:
        """The gradients that the optimizer takes; `loss` is None if this process has no example in the step."""
        assert loss is not None, "one process has all examples"
        return self._local_gradients(loss)

    def _backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of a loss to those of the parameters."""
        loss.backward()

    def _norm(self, gradients: Gradients) -> float:
        """The norm of the whole gradient, of which `gradients` may be one process's slice."""
        return squared_norm(gradients) ** 0.5

    def _will_add(self, more: bool) -> None:
        """Called before each forward pass where gradients of several batches are added up: whether more follow."""

    def _between_steps(self) -> None:
        """Wait until no process computes with the parameters, where they are shared."""

    # -- training

    def begin_epoch(self, schedule: Any) -> None:
        self._collected = None  # the whole model, which takes memory
        self._epochs += 1
        divided = schedule.in_parts(self._accumulate) if self._accumulate > 1 else schedule
        self._feed.begin_epoch(divided, self._epochs)
        # Dropout depends on seed, epoch and rank only, so that a resumed run draws what an undisturbed one does.
        seeds = np.random.SeedSequence([self._context.job.seed, self._epochs, self._drawing_rank])
        torch.manual_seed(int(seeds.generate_state(1, np.uint64)[0] >> 1))
        self._model.train()

    def set_rate(self, rate: float) -> None:
        self._optimizer.rate = rate

    def set_rates(self, rates: NDArray[np.float64]) -> None:
        self.set_rate(float(rates[0]))
        self._rates = rates if (rates != rates[0]).any() else None

    def train(self, first: int, last: int) -> Counts:
        if self._rates is not None:
            self._next_rates = iter(self._rates[first:last].tolist())
        if self._accumulate > 1:
            self._will_add(True)
        # What is a step for the feed is one of the batches that a step adds up.
        return self._train_batches(first * self._accumulate, last * self._accumulate)

    def _train_batches(self, first: int, last: int) -> Counts:
        """Train these batches; nothing is read back from the device before the end."""
        objective, forward, tally = self._objective, self.forward, Tally(self._objective)
        by_examples, counts_first = objective.by_examples, not objective.changes_tensors
        # `step` adds up and scales in one operation. FSDP warns of modules that return views, which losses may be.
        objective.adds_up = self.lockstep
        try:
            for batch, whole in self._feed.steps(first, last):
                if batch is None:
                    idle = self.idle_loss()  # where forward passes wait for one another, the sum comes after them
                    self.step(idle, whole if by_examples else self.sum(0) or 1)
                    continue
                loss = forward(batch.inputs, batch.targets)
                if not by_examples:
                    whole = self.sum(objective.total) or 1
                if counts_first:
                    tally.add(loss.detach(), batch)
                    del batch  # the backward pass ends its use: the optimizer has more of the processor's cache
                    self.step(loss, whole)
                else:
                    self.step(loss, whole)
                    tally.add(loss.detach(), batch)
                    del batch
                del loss  # the next batch takes the memory of this one, which is in the cache
        finally:
            objective.adds_up = True
        return tally.counts(self._context.task.counted)

    def inspect(self, step: int, weight_size: int) -> Inspection:
        return inspection.inspect_step(self._model, self._optimizer.state(), lambda: self.train(step, step + 1))

    def divisions(self, workers: int, mesh: Mesh | None, inspection: Inspection) -> list[dict[str, Any]]:
        from velodrome.engines.torch.strategies.plans import divisions  # imports the learners of these strategies

        return divisions(self._context.job, self._context.data, self._network, workers, mesh, inspection.layers)

    def step(self, loss: torch.Tensor | None, batch: float) -> None:
        """Make one step by the loss of this process's examples (None if it has none), their sum or one value each, in a
        batch of so many over all processes."""
        factor = self.loss_factor / batch
        scaled = None if loss is None else torch.dot(loss, self._factors(loss, factor)) if loss.ndim else loss * factor
        if self._accumulate > 1 and self._add(scaled):
            return
        self._update(self._gradients(scaled))

    def idle_loss(self) -> torch.Tensor | None:
        """What a process without examples makes its step by; None if it need not compute."""
        return None

    def _factors(self, losses: torch.Tensor, factor: float) -> torch.Tensor:
        """The factor for each of the losses: multiplying by them adds up as well."""
        last = self._last_factors
        if last is None or last[0] != (factor, len(losses), losses.dtype):
            last = self._last_factors = (factor, len(losses), losses.dtype), torch.full_like(losses, factor)
        return last[1]

    def _update(self, gradients: Gradients) -> None:
        """Change the weights by the gradients of a step."""
        if self._rates is not None:
            self._optimizer.rate = next(self._next_rates)
        if self._clip_norm is not None:
            clip(gradients, self._norm(gradients), self._clip_norm)
        self._optimizer.step(gradients)
        if self._accumulate > 1:
            self._will_add(True)

    def _add(self, loss: torch.Tensor | None) -> bool:
        """Add the gradient of a batch to those before it, unless it is the last one of a step; whether it did."""
        self._added = (self._added + 1) % self._accumulate
        if self._added == 1:
            for parameter in self._trained:
                parameter.grad = None
        if self._added == 0:
            return False
        if loss is not None:
            self._backward(loss)
        self._will_add(self._added + 1 < self._accumulate)
        return True

    def sum(self, number: float) -> float:
        """The sum of a number over all processes, in each of them."""
        if self._among.size == 1:
            return number
        vector = np.array([number], np.float64)
        with self._context.waiting():
            self._among.all_reduce(vector)
        return float(vector[0])

    def _local_gradients(self, loss: torch.Tensor) -> Gradients:
        """Back-propagate. A parameter that the loss does not reach has no gradient."""
        if self._accumulate == 1:
            for parameter in self._trained:
                parameter.grad = None
        self._backward(loss)
        return [parameter.grad for parameter in self._trained]

    # -- statistics and evaluation

    def average_statistics(self) -> None:
        model_file.average_buffers(self._model, self._among)

    @contextmanager
    def _averaged(self) -> Iterator[None]:
        """With the averaged weights in place of those that train, where the job asks for them."""
        average = self._optimizer.average
        if average is None:
            yield
            return
        for again in (False, True):
            self._between_steps()
            average.swap()
            self._between_steps()
            if not again:
                yield

    def evaluate(self, part: Part) -> Counts:
        with self._averaged():
            mine = self._evaluate(part)
        return self.sum_evaluated(mine, part, self._context, self._sum_among)

    def _evaluate(self, part: Part) -> Evaluated:
        """Evaluate this process's share of a part."""
        module, tally = self._network.module, Tally(self._objective, part)
        answers = Answers(self._objective, *self._feed.places(part))
        module.eval()
        with torch.no_grad():  # a model may keep tensors, which inference_mode would spoil for training
            for batch in self._feed.evaluation(part):
                loss = module(batch.inputs, batch.targets)
                answers.add(batch)
                tally.add(loss, batch)
                self._context.status.seen += 1
        module.train()
        return answers.evaluated(tally.counts(self._context.task.counted))

    def total(self, counts: Counts) -> Counts:
        names = self._context.task.counted
        return Counts.of(self._sum_among(counts.vector(names)), names)

    def _sum_among(self, vector: Vector) -> Vector:
        """Replace a vector by its sum over the processes among which examples are divided, and return it."""
        self._among.all_reduce(vector)
        return vector

    # -- state

    def generators(self) -> Generators:
        return super().generators() | calling.generators_of(self._model)

    def _own_state(self) -> State:
        """What this process has of the model and the optimizer."""
        return {**model_file.to_arrays("model.", self._model.state_dict()),
                **model_file.to_arrays("optimizer.", self._optimizer.state())}

    def state(self) -> State:
        collected, self._state = self._state, None
        return {**(self._own_state() if collected is None else collected),
                "epochs": np.array(self._epochs, dtype=np.int64)}

    def load(self, state: State) -> None:
        # Where parameters are shared, each process has put its first weights there by now, and the chief has tried to
        # save them. From here on all write the same numbers, so one may compute before the others are done.
        self._between_steps()
        copy_by_name(self._model.state_dict(), model_file.from_arrays("model.", state))
        self._optimizer.load(model_file.from_arrays("optimizer.", state))
        self._epochs = int(state["epochs"])

    def check_saving(self, folder: Path) -> tuple[str, ...]:
        if self._network.from_zoo:
            return ()
        return model_file.check(self._context, self._network.sample, self._model, self.save, folder, self._collected)

    def save(self, folder: Path) -> None:
        job = self._context.job
        description = {"engine": "torch", "model": job.model, "model_args": job.model_args, "dtype": job.weights_dtype}
        if job.dtype != job.weights_dtype:
            description["autocast"] = job.dtype
        # The other processes compute no more. What was collected is averaged already.
        average = self._optimizer.whole_average if self._collected is None else None
        if average is not None:
            average.swap()
        model_file.save(folder, self._model, description | self._task.description(self._network), self._collected)
        if average is not None:
            average.swap()

    def _broadcast_model(self) -> None:
        """Give every process the weights of rank 0: a user's function may ignore the seed."""
        with self._context.waiting():
            model_file.broadcast_weights(self._model, self._transport)
