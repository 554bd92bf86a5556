"""The number format of Keras layers that a test builds in its own process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def numbers(kind: str) -> Iterator[None]:
    """Build Keras layers with such numbers, whatever other tests of this process have left behind.

    The float type alone is not enough: Keras derives the policy of layers from it once, when the first one is built.
    """
    import keras

    before, policy = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx(kind)
    keras.config.set_dtype_policy(kind)
    try:
        yield
    finally:
        keras.config.set_floatx(before)
        keras.config.set_dtype_policy(policy)
