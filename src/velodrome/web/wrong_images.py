"""The test images that a run got wrong, as pictures. Only data on this disk is read, and no code of users runs."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from velodrome.data import catalogue
from velodrome.data.own.functions import is_function
from velodrome.data.splits import Part, Splits
from velodrome.errors import VelodromeError
from velodrome.spec.job import Job
from velodrome.tasks.answers import decode, fingerprint

#: Images of a page.
MOST_IMAGES = 48
#: Pixels of the longer side of a picture, at least: small images are enlarged in whole steps.
_SIDE = 84


@dataclass(frozen=True)
class Wrong:
    """Test examples that were classified wrongly: their places in the test set, and true classes by name."""

    places: list[int]
    classes: list[str]
    count: int
    total: int


@lru_cache(maxsize=2)
def _test_part(dataset: str, seed: int, validation: float, bad_data: Any) -> tuple[Part, tuple[str, ...], float]:
    loaded = catalogue.load(dataset, seed=seed, validation=validation, bad_data=bad_data)
    assert isinstance(loaded, Splits)
    return loaded.test, loaded.class_names, loaded.scale


def _part(job: Job) -> tuple[Part, tuple[str, ...], float]:
    if is_function(job.dataset) or job.dataset.startswith("shards:") or not catalogue.is_here(job.dataset):
        raise VelodromeError("its data is not on this disk, or comes from a function of yours")
    return _test_part(job.dataset, job.seed, job.validation, job.bad_data)


def wrong_of(job: Job, result: Mapping[str, Any]) -> Wrong:
    """Which test images were wrong; an error says why that cannot be shown."""
    test = result.get("test") or {}
    if not isinstance(test.get("answers"), str) or not isinstance(test.get("total"), int):
        raise VelodromeError("this run did not record which examples it classified correctly")
    try:
        right = decode(test["answers"], test["total"])
        part, names, _ = _part(job)
    except (ValueError, OSError) as error:
        raise VelodromeError(str(error)) from None
    if len(part) != test["total"] or test.get("fingerprint") not in (None, fingerprint(part.images, part.labels)):
        raise VelodromeError("the test set has changed since this run")
    places = np.flatnonzero(~right)
    shown = places[np.linspace(0, len(places) - 1, min(MOST_IMAGES, len(places))).astype(np.int64)]
    classes = [names[label] if label < len(names) else str(label) for label in part.labels[shown].tolist()]
    return Wrong(shown.tolist(), classes, len(places), test["total"])


def picture(job: Job, place: int) -> bytes | None:
    """A test image as PNG; None if there is none at that place."""
    from PIL import Image

    part, _, scale = _part(job)
    if not 0 <= place < len(part):
        return None
    pixels = np.clip(part.images[place].astype(np.float32) * (scale * 255), 0, 255).astype(np.uint8)
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels[:, :, :3])
    times = -(-_SIDE // max(image.size))
    if times > 1:
        image = image.resize((image.width * times, image.height * times), Image.Resampling.NEAREST)
    out = io.BytesIO()
    image.save(out, format="PNG")
    return out.getvalue()
