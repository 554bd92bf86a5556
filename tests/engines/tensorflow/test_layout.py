"""A flat buffer of weights, ordered so that it is cut without copying, loses and mixes up nothing."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.unit

SHAPES = {
    "aligned and unaligned sizes": [(3,), (16, 2), (5, 5), (4, 4), (1,)],
    "aligned sizes only": [(16,), (2, 16), (32,)],
    "unaligned sizes only": [(3,), (7, 5)],
    "unaligned sizes that fill a row together": [(3,), (13,)],
    "one unaligned tensor": [(5, 3)],
    "one aligned tensor": [(16, 3)],
    "a scalar": [(), (16,)],
}


@pytest.fixture(scope="module")
def tf():
    return pytest.importorskip("tensorflow")


def layout_of(shapes):
    from velodrome.engines.tensorflow.flat import Layout

    return Layout(shapes)


@pytest.fixture(params=SHAPES.values(), ids=SHAPES)
def shapes(request):
    return request.param


def weights_of(shapes) -> np.ndarray:
    return np.arange(1, 1 + sum(int(np.prod(shape)) for shape in shapes), dtype=np.float64)


def test_layers_come_back_in_their_order_and_shape(tf, shapes):
    layout, weights, first = layout_of(shapes), weights_of(shapes), 0
    layers = layout.layers(tf.constant(layout.pack(weights)))
    assert layout.parameters == len(weights)
    for shape, layer in zip(shapes, layers, strict=True):
        last = first + int(np.prod(shape))
        assert np.array_equal(layer.numpy(), weights[first:last].reshape(shape))
        first = last


def test_unpack_reverses_pack_and_the_buffer_fills_whole_rows(tf, shapes):
    layout, weights = layout_of(shapes), weights_of(shapes)
    buffer = layout.pack(weights)
    assert len(buffer) % 16 == 0
    assert np.array_equal(layout.unpack(buffer), weights)
    assert buffer.sum() == weights.sum()


def test_large_layers_are_views_of_the_buffer(tf):
    layout = layout_of([(3,), (64, 32)])
    buffer = tf.constant(layout.pack(weights_of([(3,), (64, 32)])), tf.float32)
    layer = layout.layers(buffer)[1]
    begins, at = (np.asarray(memoryview(each)).ctypes.data for each in (buffer, layer))
    assert begins <= at < begins + 4 * len(buffer)


def test_the_gradient_of_padding_is_zero(tf):
    layout = layout_of([(3,), (16,)])
    buffer = tf.Variable(layout.pack(weights_of([(3,), (16,)])))
    with tf.GradientTape() as tape:
        loss = tf.add_n([tf.reduce_sum(layer) for layer in layout.layers(buffer)])
    assert tape.gradient(loss, buffer).numpy().tolist() == [1.0] * 19 + [0.0] * 13
