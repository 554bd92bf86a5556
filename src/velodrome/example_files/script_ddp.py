"""A training script as torchrun starts it, with DistributedDataParallel; three lines of it report to Velodrome.

velodrome train --script script_ddp.py --workers 2
velodrome race --script script_ddp.py --vary script_args="--lr 0.1","--lr 0.01" --vary workers=1,2
"""

import argparse

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import velodrome

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch", type=int, default=32, help="examples per process and step")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--save", help="file for the weights of each rank, such as weights-{rank}.npy")
options = parser.parse_args()


def examples(count, seed):
    """Points in 20 dimensions, in four classes that a linear model can separate."""
    random = np.random.default_rng(seed)
    points = random.standard_normal((count, 20), dtype=np.float32)
    classes = (points @ np.random.default_rng(0).standard_normal((20, 4))).argmax(1)
    return TensorDataset(torch.from_numpy(points), torch.from_numpy(classes))


def accuracy(data):
    """The fraction of all examples that the model gets right; each rank looks at its share."""
    points, classes = (tensor[dist.get_rank() :: dist.get_world_size()] for tensor in data.tensors)
    with torch.no_grad():
        correct = (model(points).argmax(1) == classes).sum()
    dist.all_reduce(correct)
    return correct.item() / len(data)


dist.init_process_group("gloo")
torch.manual_seed(options.seed)
train, held_out, test = examples(4000, 1), examples(500, 2), examples(1000, 3)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(20, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)
sampler = DistributedSampler(train, seed=options.seed)
loader = DataLoader(train, batch_size=options.batch, sampler=sampler)

step = 0
velodrome.log(step=step)  # training begins here
for epoch in range(options.epochs):
    sampler.set_epoch(epoch)
    for points, classes in loader:
        optimizer.zero_grad()
        loss = cross_entropy(model(points), classes)
        loss.backward()
        optimizer.step()
        step += 1
        velodrome.log(step=step, examples=len(points), epoch=epoch, loss=loss)
    reached = accuracy(held_out)
    velodrome.log(epoch=epoch, split="validation", examples=len(held_out), accuracy=reached)
    if dist.get_rank() == 0:
        print(f"epoch {epoch + 1} loss: {loss.item():.4f} validation accuracy: {reached:.4f}")

reached = accuracy(test)
velodrome.log(split="test", examples=len(test), accuracy=reached)
if dist.get_rank() == 0:
    print(f"test accuracy: {reached:.4f}")
if options.save:
    weights = torch.cat([weight.detach().flatten() for weight in model.parameters()])
    np.save(options.save.format(rank=dist.get_rank()), weights.numpy())
dist.destroy_process_group()
