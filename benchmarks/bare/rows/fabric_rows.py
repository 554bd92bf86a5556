"""Lightning Fabric as its documentation shows it, on batches gathered from bytes in memory."""

from __future__ import annotations

from torch_batches import batches, start

task, rank = start()

import torch  # noqa: E402
from lightning_fabric import Fabric  # noqa: E402
from task import LEARNING_RATE, Clock, answer  # noqa: E402
from torch_model import build, loss_of  # noqa: E402

fabric = Fabric(accelerator="cpu", devices=task.workers, strategy="ddp" if task.workers > 1 else "auto")
fabric.launch()
model = build(task.model)
model, optimizer = fabric.setup(model, torch.optim.Adam(model.parameters(), lr=LEARNING_RATE))
take, clock = batches(task, task.batch, 1 + rank), Clock()
for number in range(task.steps):
    clock.before_step(number)
    inputs, targets = take()
    optimizer.zero_grad()
    fabric.backward(loss_of(model(inputs), targets))
    optimizer.step()
if rank == 0:
    answer(clock.rate(task))
