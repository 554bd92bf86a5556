"""A text as the language model sees it: words as numbers, in three parts that never share a line."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Text:
    """Each part is one long row of places in `vocabulary`; every line ends with the place of `<eos>`."""

    name: str
    train: NDArray[np.int32]
    validation: NDArray[np.int32]
    test: NDArray[np.int32]
    vocabulary: list[str]
    #: What was left out or changed on the way, as sentences for the reader of a run.
    notes: tuple[str, ...] = ()


def load_text(name: str) -> Text:
    """The text of that name, fetched first if it is not on this machine."""
    from velodrome.data import catalogue

    return catalogue.load_text(name)
