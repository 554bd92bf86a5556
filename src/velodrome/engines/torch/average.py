"""The exponential moving average of the weights (`--ema`): what is evaluated and saved in their place."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from velodrome.job.job import Job


class WeightAverage:
    """Averages of tensors, as `torch.optim.swa_utils.AveragedModel` computes them: the first update copies."""

    def __init__(self, decay: float, tensors: Sequence[torch.Tensor], averages: Sequence[torch.Tensor] = ()) -> None:
        """`averages` are tensors like the others, where they must lie in memory given by the caller."""
        self._decay = decay
        self._tensors = [tensor.detach() for tensor in tensors]
        self.averages = list(averages) or [torch.zeros_like(tensor) for tensor in self._tensors]
        for average, tensor in zip(self.averages, self._tensors, strict=True):
            average.copy_(tensor)
        #: Updates so far, as a tensor because it belongs into checkpoints.
        self.updates = torch.zeros((), dtype=torch.int64)
        self._begun = False

    def part(self, cut: slice) -> WeightAverage:
        """The average of a part of flat tensors, in the same memory."""
        found = WeightAverage.__new__(WeightAverage)
        found._decay, found.updates, found._begun = self._decay, self.updates, self._begun
        found._tensors, found.averages = ([each[cut] for each in held] for held in (self._tensors, self.averages))
        return found

    @torch.no_grad()
    def update(self) -> None:
        """Move the averages towards the tensors as they are now."""
        weight = 1 - self._decay if self._begun else 1.0
        self._begun = True
        self.updates += 1
        for average, tensor in zip(self.averages, self._tensors, strict=True):
            average.lerp_(tensor, weight)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange tensors and averages."""
        for average, tensor in zip(self.averages, self._tensors, strict=True):
            kept = tensor.clone()
            tensor.copy_(average)
            average.copy_(kept)

    def state(self) -> dict[str, torch.Tensor]:
        named = {f"ema.{index}": average for index, average in enumerate(self.averages)}
        return {"ema.updates": self.updates, **named}

    def restored(self) -> None:
        """Called after a saved state was copied into that of this average."""
        self._begun = bool(self.updates > 0)


def average_of(job: Job, tensors: Sequence[torch.Tensor]) -> WeightAverage | None:
    """The average that a job asks for; None if it asks for none."""
    return None if job.ema is None else WeightAverage(job.ema, tensors)
