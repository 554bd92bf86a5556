"""What the loops of PyTorch and of libraries around it share: processes started by torchrun, and batches gathered from
bytes in memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "peers"))
from task import Clock, Task, answer, read_task, take_core


def start() -> tuple[Task, int]:
    """The task and this process's rank, once there is a process for each worker, on a core of its own."""
    task = read_task()
    if task.workers > 1 and "RANK" not in os.environ:
        launch = ["-m", "torch.distributed.run", "--nproc-per-node", str(task.workers), "--rdzv-backend", "c10d",
                  "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1"]  # fmt: skip
        os.execv(sys.executable, [sys.executable, *launch, *sys.argv])
    rank = int(os.environ.get("RANK", "0"))
    take_core(rank)
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(1)
    return task, rank


def batches(task: Task, batch: int, seed: int) -> Callable[[], tuple[object, object]]:
    """A function that returns the next batch: images between 0 and 1, and labels."""
    import numpy as np
    import torch

    with np.load(task.data, allow_pickle=False) as stored:
        images, labels = torch.from_numpy(stored["images"]).permute(0, 3, 1, 2), torch.from_numpy(stored["labels"])
    order = torch.Generator().manual_seed(seed)
    place, shuffled = [0], [torch.randperm(len(labels), generator=order)]

    def take() -> tuple[torch.Tensor, torch.Tensor]:
        if place[0] + batch > len(labels):
            place[0], shuffled[0] = 0, torch.randperm(len(labels), generator=order)
        chosen = shuffled[0][place[0] : place[0] + batch]
        place[0] += batch
        return images[chosen].float().div_(255), labels[chosen]

    return take


def train(task: Task, rank: int, step: Callable[[object, object], None]) -> None:
    """Take every step of a task, each on a process's own batch, and print the rate."""
    take, clock = batches(task, task.batch, 1 + rank), Clock()
    for number in range(task.steps):
        clock.before_step(number)
        step(*take())
    if rank == 0:
        answer(clock.rate(task))
