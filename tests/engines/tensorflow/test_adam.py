"""Adam has the constants of Keras."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.unit


def test_epsilon_is_the_default_of_keras() -> None:
    pytest.importorskip("tensorflow")
    import keras

    from velodrome.engines.tensorflow.weights import ADAM_EPSILON

    assert keras.optimizers.Adam().epsilon == ADAM_EPSILON
