"""DeepSpeed as its documentation shows it, on batches gathered from bytes in memory, with a client's optimizer: its own
is compiled when it starts."""

from __future__ import annotations

from torch_batches import batches, start

task, rank = start()

import logging  # noqa: E402
import warnings  # noqa: E402

import deepspeed  # noqa: E402
import torch  # noqa: E402
from deepspeed.utils import logger  # noqa: E402
from task import LEARNING_RATE, Clock, answer  # noqa: E402
from torch_model import build, loss_of  # noqa: E402

logger.setLevel(logging.WARNING)
warnings.filterwarnings("ignore", category=FutureWarning)  # of PyTorch's collectives, in every step
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # would be compiled, and serves inference only
model = build(task.model)
size = sum(parameter.numel() for parameter in model.parameters())
engine, *_ = deepspeed.initialize(
    model=model, optimizer=torch.optim.Adam(model.parameters(), lr=LEARNING_RATE),
    config={
        "train_micro_batch_size_per_gpu": task.batch, "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": int(task.strategy.removeprefix("zero")), "reduce_bucket_size": size},
    },
)  # fmt: skip
take, clock = batches(task, task.batch, 1 + rank), Clock()
for number in range(task.steps):
    clock.before_step(number)
    inputs, targets = take()
    engine.backward(loss_of(engine(inputs), targets))
    engine.step()
if rank == 0:
    answer(clock.rate(task))
