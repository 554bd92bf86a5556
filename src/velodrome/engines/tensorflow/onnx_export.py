"""A saved Keras model as ONNX, by way of its graph. It takes what the data set stores: bytes, numbers, words."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from velodrome import files
from velodrome.engines.tensorflow.model_file import restored
from velodrome.models.checks import class_scores
from velodrome.models.description import Exported, ServedState
from velodrome.tasks.base import Batch
from velodrome.training.actions import Named, in_parts

NEEDS = ("onnx", "tf2onnx")
_OPSET = 18
_PLAIN = "float32"


def export(saved: Path, about: Mapping[str, Any], file: Path, inputs: Named) -> Exported:
    """Write the model of a folder; its own outputs for these examples."""
    model = restored(saved, about)
    plain = _in_float32(model)
    if about.get("kind") == "text":
        return _export_text(model, plain, about, file, inputs["words"])
    names = list(inputs)
    arrays = {name: _fed(array) for name, array in inputs.items()}
    only = about.get("only_batch")
    call = _function(model, about, names)
    expected = in_parts(lambda part: np.asarray(call(*map(tf.constant, part))), list(arrays.values()), only)
    signature = [tf.TensorSpec((only, *array.shape[1:]), array.dtype, name=name) for name, array in arrays.items()]
    _write(_function(plain, about, names), signature, file)
    return Exported(expected, only_batch=only)


def _function(model: keras.Model, about: Mapping[str, Any], names: Sequence[str]) -> Callable[..., tf.Tensor]:
    """The model behind what turns stored arrays into its inputs."""
    images = set(about["images"]) if about.get("kind") == "arrays" else set(names)
    dtype = tf.as_dtype(about["dtype"] if about["dtype"] == "float64" and model.dtype == "float64" else _PLAIN)

    def ready(name: str, array: tf.Tensor) -> tf.Tensor:
        if name in images and array.dtype == tf.uint8:
            scaled = tf.cast(array, dtype) * tf.constant(about.get("scale", 1.0), dtype)
            offset = np.asarray(about.get("offset", 0.0))
            return scaled + tf.constant(offset, dtype) if offset.any() else scaled
        return tf.cast(array, dtype) if array.dtype.is_floating or array.dtype == tf.bool else array

    def call(*arrays: tf.Tensor) -> tf.Tensor:
        fed = {name: ready(name, array) for name, array in zip(names, arrays, strict=True)}
        return tf.cast(class_scores(model(Batch(fed, {}).x, training=False), tf.Tensor), tf.float32)

    return call


def _export_text(
    model: keras.Model, plain: keras.Model, about: Mapping[str, Any], file: Path, words: np.ndarray
) -> Exported:
    rows = tf.constant(words.astype(np.int32))
    if "context" in about:
        expected = np.asarray(tf.cast(model(rows, training=False), tf.float32))[:, -1]
        _write(lambda words: tf.cast(plain(tf.cast(words, tf.int32), training=False), tf.float32),
               [tf.TensorSpec((None, None), tf.int64, name="words")], file)
        return Exported(expected)
    carried = [(state.name, int(state.shape[-1])) for state in model.inputs[1:]]
    state = [tf.zeros((len(rows), units), model.inputs[1].dtype) for _, units in carried]
    expected = np.asarray(tf.cast(model([rows, *state], training=False)[0], tf.float32))[:, -1]
    signature = [tf.TensorSpec((None, 1), tf.int64, name="words"),
                 *(tf.TensorSpec((None, units), tf.float32, name=name) for name, units in carried)]
    _write(lambda words, *state: plain([tf.cast(words, tf.int32), *state], training=False), signature, file)
    return Exported(expected, tuple(ServedState(name=name, shape=(-1, units)) for name, units in carried))


def _in_float32(model: keras.Model) -> keras.Model:
    """The same weights in a model that computes in float32: ONNX Runtime has few kernels for other formats."""
    described = json.dumps(keras.saving.serialize_keras_object(model))
    changed = described.replace('"float64"', f'"{_PLAIN}"').replace('"mixed_bfloat16"', f'"{_PLAIN}"')
    if changed == described:
        return model
    # The description is of the model that was built here: a function in it is one of the user's own code.
    with keras.saving.custom_object_scope({type(layer).__name__: type(layer) for layer in model.layers}):
        copy = keras.saving.deserialize_keras_object(json.loads(changed), safe_mode=False)
    copy.set_weights([value.astype(_PLAIN) if value.dtype.kind == "f" else value for value in model.get_weights()])
    return copy


def _write(function: Callable[..., Any], signature: list[tf.TensorSpec], file: Path) -> None:
    import tf2onnx

    logging.getLogger("tf2onnx").setLevel(logging.ERROR)
    traced = tf.function(function, input_signature=signature, autograph=False)
    proto, _ = tf2onnx.convert.from_function(
        traced, input_signature=signature, opset=_OPSET, custom_op_handlers={"Erfc": (_erfc, [])}
    )
    files.write_bytes(file, proto.SerializeToString(), sync=False)


def _erfc(graph: Any, node: Any, name: str, arguments: Any) -> None:
    """The complementary error function of GELU, which ONNX lacks: one minus the error function."""
    shape, dtype, inputs, outputs = (
        graph.get_shape(node.output[0]), graph.get_dtype(node.output[0]), list(node.input), list(node.output)
    )
    graph.remove_node(node.name)
    one = graph.make_const(f"{name}_one", np.array(1.0, np.float32))
    erf = graph.make_node("Erf", inputs, shapes=[shape], dtypes=[dtype], name=f"{name}_erf")
    graph.make_node("Sub", [one.output[0], erf.output[0]], outputs=outputs, shapes=[shape], dtypes=[dtype], name=name)


def _fed(array: np.ndarray) -> np.ndarray:
    if array.dtype == np.uint8 or array.dtype == np.bool_:
        return array
    return array.astype(np.int64 if array.dtype.kind in "iu" else np.float32)
