"""The network in training: what `single` does, and what every distributed strategy shares with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from velodrome.engines.torch import saved
from velodrome.engines.torch.examples import Examples
from velodrome.engines.torch.network import Network, dtype_of
from velodrome.engines.torch.optimizer import Optimizer
from velodrome.transport.base import Transport
from velodrome.worker.context import Context
from velodrome.worker.counts import Counts
from velodrome.worker.learner import Learner, Part, State
from velodrome.worker.schedule import Schedule, Share, share_of

EVALUATION_BATCH = 512


class TorchLearner(Learner):
    """One process's copy of the network. Subclasses say how gradients of several processes become one."""

    #: DistributedDataParallel takes part in a step only by a forward and a backward pass, even without examples.
    always_computes = False
    #: What a subclass multiplies the loss with, to undo what its engine divides by.
    loss_factor = 1.0

    def __init__(self, context: Context, network: Network, transport: Transport, device: torch.device) -> None:
        self._context, self._network, self._transport, self._device = context, network, transport, device
        self._model = network.model
        self._trained = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        self.parameters = sum(parameter.numel() for parameter in self._trained)
        self._broadcast_model()
        self._optimizer = Optimizer(context.job, self._optimized())
        self._forward: nn.Module = self._wrapped()
        self._parts: dict[str, Examples] = {}
        self._train_examples = self._examples("train")
        self._epochs = 0

    # -- what a strategy may change

    def _optimized(self) -> list[torch.Tensor]:
        """The tensors that the optimizer changes."""
        return list(self._trained)

    def _wrapped(self) -> nn.Module:
        """What the forward pass calls."""
        return self._model

    def _gradients(self, loss: torch.Tensor | None) -> list[torch.Tensor]:
        """The gradient of every optimized tensor; `loss` is None if this process has no example in the step."""
        assert loss is not None, "one process has all examples"
        return self._local_gradients(loss)

    # -- training

    def begin_epoch(self, schedule: Schedule) -> None:
        share: Share = schedule.share(self._transport.rank)
        self._offsets, self._batches = share.offsets.tolist(), share.batch.tolist()
        self._indices = torch.from_numpy(share.indices).to(self._device)
        self._labels = self._train_examples.labels(self._indices)
        self._epochs += 1
        # Dropout depends on seed, epoch and rank only, so that a resumed run draws what an undisturbed one does.
        seeds = np.random.SeedSequence([self._context.job.seed, self._epochs, self._transport.rank])
        torch.manual_seed(int(seeds.generate_state(1, np.uint64)[0] >> 1))
        self._model.train()

    def set_rate(self, rate: float) -> None:
        self._optimizer.rate = rate

    def train(self, first: int, last: int) -> Counts:
        """The steps of a chunk. Nothing is read back from the device before its end."""
        start, end = self._offsets[first], self._offsets[last]
        predicted = torch.empty(end - start, dtype=torch.int64, device=self._device)
        losses: list[torch.Tensor] = []
        examples, loss_of, fewest = self._train_examples, self._network.loss, self._network.fewest
        offsets, forward, optimizer = self._offsets, self._forward, self._optimizer
        for step in range(first, last):
            low, high = offsets[step], offsets[step + 1]
            count = high - low
            if count >= fewest:
                outputs = forward(examples.images(self._indices[low:high]))
            elif count or self.always_computes:
                outputs = forward(examples.images(self._padded(low, high)))[:count]
            else:
                optimizer.step(self._gradients(None))
                continue
            loss = loss_of(outputs, self._labels[low:high])
            optimizer.step(self._gradients(loss * (self.loss_factor / self._batches[step])))
            losses.append(loss.detach())
            torch.argmax(outputs.detach(), 1, out=predicted[low - start : high - start])
        correct = (predicted == self._labels[start:end]).sum()
        loss_sum = torch.stack(losses).sum(dtype=torch.float64) if losses else torch.zeros((), dtype=torch.float64)
        return Counts(int(correct), end - start, float(loss_sum))

    def _padded(self, low: int, high: int) -> torch.Tensor:
        """At least as many examples as the model needs: its own repeated, or any; those too many do not count."""
        chosen = self._indices[low:high] if high > low else torch.zeros(1, dtype=torch.int64, device=self._device)
        return chosen.repeat(self._network.fewest)

    def _local_gradients(self, loss: torch.Tensor) -> list[torch.Tensor]:
        """Back-propagate. A parameter that the loss does not reach has the gradient zero, as in any sum."""
        for parameter in self._trained:
            parameter.grad = None
        loss.backward()
        return [
            torch.zeros_like(parameter) if parameter.grad is None else parameter.grad for parameter in self._trained
        ]

    # -- statistics and evaluation

    def average_statistics(self) -> None:
        buffers = [buffer for buffer in self._model.buffers() if buffer.is_floating_point() and buffer.numel()]
        if self._transport.size == 1 or not buffers:
            return
        flat = np.concatenate([buffer.detach().double().cpu().numpy().ravel() for buffer in buffers])
        self._transport.all_reduce(flat)
        flat /= self._transport.size
        offset = 0
        with torch.no_grad():
            for buffer in buffers:
                mean = torch.from_numpy(flat[offset : offset + buffer.numel()])
                buffer.copy_(mean.view(buffer.shape))
                offset += buffer.numel()

    def evaluate(self, part: Part) -> Counts:
        examples = self._examples(part)
        mine = torch.from_numpy(share_of(len(examples), self._transport.rank, self._transport.size)).to(self._device)
        correct = torch.zeros((), dtype=torch.int64, device=self._device)
        loss_sum = torch.zeros((), dtype=torch.float64, device=self._device)
        self._model.eval()
        with torch.inference_mode():
            for indices in mine.split(EVALUATION_BATCH):
                if not len(indices):
                    continue
                labels = examples.labels(indices)
                outputs = self._model(examples.images(indices))
                correct += (outputs.argmax(1) == labels).sum()
                loss_sum += self._network.loss(outputs, labels)
        self._model.train()
        return self.total(Counts(int(correct), len(mine), float(loss_sum)))

    def total(self, counts: Counts) -> Counts:
        vector = counts.vector()
        self._transport.all_reduce(vector)
        return Counts.of(vector)

    def _examples(self, part: str) -> Examples:
        if part not in self._parts:
            data = self._context.data
            self._parts[part] = Examples(
                getattr(data, part), data.scale, dtype_of(self._context.job), self._device,
                channels_last=self._network.from_zoo,
            )
        return self._parts[part]

    # -- state

    def state(self) -> State:
        model = {
            f"model.{name}": value.detach().cpu().contiguous().numpy()
            for name, value in self._model.state_dict().items()
            if isinstance(value, torch.Tensor)
        }
        optimizer = {
            f"optimizer.{name}": value.detach().cpu().contiguous().numpy()
            for name, value in self._optimizer.state().items()
        }
        return {**model, **optimizer, "epochs": np.array(self._epochs, dtype=np.int64)}

    def load(self, state: State) -> None:
        places = {f"model.{name}": value for name, value in self._model.state_dict().items()}
        places |= {f"optimizer.{name}": value for name, value in self._optimizer.state().items()}
        with torch.no_grad():
            for name, value in state.items():
                if name in places:
                    places[name].copy_(torch.from_numpy(np.array(value)))
        self._epochs = int(state["epochs"])

    def save(self, folder: Path) -> None:
        saved.save(folder, self._model, self._description())

    def _description(self) -> dict[str, Any]:
        job, data = self._context.job, self._context.data
        height, width, channels = data.input_shape
        return {
            "engine": "torch",
            "model": job.model,
            "model_args": job.model_args,
            "input_shape": [channels, height, width],
            "classes": data.classes,
            "dtype": job.dtype,
            "dataset": data.name,
            "scale": data.scale,
        }

    def close(self) -> None:
        self._transport.close()

    def _broadcast_model(self) -> None:
        """The seed gives every process the same weights; a user's function may not keep to it."""
        if self._transport.size == 1:
            return
        values = [value for value in self._model.state_dict().values() if isinstance(value, torch.Tensor)]
        arrays = [value.detach().cpu().contiguous().numpy() for value in values]
        everything = np.frombuffer(bytearray(b"".join(array.tobytes() for array in arrays)), dtype=np.uint8)
        with self._context.waiting():
            self._transport.broadcast(everything)
        offset = 0
        with torch.no_grad():
            for value, array in zip(values, arrays, strict=True):
                part = everything[offset : offset + array.nbytes].view(array.dtype).reshape(array.shape)
                value.copy_(torch.from_numpy(part))
                offset += array.nbytes
