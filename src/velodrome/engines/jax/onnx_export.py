"""What a saved JAX model returns for stored examples: PyTorch writes its graph, and must compute the same."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from velodrome.engines.jax.saved import load
from velodrome.models import jax_zoo
from velodrome.worker.actions import Named


def outputs(saved: Path, about: Mapping[str, Any], inputs: Named) -> NDArray[Any]:
    """Logits of the classes, or of the word after the last one."""
    apply, tensors = load(saved)
    compute = jax.jit(apply)
    if about.get("kind") == "text":
        words = np.asarray(inputs["words"], np.int32)
        network = jax_zoo.build_text(about["model"], about["vocabulary"], about.get("context", 1), 0, about["dtype"])
        scores, _ = compute(tensors, words, network.initial_state(len(words)))
        return np.asarray(scores[-1], np.float32)
    dtype = "float64" if about["dtype"] == "float64" else "float32"
    numbers = inputs["x"].astype(dtype) * np.asarray(about["scale"], dtype) + np.asarray(about["offset"], dtype)
    return np.asarray(compute(tensors, numbers), np.float32)
