"""Apache MXNet. This module loads saved models, for use outside a job and to compare them with their ONNX export.

MXNet is imported in functions only: where a process is a scheduler or a server, importing it makes it serve.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from velodrome.models.model_files import read_description
from velodrome.training.actions import Named, fed_images


def load(folder: Path) -> Any:
    """A saved network: it takes images (count, channels, height, width), or words (columns, rows) and the state."""
    import mxnet as mx

    from velodrome.models import mxnet_zoo

    about = read_description(folder)
    if about.get("kind") == "text":
        network: Any = mxnet_zoo.build_text(about["model"], about["vocabulary"], 0, about["dtype"])
    else:
        network = mxnet_zoo.build(about["model"], tuple(about["input_shape"]), about["classes"], 0, about["dtype"])
    stored = load_file(folder / about["file"])
    for name, parameter in network.parameters_by_name().items():
        parameter.set_data(mx.nd.array(stored[name], dtype=about["dtype"]))
    return network


def outputs(saved: Path, about: Mapping[str, Any], inputs: Named) -> NDArray[Any]:
    """What a saved model returns for stored examples: logits of the classes, or of the word after the last one."""
    import mxnet as mx

    network, dtype = load(saved), about["dtype"]
    if about.get("kind") == "text":
        words = inputs["words"]
        scores, _ = network(mx.nd.array(words.T), *network.initial_state(len(words), dtype))
        return np.asarray(scores.asnumpy()[-1], np.float32)
    images = np.ascontiguousarray(fed_images(about, inputs, dtype).transpose(0, 3, 1, 2))
    return np.asarray(network(mx.nd.array(images, dtype=dtype)).asnumpy(), np.float32)
