"""Hugging Face Accelerate: its prepared model, optimizer and loader in the same loop."""

from __future__ import annotations

import os

from task import LEARNING_RATE, Clock, answer, read_task, take_core

take_core(int(os.environ["LOCAL_RANK"]))

import torch  # noqa: E402
from accelerate import Accelerator  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402
from torch_model import build, dataset, loss_of  # noqa: E402

task = read_task()
torch.set_num_threads(1)
accelerator = Accelerator(cpu=True)
examples = dataset(task)
model = build(task.model)
optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
loader = DataLoader(examples, batch_size=task.batch, shuffle=True, drop_last=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

clock, step = Clock(), 0
while step < task.steps:
    for inputs, targets in loader:
        clock.before_step(step)
        optimizer.zero_grad()
        loss = loss_of(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
        step += 1
        if step == task.steps:
            break
rate = clock.rate(task)
if accelerator.is_main_process:
    answer(rate)
accelerator.end_training()
