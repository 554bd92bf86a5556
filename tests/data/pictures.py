"""Small pictures that the tests make, a colour a class, and which of them a loaded data set holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from velodrome.data import catalogue
from velodrome.data.examples import ExampleSet

COLOURS = {"ant": (200, 30, 30), "bee": (30, 200, 30), "cat": (30, 30, 200)}


def picture(colour: tuple[int, int, int], number: int, height: int = 6, width: int = 8) -> Image.Image:
    """One colour, with the number in the blue of the first pixel."""
    pixels = np.full((height, width, 3), colour, np.uint8)
    pixels[0, 0] = (0, 0, number)
    return Image.fromarray(pixels)


def write_folders(top: Path, each: int = 10, classes: dict[str, tuple[int, int, int]] = COLOURS) -> Path:
    """One folder a class, `each` pictures in it."""
    for name, colour in classes.items():
        (top / name).mkdir(parents=True)
        for number in range(each):
            picture(colour, number).save(top / name / f"{number:02}.png")
    return top


def truncated(path: Path) -> None:
    """A picture whose second half is missing."""
    noise = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


def write_products(folder: Path, each: int = 12) -> Path:
    """Kaggle's layout, flaws included: an unquoted comma, a missing picture, a rare class, a short line."""
    (folder / "images").mkdir(parents=True)
    lines = ["id,gender,articleType,productDisplayName"]
    number = 1000
    for kind, colour in (("Shirts", (200, 30, 30)), ("Shoes", (30, 200, 30)), ("Watches", (30, 30, 200))):
        for place in range(each if kind != "Watches" else 3):
            number += 1
            picture(colour, place).save(folder / "images" / f"{number}.jpg")
            lines.append(f"{number},{'Men' if place % 2 else 'Women'},{kind},{kind} {place}")
    lines += ["9999,Men,Shirts,no picture", "1001x"]
    lines[1] += ", blue, large"
    (folder / "styles.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def load_photos(path: Path | str, bad_data: str = "fail", seed: int = 1, validation: float = 0.1) -> ExampleSet:
    """The data set at a path, with options behind it if there are any."""
    return catalogue.load(f"path:{path}", seed=seed, validation=validation, bad_data=bad_data)


def everything(splits: ExampleSet) -> list[tuple[str, int]]:
    """Every example as class name and number, which its first pixel holds."""
    return sorted(
        (splits.class_names[label], int(image[0, 0, 2]))
        for part in (splits.train, splits.validation, splits.test)
        for image, label in zip(part.images, part.labels, strict=True)
    )
