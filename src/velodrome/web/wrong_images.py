"""The test images that a run got wrong, as pictures. Only data on this disk is read, and no code of users runs."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from velodrome.data import catalogue
from velodrome.data.examples import ExamplePart
from velodrome.data.own.functions import is_function
from velodrome.errors import VelodromeError
from velodrome.job.job import Job
from velodrome.serving.model import LoadedModel, is_exported
from velodrome.tasks.correctness_bits import decode, fingerprint

#: Images of a page.
MOST_IMAGES = 48
#: Pixels of the longer side of a picture, at least: small images are enlarged in whole steps.
_SIDE = 84


@dataclass(frozen=True)
class Wrong:
    """Test examples that were classified wrongly: their places in the test set, true and predicted classes by name."""

    places: list[int]
    classes: list[str]
    #: None where it is not known: a run records which answers were right, and not what they were.
    predicted: list[str | None]
    count: int
    total: int


#: The test part, the names of its classes, and what makes a byte lie between 0 and 1.
TestPart = tuple[ExamplePart, tuple[str, ...], float]


@lru_cache(maxsize=2)
def _test_part(dataset: str, seed: int, validation: float, bad_data: Any) -> TestPart:
    loaded = catalogue.load(dataset, seed=seed, validation=validation, bad_data=bad_data)
    return loaded.test, loaded.class_names, loaded.scale


def _part(job: Job) -> TestPart:
    if is_function(job.dataset) or job.dataset.startswith("shards:") or not catalogue.is_here(job.dataset):
        raise VelodromeError("its data is not on this disk, or comes from a function of yours")
    return _test_part(job.dataset, job.seed, job.validation, job.bad_data)


def wrong_of(job: Job, result: Mapping[str, Any], folder: Path) -> Wrong:
    """Which test images the run in a folder got wrong; an error says why that cannot be shown."""
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
    labels = part.labels[shown].tolist()
    given = _predicted(folder / "model", part.images[shown], labels, result.get("confusion") or [])
    return Wrong(
        shown.tolist(), [_name(label, names) for label in labels],
        [None if one is None else _name(one, names) for one in given], len(places), test["total"],
    )


def _name(label: int, names: tuple[str, ...]) -> str:
    return names[label] if label < len(names) else str(label)


def _predicted(model: Path, images: Any, labels: list[int], confusion: list[list[int]]) -> list[int | None]:
    """The class that each image was taken for: by the exported model, or where the confusion matrix leaves only one."""
    if len(labels) and is_exported(model):
        try:
            loaded = LoadedModel(model, model.parent.name)
            found = loaded.scores({loaded.about.inputs[0].name: images}).argmax(1).tolist()
            return [given if given != label else None for given, label in zip(found, labels, strict=True)]
        except Exception:  # ONNX Runtime is not installed, or does not take what the folder holds
            pass
    return [_only_mistake(confusion[label], label) if label < len(confusion) else None for label in labels]


def _only_mistake(row: list[int], label: int) -> int | None:
    others = [place for place, count in enumerate(row) if count and place != label]
    return others[0] if len(others) == 1 else None


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
