"""DeepSpeed in a training process: everything is the torch engine's but what `deepspeed.initialize` wraps, and the
state of its optimizer, which is divided over the processes and put together by parameter.

DeepSpeed logs on the standard output while it is imported, where events are written: its output is redirected.
"""

from __future__ import annotations

import logging
import sys
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import pad

from velodrome.engines.torch import model_file as saved
from velodrome.engines.torch import worker
from velodrome.engines.torch.learner import TorchLearner
from velodrome.engines.torch.optimizer import STOCK_SLOTS, Gradients, Optimizer, torch_optimizer
from velodrome.engines.torch.process_group import connect, translate_errors_of_collectives, translate_peer_errors
from velodrome.engines.torch.strategies.fsdp import LockstepLearner
from velodrome.job.job import Job
from velodrome.tasks.base import Counts
from velodrome.training.context import Context
from velodrome.training.learner import Part, State
from velodrome.training.sampler import computing
from velodrome.transport.base import Transport

with redirect_stdout(sys.stderr):
    import deepspeed
    from deepspeed.utils import (
        logger,
        safe_get_full_optimizer_state,
        safe_set_full_fp32_param,
        safe_set_full_optimizer_state,
        safe_set_local_fp32_param,
        safe_set_local_optimizer_state,
    )

#: The stage of ZeRO by strategy.
STAGES = {"zero1": 1, "zero2": 2, "zero3": 3}
#: Where DeepSpeed lies: it waits for collectives in the forward pass, between the layers of the model.
_DEEPSPEED = Path(deepspeed.__file__).parent


def train(context: Context) -> None:
    """Train the job of the context to its end."""
    logger.setLevel(logging.WARNING)  # it reports every setting on the standard output
    # A collective of its own for inference, which it would compile with ninja in every process that starts.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    # Newer versions of PyTorch have other names for the collectives that it calls, in every step.
    warnings.filterwarnings("ignore", message=r".*torch\.distributed\..* is deprecated", category=FutureWarning)
    worker.train(context, _connect)


def _connect(context: Context, gpus: bool) -> tuple[Transport, type[TorchLearner]]:
    # DeepSpeed uses the process group that it finds.
    return connect(context, gpus=gpus, trains_in_default=True), ZeroLearner


class ZeroOptimizer(Optimizer):
    """Steps the engine, which has the gradients. Each process has flat parts of weights and state, in float32."""

    def __init__(self, job: Job, engine: Any, parameters: list[torch.nn.Parameter]) -> None:
        self.rate, self._engine, self._parameters = job.rate, engine, parameters
        self._slots = STOCK_SLOTS[job.optimizer]
        zero, self._divides_weights = engine.optimizer, engine.zero_optimization_partition_weights()
        self._flat: list[torch.Tensor] = (
            zero.fp32_partitioned_groups_flat if self._divides_weights else zero.single_partition_of_fp32_groups
        )
        self._collected: dict[str, torch.Tensor] = {}
        # `torch.optim` makes its state in the first step; a resumed run loads into it before that.
        counters = ("step",) if job.optimizer in ("adam", "adamw") else ()
        for flat in self._flat if self._slots else ():
            zero.optimizer.state[flat] = {name: torch.zeros(()) for name in counters} | {
                name: torch.zeros_like(flat, requires_grad=False) for name in self._slots
            }
        if not self._divides_weights:
            zero._lazy_init_hp_params_optimizer_state()  # done by the first step otherwise

    def _step(self, gradients: Gradients) -> None:
        for group in self._engine.optimizer.param_groups:
            group["lr"] = self.rate
        self._engine.step()

    def _counters(self) -> list[torch.Tensor]:
        """How many steps each flat part has made, where the optimizer counts them."""
        held = [self._engine.optimizer.optimizer.state[flat] for flat in self._flat]
        return [each["step"] for each in held if "step" in each]

    def collect(self, *, keep: bool) -> None:
        """Put the state together; called in every process, and kept where it is asked for."""
        for slot in self._slots:
            for index, parameter in enumerate(self._parameters):
                whole = safe_get_full_optimizer_state(parameter, slot)
                if keep:
                    self._collected[f"{slot}.{index}"] = whole.cpu()

    def _own_state(self) -> dict[str, torch.Tensor]:
        counters = self._counters()[:1]
        return self._collected | ({"steps": counters[0]} if counters else {})

    @torch.no_grad()
    def load(self, state: dict[str, torch.Tensor]) -> None:
        for counter in self._counters():
            counter.copy_(state["steps"])
        for slot in self._slots:
            for index, parameter in enumerate(self._parameters):
                if self._divides_weights:
                    safe_set_local_optimizer_state(parameter, self._part(parameter, state[f"{slot}.{index}"]), slot)
                else:
                    safe_set_full_optimizer_state(parameter, state[f"{slot}.{index}"], slot)

    @torch.no_grad()
    def step_from(self, weights: list[torch.Tensor]) -> None:
        """Step from these weights on, one for each parameter; the model must have them already."""
        for parameter, value in zip(self._parameters, weights, strict=True):
            if self._divides_weights:
                safe_set_local_fp32_param(parameter, self._part(parameter, value))
            else:
                safe_set_full_fp32_param(parameter, value)

    def _part(self, parameter: torch.nn.Parameter, value: torch.Tensor) -> torch.Tensor:
        """What this process has of a value of a parameter. DeepSpeed's own division (`safe_set_full_…`) fails where
        parts are not equally large."""
        size, rank = parameter.partition_numel(), self._engine.global_rank
        filled = pad(value.flatten(), (0, size * self._engine.world_size - value.numel()))
        return filled[size * rank : size * (rank + 1)]


class ZeroLearner(LockstepLearner):
    """`deepspeed.initialize` wraps the model and the optimizer; `backward` and `step` of its engine train.

    Gradients are reduced in the order in which they are computed, so a process without examples must compute, too.
    """

    def _make_optimizer(self) -> Optimizer:
        job = self._context.job
        self._refuse_few_examples()
        self.loss_factor = float(self._transport.size)  # DeepSpeed averages over the processes
        model, (kind, settings) = self._network.module, torch_optimizer(job)
        self._remember_inputs(model)
        for value in (*model.parameters(), *model.buffers()):
            value.data = value.data.contiguous()  # DeepSpeed takes no other layout, as of convolutions
        # On a busy machine it takes many seconds, most of them to import what PyTorch compiles with.
        with computing(self._context.status), translate_peer_errors():
            self._engine, *_ = deepspeed.initialize(
                model=model, optimizer=kind(self._trained, **settings), config=self._config()
            )
        self._zero = ZeroOptimizer(job, self._engine, self._trained)
        return self._zero

    def _config(self) -> dict[str, Any]:
        job = self._context.job
        return {
            "train_micro_batch_size_per_gpu": max(1, job.batch_size // self._transport.size // job.accumulate),
            "gradient_accumulation_steps": job.accumulate,
            "gradient_clipping": job.clip_norm or 0.0,
            "zero_allow_untested_optimizer": True,  # those of torch.optim; DeepSpeed's own are compiled when they start
            # By default, buckets take 2 GB in every process.
            "zero_optimization": {"stage": STAGES[job.strategy], "reduce_bucket_size": self.parameters},
        }

    def _wrapped(self) -> nn.Module:
        self._clip_norm = None  # DeepSpeed does it
        wrapped: nn.Module = self._engine
        return wrapped

    # -- training

    def train(self, first: int, last: int) -> Counts:
        with translate_errors_of_collectives(_DEEPSPEED):
            return super().train(first, last)

    def _backward(self, loss: torch.Tensor) -> None:
        with self._context.waiting(), translate_peer_errors():  # where it blocks it waits for others
            # Losses are divided by the batch of a whole step already.
            self._engine.backward(loss, scale_wrt_gas=False)

    def _gradients(self, loss: torch.Tensor | None) -> Gradients:
        assert loss is not None, "a process without examples has a loss of zero"
        self._backward(loss)
        return []  # they stay with DeepSpeed

    def _update(self, gradients: Gradients) -> None:
        with self._context.waiting(), translate_peer_errors():
            super()._update(gradients)

    def _will_add(self, more: bool) -> None:
        self._engine.set_gradient_accumulation_boundary(not more)

    def evaluate(self, part: Part) -> Counts:
        with translate_errors_of_collectives(_DEEPSPEED):
            return super().evaluate(part)

    # -- state: put together in every process, and kept by the first

    def _gathered(self, *, changed: bool = False) -> Any:
        """With whole parameters in every process; `changed` ones are partitioned again."""
        return deepspeed.zero.GatheredParameters(list(self._model.parameters()), modifier_rank=0 if changed else None)

    def collect_model(self) -> None:
        with translate_peer_errors(), self._gathered():
            if self._context.is_chief:
                self._collected = saved.weights_of(self._model)

    def collect_state(self) -> None:
        self.collect_model()
        with translate_peer_errors():
            self._zero.collect(keep=self._context.is_chief)
        if self._collected is not None:
            self._state = {**saved.to_arrays("model.", self._collected),
                           **saved.to_arrays("optimizer.", self._zero.state())}

    def load(self, state: State) -> None:
        with translate_peer_errors(), self._gathered(changed=True):
            super().load(state)
            weights = [parameter.detach().clone() for parameter in self._trained]
        self._zero.step_from(weights)
