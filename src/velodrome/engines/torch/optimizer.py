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

    def __init__(self, job: Job, tensors: list[torch.Tensor]) -> None:
        self._kind, self.rate = job.optimizer, job.rate
        self._tensors = [tensor.detach() for tensor in tensors]
        slots = {"sgd": (), "momentum": ("momentum",), "adam": ("mean", "square")}[job.optimizer]
        self._slots = {name: [torch.zeros_like(tensor) for tensor in self._tensors] for name in slots}
        self._steps = torch.zeros((), dtype=torch.float32, device=self._tensors[0].device)
        self._steps_by_tensor = [self._steps] * len(self._tensors)

    @torch.no_grad()
    def step(self, gradients: list[torch.Tensor]) -> None:
        self._steps += 1
        if self._kind == "adam":
            torch._fused_adam_(
                self._tensors, gradients, self._slots["mean"], self._slots["square"], [], self._steps_by_tensor,
                lr=self.rate, beta1=ADAM_BETAS[0], beta2=ADAM_BETAS[1], weight_decay=0.0, eps=ADAM_EPSILON,
                amsgrad=False, maximize=False,
            )
        elif self._kind == "momentum":
            torch._fused_sgd_(
                self._tensors, gradients, self._slots["momentum"], weight_decay=0.0, momentum=MOMENTUM, lr=self.rate,
                dampening=0.0, nesterov=False, maximize=False, is_first_step=False,
            )
        else:
            torch._foreach_add_(self._tensors, gradients, alpha=-self.rate)

    def state(self) -> dict[str, torch.Tensor]:
        """Everything that the next step depends on, by name."""
        slots = {f"{name}.{index}": slot for name, all_ in self._slots.items() for index, slot in enumerate(all_)}
        return {"steps": self._steps, **slots}


@torch.no_grad()
def shorten(gradients: list[torch.Tensor], longest: float) -> None:
    """Shorten the gradient as a whole to a norm, in place, where it is longer."""
    # In pieces, because a float32 sum of millions of squares is wrong in the fourth digit.
    pieces = [piece for gradient in gradients for piece in gradient.reshape(-1).split(_PIECE)]
    norm = float(torch.stack(torch._foreach_norm(pieces)).double().norm())
    if norm > longest:
        torch._foreach_mul_(gradients, longest / norm)
