"""Lightning Fabric: its set-up model, optimizer and loader in the same loop."""

from __future__ import annotations

import os

from task import LEARNING_RATE, Clock, answer, read_task, take_core

take_core(int(os.environ["LOCAL_RANK"]))

import torch  # noqa: E402
from lightning_fabric import Fabric  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402
from torch_model import build, dataset, loss_of  # noqa: E402

task = read_task()
torch.set_num_threads(1)
fabric = Fabric(accelerator="cpu", devices=task.workers, strategy="ddp")
fabric.launch()
examples = dataset(task)
model = build(task.model)
optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
model, optimizer = fabric.setup(model, optimizer)
loader = fabric.setup_dataloaders(DataLoader(examples, batch_size=task.batch, shuffle=True, drop_last=True))

clock, step = Clock(), 0
while step < task.steps:
    for inputs, targets in loader:
        clock.before_step(step)
        optimizer.zero_grad()
        loss = loss_of(model(inputs), targets)
        fabric.backward(loss)
        optimizer.step()
        step += 1
        if step == task.steps:
            break
rate = clock.rate(task)
if fabric.is_global_zero:
    answer(rate)
fabric.barrier()
