"""A training script with Lightning Fabric, which finds the processes that Velodrome started.

velodrome train --script script_fabric.py --workers 2
"""

import argparse
import os

import numpy as np
import torch
from lightning_fabric import Fabric
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import velodrome

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--save", help="file for the weights of each rank, such as weights-{rank}.npy")
options = parser.parse_args()


def examples(count, seed):
    """Points in 20 dimensions, in four classes that a linear model can separate."""
    random = np.random.default_rng(seed)
    points = random.standard_normal((count, 20), dtype=np.float32)
    classes = (points @ np.random.default_rng(0).standard_normal((20, 4))).argmax(1)
    return TensorDataset(torch.from_numpy(points), torch.from_numpy(classes))


fabric = Fabric(accelerator="cpu", devices=int(os.environ.get("WORLD_SIZE", 1)), strategy="ddp")
fabric.launch()
fabric.seed_everything(1, verbose=False)
model = torch.nn.Linear(20, 4)
model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=options.lr))
loader = fabric.setup_dataloaders(DataLoader(examples(4000, 1), batch_size=32, shuffle=True))
test = examples(1000, 3)

step = 0
velodrome.log(step=step)
for epoch in range(options.epochs):
    for points, classes in loader:
        optimizer.zero_grad()
        loss = cross_entropy(model(points), classes)
        fabric.backward(loss)
        optimizer.step()
        step += 1
        velodrome.log(step=step, examples=len(points), epoch=epoch, loss=loss)
    fabric.print(f"epoch {epoch + 1} loss: {loss.item():.4f}")

points, classes = (tensor[fabric.global_rank :: fabric.world_size] for tensor in test.tensors)
with torch.no_grad():
    correct = (model(points).argmax(1) == classes).sum().float()
correct = fabric.all_reduce(correct, reduce_op="sum")
velodrome.log(split="test", examples=len(test), accuracy=correct / len(test))
fabric.print(f"test accuracy: {correct / len(test):.4f}")
if options.save:
    weights = torch.cat([weight.detach().flatten() for weight in model.parameters()])
    np.save(options.save.format(rank=fabric.global_rank), weights.numpy())
fabric.barrier()
