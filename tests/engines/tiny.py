"""A data set of a few random images, for tests that build a network in their own process."""

from __future__ import annotations

import numpy as np

from velodrome.data.splits import Part, Splits


def tiny_splits(examples: int = 40) -> Splits:
    """So many images to train on, of 8×8 pixels in 10 classes."""
    random = np.random.default_rng(3)
    parts = [
        Part(random.integers(0, 256, (count, 8, 8, 1), np.uint8), random.integers(0, 10, count))
        for count in (examples, 23, 31)
    ]
    return Splits("random", *parts, classes=10, scale=1 / 255)
