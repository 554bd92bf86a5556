"""A plain DistributedDataParallel loop with a DataLoader, started by torchrun, as PyTorch's tutorial writes it."""

from __future__ import annotations

import os

from task import LEARNING_RATE, Clock, answer, read_task, take_core

take_core(int(os.environ["LOCAL_RANK"]))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402
from torch.utils.data.distributed import DistributedSampler  # noqa: E402
from torch_model import build, dataset, loss_of  # noqa: E402

task = read_task()
torch.set_num_threads(1)
dist.init_process_group("gloo")
examples = dataset(task)
sampler: DistributedSampler = DistributedSampler(examples)
loader = DataLoader(examples, batch_size=task.batch, sampler=sampler, drop_last=True)
model = DistributedDataParallel(build(task.model))
optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)

clock, step, epoch = Clock(), 0, 0
while step < task.steps:
    sampler.set_epoch(epoch)
    for inputs, targets in loader:
        clock.before_step(step)
        optimizer.zero_grad()
        loss = loss_of(model(inputs), targets)
        loss.backward()
        optimizer.step()
        step += 1
        if step == task.steps:
            break
    epoch += 1
rate = clock.rate(task)
if dist.get_rank() == 0:
    answer(rate)
dist.destroy_process_group()
