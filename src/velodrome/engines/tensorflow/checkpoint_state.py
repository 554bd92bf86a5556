"""The state of a learner in a checkpoint, the same for all strategies: weights, slots, statistics, updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.worker.learner import State

Array = NDArray[Any]


def pack_state(
    weights: Array, slots: Sequence[Array], statistics: Sequence[Array], iterations: int, average: Array | None = None
) -> State:
    """`average` is the moving average of the weights, where there is one."""
    named = {f"slot.{index}": value for index, value in enumerate(slots)}
    named |= {f"statistic.{index}": value for index, value in enumerate(statistics)}
    named |= {} if average is None else {"average": average}
    return {"weights": weights, "iterations": np.array(iterations, np.int64), **named}


def unpack_state(state: State) -> tuple[Array, list[Array], list[Array], int]:
    def numbered(kind: str) -> list[Array]:
        count = sum(name.startswith(f"{kind}.") for name in state)
        return [state[f"{kind}.{index}"] for index in range(count)]

    return state["weights"], numbered("slot"), numbered("statistic"), int(state["iterations"])
