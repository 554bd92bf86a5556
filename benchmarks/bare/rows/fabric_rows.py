"""Lightning Fabric as its documentation shows it, on batches gathered from bytes in memory."""

from __future__ import annotations

from torch_batches import start, train

task, rank = start()

import torch  # noqa: E402
from lightning_fabric import Fabric  # noqa: E402
from task import LEARNING_RATE  # noqa: E402
from torch_model import build, loss_of  # noqa: E402

fabric = Fabric(accelerator="cpu", devices=task.workers, strategy="ddp" if task.workers > 1 else "auto")
fabric.launch()
model = build(task.model)
model, optimizer = fabric.setup(model, torch.optim.Adam(model.parameters(), lr=LEARNING_RATE))


def step(inputs: object, targets: object) -> None:
    optimizer.zero_grad()
    fabric.backward(loss_of(model(inputs), targets))
    optimizer.step()


train(task, rank, step)
