"""Loads a model that this engine saved, for use outside a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from velodrome.engines.mxnet.learner import restore
from velodrome.models import mxnet_zoo
from velodrome.models.recipe import read_description


def load(folder: Path) -> Any:
    """A saved network: it takes images (count, channels, height, width), or words (columns, rows) and the state."""
    about = read_description(folder)
    if about.get("kind") == "text":
        network: Any = mxnet_zoo.build_text(about["model"], about["vocabulary"], 0, about["dtype"])
    else:
        network = mxnet_zoo.build(about["model"], tuple(about["input_shape"]), about["classes"], 0, about["dtype"])
    return restore(network, folder, about["dtype"])
