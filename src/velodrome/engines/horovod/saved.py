"""What a saved model of either framework returns for stored examples: the framework's own engine writes its graph."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.training.actions import Named, fed_images


def outputs(saved: Path, about: Mapping[str, Any], inputs: Named) -> NDArray[Any]:
    """What the model of a folder returns for inputs as the data set stores them."""
    if about.get("framework") == "tensorflow":
        return _of_keras(saved, about, inputs)
    from velodrome.engines.torch import onnx_export

    return onnx_export.outputs(saved, about, inputs)


def _of_keras(saved: Path, about: Mapping[str, Any], inputs: Named) -> NDArray[Any]:
    import tensorflow as tf
    from safetensors.numpy import load_file

    from velodrome.models import keras_zoo

    dtype, stored = about["dtype"], load_file(saved / about["file"])
    tf.keras.backend.set_floatx(dtype)
    model = keras_zoo.build(about["model"], tuple(about["input_shape"]), about["classes"])
    for variable in model.weights:
        variable.assign(stored[variable.name.partition(":")[0]])
    return np.asarray(model(tf.constant(fed_images(about, inputs, dtype)), training=False), np.float32)
