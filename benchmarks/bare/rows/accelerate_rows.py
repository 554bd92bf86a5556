"""Hugging Face Accelerate as its documentation shows it, on batches gathered from bytes in memory."""

from __future__ import annotations

from torch_batches import batches, start

task, rank = start()

import torch  # noqa: E402
from accelerate import Accelerator  # noqa: E402
from task import LEARNING_RATE, Clock, answer  # noqa: E402
from torch_model import build, loss_of  # noqa: E402

accelerator = Accelerator(cpu=True)
model = build(task.model)
model, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters(), lr=LEARNING_RATE))
take, clock = batches(task, task.batch, 1 + rank), Clock()
for number in range(task.steps):
    clock.before_step(number)
    inputs, targets = take()
    optimizer.zero_grad()
    accelerator.backward(loss_of(model(inputs), targets))
    optimizer.step()
if rank == 0:
    answer(clock.rate(task))
