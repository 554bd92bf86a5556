"""JAX. This module loads saved models, for use outside a job and to compare them with their ONNX export."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from velodrome.models import jax_zoo
from velodrome.models.model_files import read_description
from velodrome.training.actions import Named, fed_images


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


def outputs(saved: Path, about: Mapping[str, Any], inputs: Named) -> NDArray[Any]:
    """What a saved model returns for stored examples: logits of the classes, or of the word after the last one."""
    apply, tensors = load(saved)
    compute = jax.jit(apply)
    if about.get("kind") == "text":
        words = np.asarray(inputs["words"], np.int32)
        network = jax_zoo.build_text(about["model"], about["vocabulary"], about.get("context", 1), 0, about["dtype"])
        scores, _ = compute(tensors, words, network.initial_state(len(words)))
        return np.asarray(scores[-1], np.float32)
    dtype = "float64" if about["dtype"] == "float64" else "float32"
    return np.asarray(compute(tensors, fed_images(about, inputs, dtype)), np.float32)
