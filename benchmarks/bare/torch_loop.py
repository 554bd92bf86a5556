"""Plain PyTorch in one process, written by hand: what Velodrome's `single` is measured against for the larger networks.

It has what such a loop has when somebody cared: data in memory as bytes, channels-last convolutions, a fused optimizer.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "peers"))
from task import CONTEXT, LEARNING_RATE, Clock, answer, read_task, take_core

task = read_task()
take_core(0)

import torch  # noqa: E402
from torch_model import build, loss_of  # noqa: E402

torch.set_num_threads(1)
torch.manual_seed(1)
model = build(task.model)
with np.load(task.data, allow_pickle=False) as stored:
    if task.reads_text:
        words = torch.from_numpy(stored["words"].astype(np.int64))
        length = len(words) // task.batch
        rows = words[: length * task.batch].view(task.batch, length)
        steps_of_epoch = (length - 1) // CONTEXT
    else:
        model = model.to(memory_format=torch.channels_last)
        images = torch.from_numpy(stored["images"]).permute(0, 3, 1, 2)
        labels = torch.from_numpy(stored["labels"])
        steps_of_epoch = len(labels) // task.batch
optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=True)

clock, order = Clock(), torch.zeros(0)
for step in range(task.steps):
    clock.before_step(step)
    place = step % steps_of_epoch
    if task.reads_text:
        first = place * CONTEXT
        inputs, targets = (rows[:, first + after : first + after + CONTEXT] for after in (0, 1))
    else:
        if place == 0:
            order = torch.randperm(len(labels))
        chosen = order[place * task.batch : (place + 1) * task.batch]
        inputs, targets = images[chosen].float().div_(255), labels[chosen]
    optimizer.zero_grad()
    loss_of(model(inputs), targets).backward()
    optimizer.step()
answer(clock.rate(task))
