"""A training script with Hugging Face Accelerate, which needs no change but the lines that report to Velodrome.

velodrome train --script script_accelerate.py --workers 2
"""

import argparse

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
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


accelerator = Accelerator(cpu=True)
set_seed(1)
model = torch.nn.Linear(20, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)
train = DataLoader(examples(4000, 1), batch_size=32, shuffle=True)
test = DataLoader(examples(1000, 3), batch_size=100)
model, optimizer, train, test = accelerator.prepare(model, optimizer, train, test)

step = 0
velodrome.log(step=step)
for epoch in range(options.epochs):
    for points, classes in train:
        optimizer.zero_grad()
        loss = cross_entropy(model(points), classes)
        accelerator.backward(loss)
        optimizer.step()
        step += 1
        velodrome.log(step=step, examples=len(points), epoch=epoch, loss=loss)
    accelerator.print(f"epoch {epoch + 1} loss: {loss.item():.4f}")

right = []
for points, classes in test:
    with torch.no_grad():
        found = model(points).argmax(1)
    right.append(accelerator.gather_for_metrics(found == classes))
right = torch.cat(right).float()
velodrome.log(split="test", examples=len(right), accuracy=right.mean())
accelerator.print(f"test accuracy: {right.mean():.4f}")
if options.save:
    weights = torch.cat([weight.detach().flatten() for weight in model.parameters()])
    np.save(options.save.format(rank=accelerator.process_index), weights.numpy())
accelerator.end_training()
