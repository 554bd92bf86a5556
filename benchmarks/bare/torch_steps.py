"""Plain PyTorch that trains until it is ended, with PyTorch's own threads and settings, and prints its progress."""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import torch
from torch import nn

MODELS = {
    "dense-300-100": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, 10)
    ),
    "lenet5": lambda: nn.Sequential(
        nn.Conv2d(1, 20, 5), nn.Tanh(), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.Tanh(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(800, 500), nn.Tanh(), nn.Linear(500, 10),
    ),
}

with np.load(sys.argv[1], allow_pickle=False) as stored:
    images, labels = torch.from_numpy(stored["x_train"])[:, None], torch.from_numpy(stored["y_train"])
model, batch = MODELS[sys.argv[2]](), int(sys.argv[3])
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
began = printed = time.perf_counter()
examples = 0
while True:
    chosen = torch.randint(len(labels), (batch,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images[chosen].float() / 255), labels[chosen]).backward()
    optimizer.step()
    examples += batch
    if (now := time.perf_counter()) - printed > 0.1:
        print(json.dumps({"time": time.time(), "examples": examples, "seconds": now - began}), flush=True)
        printed = now
