"""Single examples of an iterable as arrays, within a worker's share of the memory; odd ones are faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from velodrome.data.bad_data import Faults
from velodrome.data.budget import memory_budget
from velodrome.data.images.arrays import as_array
from velodrome.errors import BadRequest
from velodrome.printable import bytes_text

#: What Python needs in addition to the bytes of an example, roughly.
_EACH = 300


def gathered(name: str, examples: Iterable[Any], faults: Faults) -> Mapping[str, Any]:
    """Single examples as two arrays; those of another shape than most are faults."""
    images, labels, places = [], [], []
    size, most = 0, _most_bytes()
    for place, example in enumerate(examples):
        try:
            image, label = example
        except (TypeError, ValueError):
            raise BadRequest(
                f"--dataset {name!r}: item {place} of what the function returned is no pair of image and label"
            ) from None
        try:
            images.append(as_array(image))
            labels.append(as_array(label))
            places.append(place)
        except ValueError:
            del images[len(places) :], labels[len(places) :]
            faults.add("examples whose rows are not of one length", f"item {place}")
            continue
        size += images[-1].nbytes + labels[-1].nbytes + _EACH
        if size > most:
            raise BadRequest(
                f"--dataset {name!r}: the first {place + 1:,} examples of what the function returned take "
                f"{bytes_text(size)}, more than a worker's share of the free memory, and more follow: end it "
                "sooner, or write the examples to files and name them as path:FOLDER"
            )
    kept = _alike("examples", [image.shape for image in images], places, faults)
    kinds: list[object] = ["words" if label.dtype.kind == "U" else "numbers" for label in labels]
    kept &= _alike("labels", [label.shape for label in labels], places, faults)
    kept &= _alike("labels", kinds, places, faults, what="kind")
    if not kept:
        wrong = "; ".join(map(str, faults.found()))
        more = f" that can be used: {wrong}" if wrong else ""
        raise BadRequest(f"--dataset {name!r}: the function returned no examples{more}")
    chosen = sorted(kept)
    return {"x_train": np.stack([images[k] for k in chosen]), "y_train": np.array([labels[k] for k in chosen])}


def _alike(noun: str, signs: Sequence[object], places: list[int], faults: Faults, *, what: str = "shape") -> set[int]:
    """Which of the examples have the sign that most have; the others are faults."""
    if not signs:
        return set()
    most = Counter(signs).most_common(1)[0][0]
    for place, sign in zip(places, signs, strict=True):
        if sign != most:
            faults.add(f"{noun} of another {what} than most ({most})", f"item {place}", f"{sign}")
    return {k for k, sign in enumerate(signs) if sign == most}


def _most_bytes() -> int:
    """What single examples may take: they are held twice more, as one array and as bytes."""
    return memory_budget(1 / 3)
