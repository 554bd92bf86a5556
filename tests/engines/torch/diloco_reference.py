"""DiLoCo in nothing but NumPy, apart from everything in the engine: `python diloco_reference.py` writes diloco.json.

Softmax regression on eight images of two pixels, in batches of four for two workers. The steps are those of the paper
(arXiv 2311.08105): AdamW in each worker, and every three steps one step of SGD with Nesterov momentum on the mean of
their changes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

FIXTURE = Path(__file__).with_name("diloco.json")
IMAGES = [[255, 0], [0, 255], [128, 64], [32, 200], [240, 10], [16, 220], [90, 100], [60, 180]]
LABELS = [0, 1, 0, 1, 0, 1, 1, 0]
SETTINGS = {"seed": 1, "epochs": 4, "batch": 4, "every": 3, "rate": 0.1, "decay": 0.01, "epsilon": 1e-8}
OUTER_RATE, OUTER_MOMENTUM = 0.7, 0.9


def gradient(weights: np.ndarray, images: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Of the mean cross-entropy; the last column of the weights is the bias."""
    inputs = np.hstack([images, np.ones((len(images), 1))])
    scores = inputs @ weights.T
    chances = np.exp(scores - scores.max(1, keepdims=True))
    chances /= chances.sum(1, keepdims=True)
    chances[np.arange(len(labels)), labels] -= 1
    return chances.T @ inputs / len(labels)


def compute(workers: int) -> dict[str, Any]:
    """The weights of every worker, the outer weights and their momentum after all steps, and after the first round."""
    images, labels = np.array(IMAGES) / 255, np.array(LABELS)
    begin = np.hstack([np.arange(4).reshape(2, 2) / 8, np.zeros((2, 1))])
    mine = [begin.copy() for _ in range(workers)]
    mean, square = ([np.zeros_like(begin) for _ in range(workers)] for _ in range(2))
    outer, momentum = begin.copy(), None
    rate, decay, step, rounds = SETTINGS["rate"], SETTINGS["decay"], 0, []
    for epoch in range(1, SETTINGS["epochs"] + 1):
        order = np.random.Generator(np.random.PCG64([SETTINGS["seed"], epoch])).permutation(len(labels))
        for first in range(0, len(labels), SETTINGS["batch"]):
            batch, step = order[first : first + SETTINGS["batch"]], step + 1
            for worker in range(workers):
                chosen = batch[worker::workers]
                computed = gradient(mine[worker], images[chosen], labels[chosen])
                mean[worker] = 0.9 * mean[worker] + 0.1 * computed
                square[worker] = 0.999 * square[worker] + 0.001 * computed**2
                corrected = mean[worker] / (1 - 0.9**step), square[worker] / (1 - 0.999**step)
                mine[worker] = mine[worker] * (1 - rate * decay)
                mine[worker] -= rate * corrected[0] / (np.sqrt(corrected[1]) + SETTINGS["epsilon"])
            if step % SETTINGS["every"] == 0:
                change = outer - np.mean(mine, axis=0)
                momentum = change if momentum is None else OUTER_MOMENTUM * momentum + change
                outer = outer - OUTER_RATE * (change + OUTER_MOMENTUM * momentum)
                mine = [outer.copy() for _ in range(workers)]
                rounds.append(outer.tolist())
    assert momentum is not None
    return {
        "steps": step, "rounds": rounds, "workers": [each.tolist() for each in mine], "outer": outer.tolist(),
        "momentum": momentum.tolist(), "mean": np.mean(mine, axis=0).tolist(),
    }


if __name__ == "__main__":
    FIXTURE.write_text(json.dumps({str(workers): compute(workers) for workers in (1, 2)}, indent=1) + "\n")
