"""Writes photos/apples and photos/limes, 40 small JPEG images each, to try --dataset path:photos with."""

from pathlib import Path

import numpy as np
from PIL import Image

random = np.random.default_rng(0)
for name, colour in {"apples": (200, 40, 40), "limes": (60, 190, 50)}.items():
    folder = Path("photos") / name
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(40):
        pixels = np.clip(random.normal(colour, 40, (24, 32, 3)), 0, 255)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.jpg")
