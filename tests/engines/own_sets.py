"""Data functions and transforms as users write them, without a framework: the same examples in several forms."""

from __future__ import annotations

import numpy as np

RANDOM = np.random.default_rng(11)
FEATURES = RANDOM.normal(size=(90, 5)).astype(np.float32)
LABELS = np.arange(90) % 3
PIXELS = RANDOM.integers(0, 256, (90, 6, 6)).astype(np.uint8)


def arrays():
    return FEATURES, LABELS


def images():
    return PIXELS, LABELS


class Items:
    """Map-style, as a PyTorch `Dataset` is."""

    def __len__(self):
        return len(FEATURES)

    def __getitem__(self, index):
        return FEATURES[index], LABELS[index]


def items():
    return Items()


class Failing(Items):
    """Fails when an example is read for the third time: once to count classes, then once an epoch."""

    def __init__(self):
        self.read = np.zeros(len(FEATURES), int)

    def __getitem__(self, index):
        self.read[index] += 1
        if self.read[index] > 2:
            raise ValueError("this photo is gone")
        return super().__getitem__(index)


def failing():
    return Failing()


class IterableDataset:
    """Is taken for what it is called."""


IterableDataset.__module__ = "torch.utils.data.dataset"


class Stream(IterableDataset):
    def __iter__(self):
        return zip(FEATURES, LABELS, strict=True)


def stream():
    return Stream()


def jitter(example, rng):
    """Shift and shade an image, and noise to numbers."""
    if example["x"].dtype == np.uint8:
        example["x"] = np.roll(example["x"], rng.integers(-2, 3, 2), (0, 1)) // np.uint8(rng.integers(1, 3))
    else:
        example["x"] = example["x"] + rng.normal(scale=0.1, size=example["x"].shape).astype(np.float32)
    return example
