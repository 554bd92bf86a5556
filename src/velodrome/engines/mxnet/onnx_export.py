"""What a saved MXNet model returns for stored examples: PyTorch writes its graph, and must compute the same."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
from numpy.typing import NDArray

from velodrome.engines.mxnet.saved import load
from velodrome.worker.actions import Named


def outputs(saved: Path, about: Mapping[str, Any], inputs: Named) -> NDArray[Any]:
    """Logits of the classes, or of the word after the last one."""
    network, dtype = load(saved), about["dtype"]
    if about.get("kind") == "text":
        words = inputs["words"]
        scores, _ = network(mx.nd.array(words.T), *network.initial_state(len(words), dtype))
        return np.asarray(scores.asnumpy()[-1], np.float32)
    numbers = inputs["x"].astype(dtype) * np.asarray(about["scale"], dtype) + np.asarray(about["offset"], dtype)
    images = np.ascontiguousarray(numbers.transpose(0, 3, 1, 2))
    return np.asarray(network(mx.nd.array(images, dtype=dtype)).asnumpy(), np.float32)
