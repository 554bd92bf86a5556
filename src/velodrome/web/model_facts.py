"""What a page needs to know of a model to offer the right inputs."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from velodrome.serving.model import LoadedModel
from velodrome.web.served_models import Slot

#: Classes that are listed: a page shows no more, and a vocabulary would be large.
_MOST_CLASSES = 200
#: Pictures of at most this height and width can be drawn.
_DRAWN_PIXELS = 64


def facts_of(slot: Slot) -> dict[str, Any]:
    """A model as plain data: its status, task and inputs."""
    if slot.model is None:
        return {"name": slot.name, "status": slot.status, "problem": slot.problem}
    about = slot.model.about
    return {
        "name": slot.name, "status": slot.status, "problem": slot.problem, "task": about.task, "kind": about.kind,
        "model": about.model, "engine": about.engine, "dataset": about.dataset,
        "classes": list(about.classes[:_MOST_CLASSES]), "words": len(about.vocabulary), "test": slot.test,
        "difference": about.difference, "checked": about.checked,
        "inputs": [one.model_dump() for one in about.inputs], "columns": about.columns.get("features", []),
        "picture": _picture(slot.model),
    }


@lru_cache(maxsize=64)
def _picture(model: LoadedModel) -> dict[str, Any] | None:
    """Size of the pictures that a model takes, how a drawing must look to resemble its data, and its test pictures."""
    shape = model.image_input
    if shape is None:
        return None
    height, width, channels = shape
    one = model.about.inputs[0]
    images, labels = model.examples.get(f"in:{one.name}"), _labels(model)
    found: dict[str, Any] = {"height": height, "width": width, "channels": channels, "drawn": None, "examples": []}
    if images is None or one.dtype != "uint8":
        return found
    found["examples"] = labels if labels else [""] * len(images)
    if channels == 1 and max(height, width) <= _DRAWN_PIXELS:
        light = images[..., 0].astype(np.float32) / model.about.brightest
        edge = np.concatenate([light[:, 0], light[:, -1], light[:, :, 0], light[:, :, -1]], axis=1)
        dark = float(np.median(edge)) < 0.5
        found["drawn"] = {"dark": dark, "fill": _fill(light if dark else 1 - light)}
    return found


def _fill(light: np.ndarray[Any, Any]) -> float:
    """How much of the picture's side the box around what is drawn takes, in the middle of the examples."""
    sides = []
    for one in light:
        rows, columns = np.flatnonzero(one.max(1) > 0.2), np.flatnonzero(one.max(0) > 0.2)
        if len(rows) and len(columns):
            sides.append(max((rows[-1] - rows[0] + 1) / one.shape[0], (columns[-1] - columns[0] + 1) / one.shape[1]))
    return round(float(np.median(sides)), 3) if sides else 0.8


def _labels(model: LoadedModel) -> list[str]:
    """What the test pictures show, by name."""
    target = next((array for name, array in model.examples.items() if name.startswith("y:")), None)
    if target is None or target.ndim != 1 or target.dtype.kind not in "iu":
        return []
    names = model.about.classes
    return [names[place] if 0 <= place < len(names) else str(place) for place in target.tolist()]
