"""sgd, momentum and adam by PyTorch's fused kernels, one call a step for all tensors.

`torch.optim` computes the same with the same kernels, but loads the compiler with its first optimizer, which takes as
long as importing PyTorch itself, and more Python at every step.
"""

from __future__ import annotations

import torch

from velodrome.spec.job import ADAM_BETAS, ADAM_EPSILON, MOMENTUM, Job

#: Numbers of a gradient whose squares are summed at a time.
_PIECE = 1 << 15


class Optimizer:
    """Changes tensors in place by their gradients, which must lie in memory as the tensors do."""

    def __init__(
        self, job: Job, tensors: list[torch.Tensor], *, slots: list[torch.Tensor] | None = None,
        part: slice | None = None,
    ) -> None:
        """`slots` are given for a single tensor, zero and like it, where they may not be made here. With `part`, only
        that much of it is changed, and the gradient is that of the part: others change the rest."""
        self._kind, self.rate = job.optimizer, job.rate
        tensors = [tensor.detach() for tensor in tensors]
        names = self.slots_of(job)
        made = [[slot] for slot in slots] if slots else [[torch.zeros_like(each) for each in tensors] for _ in names]
        self._slots = dict(zip(names, made, strict=True))
        self._steps = torch.zeros((), dtype=torch.float32, device=tensors[0].device)
        self._steps_by_tensor = [self._steps] * len(tensors)
        self._tensors, self._stepped = tensors, self._slots
        if part is not None:
            self._tensors = [tensor[part] for tensor in tensors]
            self._stepped = {name: [slot[part] for slot in each] for name, each in self._slots.items()}

    @staticmethod
    def slots_of(job: Job) -> tuple[str, ...]:
        """What is remembered of every number, by name."""
        return {"sgd": (), "momentum": ("momentum",), "adam": ("mean", "square")}[job.optimizer]

    @torch.no_grad()
    def step(self, gradients: list[torch.Tensor]) -> None:
        self._steps += 1
        if self._kind == "adam":
            torch._fused_adam_(
                self._tensors, gradients, self._stepped["mean"], self._stepped["square"], [], self._steps_by_tensor,
                lr=self.rate, beta1=ADAM_BETAS[0], beta2=ADAM_BETAS[1], weight_decay=0.0, eps=ADAM_EPSILON,
                amsgrad=False, maximize=False,
            )
        elif self._kind == "momentum":
            torch._fused_sgd_(
                self._tensors, gradients, self._stepped["momentum"], weight_decay=0.0, momentum=MOMENTUM, lr=self.rate,
                dampening=0.0, nesterov=False, maximize=False, is_first_step=False,
            )
        else:
            torch._foreach_add_(self._tensors, gradients, alpha=-self.rate)

    def state(self) -> dict[str, torch.Tensor]:
        """Everything that the next step depends on, by name."""
        slots = {f"{name}.{index}": slot for name, all_ in self._slots.items() for index, slot in enumerate(all_)}
        return {"steps": self._steps, **slots}


@torch.no_grad()
def squares(gradients: list[torch.Tensor]) -> float:
    """The sum of the squares of all numbers."""
    # In pieces, because a float32 sum of millions of squares is wrong in the fourth digit.
    pieces = [piece for gradient in gradients for piece in gradient.reshape(-1).split(_PIECE)]
    return float(torch.stack(torch._foreach_norm(pieces)).double().square().sum())


@torch.no_grad()
def shorten(gradients: list[torch.Tensor], norm: float, longest: float) -> None:
    """Shorten a gradient of this norm to the longest one allowed, in place, where it is longer."""
    if norm > longest:
        torch._foreach_mul_(gradients, longest / norm)
