"""Horovod with PyTorch as its documentation shows it, started by `horovodrun`; data in memory as bytes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "peers"))
from task import LEARNING_RATE, Clock, answer, read_task, take_core

task = read_task()
if task.workers > 1 and "HOROVOD_RANK" not in os.environ:
    launch = ["-m", "horovod.runner.launch", "-np", str(task.workers), "--gloo", "--network-interface", "lo"]
    os.execv(sys.executable, [sys.executable, *launch, sys.executable, *sys.argv])
rank = int(os.environ.get("HOROVOD_RANK", "0"))
os.environ["RANK"] = str(rank)
take_core(rank)

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch_model import build, loss_of  # noqa: E402

torch.set_num_threads(1)
torch.manual_seed(1)
model = build(task.model)
optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=True)
if task.workers > 1:
    import horovod.torch as hvd

    hvd.init()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
with np.load(task.data, allow_pickle=False) as stored:
    images, labels = torch.from_numpy(stored["images"]).permute(0, 3, 1, 2), torch.from_numpy(stored["labels"])
order, place, generator = torch.zeros(0, dtype=torch.int64), 0, torch.Generator().manual_seed(rank)

clock = Clock()
for step in range(task.steps):
    clock.before_step(step)
    if place + task.batch > len(order):
        order, place = torch.randperm(len(labels), generator=generator), 0
    chosen = order[place : place + task.batch]
    place += task.batch
    optimizer.zero_grad()
    loss_of(model(images[chosen].float().div_(255)), labels[chosen]).backward()
    optimizer.step()
if rank == 0:
    answer(clock.rate(task))
