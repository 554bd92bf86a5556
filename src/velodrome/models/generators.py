"""Python's and NumPy's global random numbers, kept as they are while a model is tried. Frameworks have their own."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


@contextmanager
def preserved() -> Iterator[None]:
    """Leave the generators as they were found, whatever is drawn meanwhile."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
