"""The fingerprint of a data set: the same for every seed and share, and another one for every change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from velodrome.data import catalogue
from velodrome.data.examples import Text

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VELODROME_CACHE", str(tmp_path / "cache"))


def identity(name: str, seed: int = 1, validation: float = 0.1) -> dict[str, Any]:
    return catalogue.load_examples(name, seed=seed, validation=validation).identity()


def images(tmp_path: Path, *, parts: bool = True, changed: int | None = None, label: int | None = None) -> str:
    """Images in an .npz file; one of them, or the class of one, may be another."""
    rng = np.random.default_rng(3)
    pixels, labels = rng.integers(0, 255, (120, 4, 4), np.uint8), np.arange(120) % 3
    if changed is not None:
        pixels[changed, 0, 0] ^= 1
    if label is not None:
        labels[label] = (labels[label] + 1) % 3
    file = tmp_path / f"set-{parts}-{changed}-{label}.npz"
    test = {"x_test": pixels[90:], "y_test": labels[90:]} if parts else {}
    np.savez(file, x_train=pixels[:90] if parts else pixels, y_train=labels[:90] if parts else labels, **test)
    return f"path:{file}"


def numbers(tmp_path: Path, target: float = 0.0) -> str:
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(90, 5)).astype(np.float32), rng.normal(size=90).astype(np.float32)
    y[7] += target
    file = tmp_path / f"numbers-{target}.npz"
    np.savez(file, x_train=x, y_train=y)
    return f"path:{file}"


def table(tmp_path: Path, target: float = 0.5) -> str:
    rows = "\n".join(f"{number},{number % 7},{number / 3 if number != 9 else target}" for number in range(60))
    file = tmp_path / f"rows-{target}.csv"
    file.write_text(f"a,b,y\n{rows}\n")
    return f"path:{file}?target=y"


@pytest.mark.parametrize("parts", [True, False])
def test_a_draw_and_a_share_change_nothing_and_a_pixel_or_a_label_does(tmp_path: Path, parts: bool) -> None:
    first = identity(images(tmp_path, parts=parts))
    for seed, validation in ((2, 0.1), (1, 0.3)):
        other = identity(images(tmp_path, parts=parts), seed, validation)
        assert other["fingerprint"] == first["fingerprint"]
        assert other["test"] == first["test"]
        assert other["train"] + other["validation"] == first["train"] + first["validation"]
    for place in (0, 119):
        assert identity(images(tmp_path, parts=parts, changed=place))["fingerprint"] != first["fingerprint"]
        assert identity(images(tmp_path, parts=parts, label=place))["fingerprint"] != first["fingerprint"]


@pytest.mark.parametrize("make", [numbers, table])
def test_numbers_to_predict_belong_to_the_content(tmp_path: Path, make: object) -> None:
    assert callable(make)
    first, seeded = identity(make(tmp_path)), identity(make(tmp_path), seed=2)
    assert first["fingerprint"] == seeded["fingerprint"]
    assert identity(make(tmp_path, 77.0))["fingerprint"] != first["fingerprint"]


@pytest.mark.parametrize("name", ["digits", "diabetes", "breast-cancer"])
def test_data_sets_of_the_catalogue_have_one_for_every_seed(name: str) -> None:
    assert identity(name)["fingerprint"] == identity(name, seed=5)["fingerprint"]
    assert not catalogue.data_set(name).from_function


def test_a_text_is_known_by_its_words(tmp_path: Path) -> None:
    found = []
    for word in ("three", "four"):
        file = tmp_path / f"{word}.txt"
        file.write_text("\n".join(f"one two {word} row" for _ in range(40)) + "\n")
        found.append(catalogue.load_text(f"text:{file}").identity())
    first, second = found
    assert (first["train"], first["test"]) == (second["train"], second["test"])
    assert first["fingerprint"] != second["fingerprint"]


def test_one_word_that_changed_in_a_long_text_is_noticed():
    words = np.zeros(3_000_001, np.int32)
    found = []
    for place in (None, 1, 1_500_001, 3_000_000):
        changed = words.copy()
        if place is not None:
            changed[place] = 1
        found.append(Text("t", changed, words[:9], words[:9], ["<eos>", "a"]).identity()["fingerprint"])
    assert len(set(found)) == 4
