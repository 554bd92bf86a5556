"""Pictures that are sent to a model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from hostile_files import GOOD, HOSTILE, picture, turned
from velodrome.serving import inputs
from velodrome.serving.inputs import decoded
from velodrome.serving.model import BadInput

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(("make", "status"), [row[1:] for row in HOSTILE], ids=[row[0] for row in HOSTILE])
def test_a_hostile_file_is_refused_with_a_sentence(make: Callable[[], bytes], status: int) -> None:
    with pytest.raises(BadInput) as refusal:
        decoded(make(), (8, 8, 1))
    assert refusal.value.status == status
    assert str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("make", [row[1] for row in GOOD], ids=[row[0] for row in GOOD])
def test_an_ordinary_picture_is_decoded(make: Callable[[], bytes]) -> None:
    assert decoded(make(), (8, 8, 3)).shape == (8, 8, 3)
    assert decoded(make(), (8, 8, 1)).dtype == np.uint8


def test_a_file_of_too_many_bytes_is_refused_before_it_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "LARGEST_BYTES", 100)
    with pytest.raises(BadInput, match="at most 100 are accepted"):
        decoded(picture(size=(400, 400)) + b"\0" * 100, (8, 8, 1))


def test_white_is_the_brightest_byte_of_the_data_set() -> None:
    assert decoded(picture(colour=255), (8, 8, 1), brightest=16).max() == 16
    assert decoded(picture(colour=128), (8, 8, 1), brightest=16).max() == 8


@pytest.mark.parametrize(
    ("orientation", "bright"),
    [(1, np.s_[:, :3]), (3, np.s_[:, 5:]), (6, np.s_[:3]), (8, np.s_[5:]), (99, np.s_[:, :3])],
)
def test_a_photo_is_held_upright_as_its_camera_noted(orientation: int, bright: object) -> None:
    pixels = decoded(turned(orientation, bright=250), (8, 8, 1))[:, :, 0]
    assert pixels[bright].min() > 200
    assert pixels.mean() == pytest.approx(125, abs=15)


def test_a_refusal_names_the_limit_that_holds_here() -> None:
    with pytest.raises(BadInput, match="more than 40,000,000 pixels"):
        decoded(next(make for name, make, _ in HOSTILE if name == "png that claims 2 billion pixels")(), (8, 8, 1))
