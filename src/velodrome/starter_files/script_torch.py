"""A training script of your own for PyTorch, as torchrun starts it. Velodrome starts it on every worker:

COMMAND

`python FILE` runs it alone: velodrome.log() does nothing there. Race it over its own arguments and workers with

velodrome race --script FILE --vary script_args="--lr 0.1","--lr 0.01" --vary workers=1,2
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import velodrome

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch", type=int, default=32, help="examples per process and step")
options = parser.parse_args()

# Rank, world size and address come from the environment, as torchrun sets them; alone, the script is one process.
for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}.items():
    os.environ.setdefault(name, value)
dist.init_process_group("gloo")
torch.manual_seed(int(os.environ.get("VELODROME_SEED", 1)))

# Read your own data here. These are points in 20 dimensions, of two classes.
random = torch.Generator().manual_seed(0)
points = torch.randn(2000, 20, generator=random)
classes = (points[:, 0] + points[:, 1] > 0).long()
train, test = TensorDataset(points[:1600], classes[:1600]), (points[1600:], classes[1600:])

model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)
sampler = DistributedSampler(train)
loader = DataLoader(train, batch_size=options.batch, sampler=sampler)

step = 0
velodrome.log(step=step)  # training begins: what comes before counts as start-up
for epoch in range(options.epochs):
    sampler.set_epoch(epoch)
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        step += 1
        # `examples` are those of this process in this step; throughput is computed from them.
        velodrome.log(step=step, examples=len(inputs), epoch=epoch, loss=loss)

with torch.no_grad():
    accuracy = (model(test[0]).argmax(1) == test[1]).float().mean()
velodrome.log(split="test", examples=len(test[1]), accuracy=accuracy)
print(f"test accuracy: {accuracy:.4f}")
dist.destroy_process_group()
