"""Hugging Face Accelerate as its documentation shows it, on batches gathered from bytes in memory."""

from __future__ import annotations

from torch_batches import start, train

task, rank = start()

import torch  # noqa: E402
from accelerate import Accelerator  # noqa: E402
from task import LEARNING_RATE  # noqa: E402
from torch_model import build, loss_of  # noqa: E402

accelerator = Accelerator(cpu=True)
model = build(task.model)
model, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters(), lr=LEARNING_RATE))


def step(inputs: object, targets: object) -> None:
    optimizer.zero_grad()
    accelerator.backward(loss_of(model(inputs), targets))
    optimizer.step()


train(task, rank, step)
