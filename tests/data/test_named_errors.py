"""What is wrong with data of the user's names the data set at the beginning of the sentence, once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from velodrome.data import catalogue
from velodrome.errors import BadRequest, RunFailed

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("own_cache")]

FUNCTIONS = """
import numpy as np

def several():
    return np.zeros((4, 3)), np.zeros(5)

class Items:
    count = 6

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return np.zeros(2, np.float32), float(index)

items = Items()

def objects():
    return items
"""


def npz(folder: Path) -> str:
    np.savez(folder / "set.npz", x_train=np.zeros((4, 3)))
    return f"path:{folder}/set.npz"


def table(folder: Path) -> str:
    (folder / "list.csv").write_text("a,b\n1,words\n2,text\n3,words\n")
    return f"path:{folder}/list.csv?target=b&predict=number"


def text(folder: Path) -> str:
    (folder / "notes.md").write_text("words\n")
    return f"text:{folder}"


def _used(name: str) -> None:
    catalogue.describe(name)
    catalogue.prepare(name)
    catalogue.load_examples(name, seed=1, validation=0.1)


@pytest.mark.parametrize(("made", "words"), [
    (lambda folder: f"path:{folder}/nowhere", "no file or folder"),
    (npz, "it has no array 'y_train'"),
    (table, "column 'b' holds words, and predict=number needs others"),
    (text, "no .txt files there that can be read"),
    (lambda folder: "named_functions:several", "x_train holds 4 examples and y_train 5 labels"),
])
def test_the_data_set_is_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Callable[[Path], str], words: str
) -> None:
    (tmp_path / "named_functions.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(str(tmp_path))
    name = made(tmp_path)
    with pytest.raises(BadRequest) as refused:
        _used(name)
    assert str(refused.value).startswith(f"--dataset {name!r}: ")
    assert str(refused.value).count("--dataset") == 1
    assert words in str(refused.value)


def test_an_example_that_is_read_later_is_named_with_its_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "named_objects.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(str(tmp_path))
    data = catalogue.load_examples("named_objects:objects", seed=1, validation=0.2)
    import named_objects

    named_objects.items.count = 5
    with pytest.raises(RunFailed, match=r"^--dataset 'named_objects:objects': the data set had 6 examples when"):
        data.train.gather(np.array([0]))
