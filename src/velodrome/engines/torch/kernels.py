"""The private functions of PyTorch that this engine calls: what each gains, and the public functions that replace it.

No other file of the engine calls a private function. One that is missing or takes other arguments than today is
replaced, and training continues, slower.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from velodrome.job.optimization import ADAM_BETAS, MOMENTUM

#: The default of `torch.optim.Adam`.
ADAM_EPSILON = 1e-8

Tensors = list[torch.Tensor]
#: Tensors, gradients, running means, running means of squares, each tensor's number of steps with this one, learning
#: rate, weight decay.
AdamStep = Callable[[Tensors, Tensors, Tensors, Tensors, Tensors, float, float], None]
#: Tensors, gradients, momentum, learning rate, weight decay, whether in Nesterov's form.
MomentumStep = Callable[[Tensors, Tensors, Tensors, float, float, bool], None]

#: The private functions, by their names in `torch`.
PRIVATE = ("_fused_adam_", "_fused_adamw_", "_fused_sgd_")


# Microseconds of CPU for one step of dense-300-100 (266,610 parameters, one thread, torch 2.13.0):
#   adam: this 154, `torch.optim.Adam(fused=True)` 311, `plain_adam` 600, `torch.optim.Adam()` 1,390
#   momentum: this 67, `torch.optim.SGD(fused=True)` 136, `plain_momentum` 134, `torch.optim.SGD()` 233
# (a whole step takes about 1,500). `torch.optim` also imports the compiler with its first optimizer, which takes as
# long as importing PyTorch. The `_foreach` functions gained 4 µs a step and are not used.


def fused_adam(
    tensors: Tensors, gradients: Tensors, means: Tensors, squares: Tensors, steps: Tensors, rate: float,
    decay: float = 0.0,
) -> None:
    """One step of Adam in a single pass over all tensors; weight decay is added to the gradient."""
    torch._fused_adam_(
        tensors, gradients, means, squares, [], steps,
        lr=rate, beta1=ADAM_BETAS[0], beta2=ADAM_BETAS[1], weight_decay=decay, eps=ADAM_EPSILON,
        amsgrad=False, maximize=False,
    )


def fused_adamw(
    tensors: Tensors, gradients: Tensors, means: Tensors, squares: Tensors, steps: Tensors, rate: float,
    decay: float = 0.0,
) -> None:
    """One step of AdamW in a single pass over all tensors; weight decay does not pass through the running means."""
    torch._fused_adamw_(
        tensors, gradients, means, squares, [], steps,
        lr=rate, beta1=ADAM_BETAS[0], beta2=ADAM_BETAS[1], weight_decay=decay, eps=ADAM_EPSILON,
        amsgrad=False, maximize=False,
    )


def fused_momentum(
    tensors: Tensors, gradients: Tensors, momentum: Tensors, rate: float, decay: float = 0.0, nesterov: bool = False
) -> None:
    """One step of SGD with momentum in a single pass over all tensors."""
    torch._fused_sgd_(
        tensors, gradients, momentum, weight_decay=decay, momentum=MOMENTUM, lr=rate,
        dampening=0.0, nesterov=nesterov, maximize=False, is_first_step=False,
    )


def plain_adam(
    tensors: Tensors, gradients: Tensors, means: Tensors, squares: Tensors, steps: Tensors, rate: float,
    decay: float = 0.0,
) -> None:
    """One step of Adam by public functions."""
    for tensor, gradient, mean, square, step in zip(tensors, gradients, means, squares, steps, strict=True):
        gradient = gradient.add(tensor, alpha=decay) if decay else gradient
        mean_correction, square_correction = (1 - beta ** float(step) for beta in ADAM_BETAS)
        mean.lerp_(gradient, 1 - ADAM_BETAS[0])
        square.mul_(ADAM_BETAS[1]).addcmul_(gradient, gradient, value=1 - ADAM_BETAS[1])
        divisor = square.sqrt().div_(math.sqrt(square_correction)).add_(ADAM_EPSILON)
        tensor.addcdiv_(mean, divisor, value=-rate / mean_correction)


def plain_adamw(
    tensors: Tensors, gradients: Tensors, means: Tensors, squares: Tensors, steps: Tensors, rate: float,
    decay: float = 0.0,
) -> None:
    """One step of AdamW by public functions."""
    for tensor in tensors:
        tensor.mul_(1 - rate * decay)
    plain_adam(tensors, gradients, means, squares, steps, rate)


def plain_momentum(
    tensors: Tensors, gradients: Tensors, momentum: Tensors, rate: float, decay: float = 0.0, nesterov: bool = False
) -> None:
    """One step of SGD with momentum by public functions."""
    for tensor, gradient, moved in zip(tensors, gradients, momentum, strict=True):
        gradient = gradient.add(tensor, alpha=decay) if decay else gradient
        moved.mul_(MOMENTUM).add_(gradient)
        tensor.add_(gradient.add(moved, alpha=MOMENTUM) if nesterov else moved, alpha=-rate)


@dataclass(frozen=True)
class Kernels:
    """The optimizer steps that this PyTorch offers."""

    adam: AdamStep
    momentum: MomentumStep
    #: The private functions that had to be replaced.
    missing: tuple[str, ...] = ()


def choose_kernels(*, decoupled: bool = False) -> Kernels:
    """The fused steps, each replaced by its public form where a trial step fails or differs from it. With `decoupled`,
    that of Adam is AdamW's."""
    name, adam, plain = ("_fused_adam_", fused_adam, plain_adam)
    if decoupled:
        name, adam, plain = ("_fused_adamw_", fused_adamw, plain_adamw)
    momentum: MomentumStep = fused_momentum
    missing = []
    if not _agree(
        lambda each: adam([each[0]], [each[1]], [each[2]], [each[3]], [torch.ones(())], 0.1, 0.2),
        lambda each: plain([each[0]], [each[1]], [each[2]], [each[3]], [torch.ones(())], 0.1, 0.2),
    ):
        adam = plain
        missing.append(name)
    if not _agree(
        lambda each: fused_momentum([each[0]], [each[1]], [each[2]], 0.1, 0.2, True),
        lambda each: plain_momentum([each[0]], [each[1]], [each[2]], 0.1, 0.2, True),
    ):
        momentum = plain_momentum
        missing.append("_fused_sgd_")
    return Kernels(adam, momentum, tuple(missing))


@torch.no_grad()
def _agree(private: Callable[[torch.Tensor], None], public: Callable[[torch.Tensor], None]) -> bool:
    """Whether both change a few numbers alike: a row each for tensor, gradient and slots."""
    expected, found = (torch.tensor([[1.0, 2.0], [0.5, -0.5], [0.1, 0.2], [0.3, 0.4]]) for _ in range(2))
    public(expected)
    try:
        private(found)
    except (AttributeError, TypeError, RuntimeError):  # it is gone, or takes other arguments
        return False
    return torch.allclose(found, expected, rtol=1e-5)
