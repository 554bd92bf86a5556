"""Loads a model that this engine saved, for use outside a job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from safetensors.numpy import load_file

from velodrome.models import jax_zoo
from velodrome.models.recipe import read_description


def load(folder: Path) -> tuple[Callable[..., Any], dict[str, Any]]:
    """A saved network as a function and its tensors: `apply(tensors, images)` with images (count, height, width,
    channels), or `apply(tensors, words, state)` with words (rows, columns)."""
    about = read_description(folder)
    jax.config.update("jax_enable_x64", about["dtype"] == "float64")
    tensors = load_file(folder / about["file"])
    if about.get("kind") == "text":
        context = about.get("context", 1)
        return jax_zoo.build_text(about["model"], about["vocabulary"], context, 0, about["dtype"]).apply, tensors
    network = jax_zoo.build(about["model"], tuple(about["input_shape"]), about["classes"], 0, about["dtype"])
    return lambda tensors, images: network.apply(tensors, images, None)[0], tensors
