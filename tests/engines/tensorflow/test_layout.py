"""A flat buffer of weights, laid so that it is cut without copying, loses and mixes up nothing."""

from __future__ import annotations

import numpy as np
import pytest

KINDS = {
    "full and odd rows": [(3,), (16, 2), (5, 5), (4, 4), (1,)],
    "full rows only": [(16,), (2, 16), (32,)],
    "odd rows only": [(3,), (7, 5)],
    "odd rows that fill one together": [(3,), (13,)],
    "one layer": [(5, 3)],
    "one full layer": [(16, 3)],
    "a number alone": [(), (16,)],
}


@pytest.fixture(scope="module")
def tf():
    return pytest.importorskip("tensorflow")


def laying(shapes):
    from velodrome.engines.tensorflow.layout import Layout

    return Layout(shapes)


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def shapes(request):
    return request.param


def plain_of(shapes) -> np.ndarray:
    return np.arange(1, 1 + sum(int(np.prod(shape)) for shape in shapes), dtype=np.float64)


def test_layers_come_back_in_their_order_and_shape(tf, shapes):
    layout, plain, first = laying(shapes), plain_of(shapes), 0
    layers = layout.layers(tf.constant(layout.laid(plain)))
    assert layout.parameters == len(plain)
    for shape, layer in zip(shapes, layers, strict=True):
        last = first + int(np.prod(shape))
        assert np.array_equal(layer.numpy(), plain[first:last].reshape(shape))
        first = last


def test_what_is_laid_comes_back_plain_and_fills_whole_rows(tf, shapes):
    layout, plain = laying(shapes), plain_of(shapes)
    laid = layout.laid(plain)
    assert len(laid) % 16 == 0
    assert np.array_equal(layout.plain(laid), plain)
    assert laid.sum() == plain.sum()


def test_large_layers_are_cut_out_without_a_copy(tf):
    layout = laying([(3,), (64, 32)])
    buffer = tf.constant(layout.laid(plain_of([(3,), (64, 32)])), tf.float32)
    layer = layout.layers(buffer)[1]
    begins, at = (np.asarray(memoryview(each)).ctypes.data for each in (buffer, layer))
    assert begins <= at < begins + 4 * len(buffer)


def test_the_gradient_of_spare_places_is_zero(tf):
    layout = laying([(3,), (16,)])
    buffer = tf.Variable(layout.laid(plain_of([(3,), (16,)])))
    with tf.GradientTape() as tape:
        loss = tf.add_n([tf.reduce_sum(layer) for layer in layout.layers(buffer)])
    assert tape.gradient(loss, buffer).numpy().tolist() == [1.0] * 19 + [0.0] * 13
