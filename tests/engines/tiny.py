"""A data set of a few random images, for tests that build a network in their own process."""

from __future__ import annotations

import numpy as np

from velodrome.data.examples import ExampleSet, image_part, image_set


def tiny_splits(examples: int = 40) -> ExampleSet:
    """So many images to train on, of 8×8 pixels in 10 classes."""
    random = np.random.default_rng(3)
    parts = [
        image_part(random.integers(0, 256, (count, 8, 8, 1), np.uint8), random.integers(0, 10, count))
        for count in (examples, 23, 31)
    ]
    return image_set("random", *parts, classes=10, scale=1 / 255)
