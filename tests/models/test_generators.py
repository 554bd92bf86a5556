"""The states of random number generators: found, kept while something else draws, saved and restored."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from velodrome.models.checks import of_model, of_process, preserved, read_states, restore_states

pytestmark = pytest.mark.unit

OF_FILE = np.random.default_rng(3)


class Part:
    """Of a model: holds what it is given."""

    def __init__(self, **fields: Any) -> None:
        vars(self).update(fields)


def model() -> Part:
    kinds = [np.random.Generator(kind(1)) for kind in (np.random.PCG64, np.random.Philox, np.random.SFC64)]
    inner = Part(rng=np.random.RandomState(2), secret=random.SystemRandom())
    whole = Part(parts={"first": inner}, kinds=kinds, python=random.Random(4), weights=[1.0, 2.0])
    inner.whole = whole  # a circle
    return whole


def draw(one: Part) -> list[float]:
    inner = one.parts["first"]
    return [
        random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), OF_FILE.normal(), one.python.random(),
        *(each.random() for each in one.kinds), inner.rng.randn(),
    ]


def test_generators_are_found_in_the_parts_of_a_model_and_in_its_file() -> None:
    names = {"model.python", "model.kinds.0", "model.kinds.1", "model.kinds.2", "model.parts.first.rng"}
    assert of_model(model(), Part).keys() == {*names, f"{__name__}:OF_FILE"}


def test_restored_generators_draw_again_what_they_drew() -> None:
    mine = model()
    found = of_process() | of_model(mine, Part)
    draw(mine)  # some generators keep half of a pair of normal numbers
    states = read_states(found)
    expected = draw(mine)
    assert draw(mine) != expected
    restore_states(found, states)
    assert read_states(found) == states
    assert draw(mine) == expected


def test_what_is_drawn_in_between_does_not_count() -> None:
    mine = model()
    found = of_model(mine, Part)
    states = read_states(of_process() | found)
    with preserved(found):
        draw(mine)
    assert read_states(of_process() | found) == states


def test_states_of_generators_that_are_gone_are_passed_over() -> None:
    states = read_states(of_process() | of_model(model(), Part))
    expected = random.random()
    restore_states(of_process(), states)
    assert random.random() == expected
