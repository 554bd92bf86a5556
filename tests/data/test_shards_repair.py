"""What was fetched or decoded of a set of shards and was damaged since: found, and had once more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from velodrome.data import cache, catalogue
from velodrome.data.base import DataError
from velodrome.data.examples import ExamplePart, image_part, image_set
from velodrome.data.shards import data_set as shards
from velodrome.data.shards.data_set import ShardSet
from velodrome.data.shards.write import write_shards
from velodrome.data.source import Description
from velodrome.data.storage.store import File, FolderStore, Staged, Store

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("own_cache")]


class Away(Store):
    """A folder that is reached as if it were on another machine."""

    def __init__(self, place: str) -> None:
        self._there = FolderStore(place)
        self.url = f"away://{place}"
        self.asked: list[str] = []

    def list(self) -> list[File]:
        return self._there.list()

    def size(self, name: str) -> int | None:
        return self._there.size(name)

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        return self._there.read(name, start, length)

    def chunks(self, name: str, start: int = 0) -> Iterator[bytes]:
        self.asked.append(name)
        return self._there.chunks(name, start)

    def stage(self, name: str) -> Staged:
        return self._there.stage(name)

    def remove(self, name: str) -> None:
        self._there.remove(name)


def part(count: int) -> ExamplePart:
    numbers = np.arange(count)
    return image_part(np.repeat(numbers, 4).reshape(-1, 2, 2, 1).astype(np.uint8), numbers % 3)


SPLITS = image_set("tiny", part(40), part(6), part(9), classes=3, scale=1 / 255)
ABOUT = Description("tiny", "Tiny", "none", "", 40, 6, 9, (2, 2, 1), 3)


@pytest.fixture
def away(tmp_path, monkeypatch) -> Away:
    store = Away(str(tmp_path / "s"))
    write_shards(SPLITS, ABOUT, store, shards=4, encoding="raw", seed=1, validation=0.1)
    monkeypatch.setattr(shards, "open_store", lambda url: store)
    return store


def spoil(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-30] ^= 1
    path.write_bytes(bytes(data))


def fetched() -> list[Path]:
    return sorted((cache.folder() / "shards").glob("*/*.tfrecord"))


def test_a_fetched_file_that_was_damaged_is_fetched_once_more(away):
    whole = ShardSet.open("x")
    whole.local_part("train")
    cache.forget(cache.sources("shards ")[0])
    spoil(fetched()[1])
    away.asked.clear()
    assert np.array_equal(whole.local_part("train").images, SPLITS.train.images)
    assert away.asked == [fetched()[1].name]


def test_what_is_damaged_where_it_was_written_is_not_asked_for_again_and_again(away, tmp_path):
    victim = sorted((tmp_path / "s").glob("*train*"))[2]
    spoil(victim)
    with pytest.raises(DataError, match="is damaged: it has another checksum"):
        ShardSet.open("x").local_part("train")
    assert away.asked.count(victim.name) == 1


@pytest.mark.parametrize("what", ["fetched", "decoded"])
def test_verify_finds_what_is_damaged_in_the_cache_and_prepare_repairs_it(away, tmp_path, what):
    name = "shards:x"
    catalogue.prepare(name)
    catalogue.data_set(name).load_files([0, 2], 0.1)
    assert {checked.state for checked in catalogue.verify(name)} == {"ok"}
    victim = fetched()[0] if what == "fetched" else next((cache.folder() / "decoded").glob("*/*/images.npy"))
    spoil(victim)
    assert [checked.file for checked in catalogue.verify(name) if checked.state != "ok"] == [str(victim)]
    catalogue.data_set(name).forget_damaged()
    catalogue.prepare(name)
    assert {checked.state for checked in catalogue.verify(name)} == {"ok"}
    assert np.array_equal(catalogue.load(name, seed=1, validation=0.1).train.images, SPLITS.train.images)
