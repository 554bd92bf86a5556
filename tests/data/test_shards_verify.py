"""One process writes a set of shards at a time, nothing is left beside it, and `verify` compares it with its index."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from velodrome.data import catalogue
from velodrome.data.base import DataError
from velodrome.data.examples import ExamplePart, image_part, image_set
from velodrome.data.shards.data_set import ShardSet, load_shards
from velodrome.data.shards.index import INDEX
from velodrome.data.shards.write import write_shards
from velodrome.data.source import Description
from velodrome.data.storage.store import FolderStore, StorageError, Store, open_store
from velodrome.errors import BadRequest

pytestmark = pytest.mark.usefixtures("own_cache")


def part(count: int) -> ExamplePart:
    numbers = np.arange(count)
    return image_part(np.repeat(numbers, 12).reshape(-1, 4, 3, 1).astype(np.uint8), numbers % 3)


SPLITS = image_set("tiny", part(40), part(6), part(9), classes=3, scale=1 / 255, class_names=tuple("abc"))


def write(store: Store | Path, **options):
    chosen = {"shards": 4, "encoding": "raw", "seed": 1, "validation": 0.1, **options}
    place = open_store(str(store)) if isinstance(store, Path) else store
    about = Description(chosen.pop("name", "tiny"), "Tiny", "none", "", 40, 6, 9, (4, 3, 1), 3)
    return write_shards(SPLITS, about, place, **chosen)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def place(tmp_path) -> Path:
    return tmp_path / "s"


def test_a_second_process_is_refused_while_one_writes(place):
    refused: list[BadRequest] = []

    def second(done: int, total: int, label: str) -> None:
        with pytest.raises(BadRequest, match=r"another process is writing to '.*/s': wait until it has") as caught:
            write(place, name="other", shards=3)
        refused.append(caught.value)

    index = write(place, progress=second)
    assert refused
    assert names(place) == sorted([INDEX, *(file.name for files in index.parts.values() for file in files)])


def test_a_refused_writing_leaves_no_folder(place):
    with pytest.raises(BadRequest, match="--shards 41"):
        write(place, shards=41)
    assert not place.exists()


class WithoutLocks(FolderStore):
    """A folder as a store that knows no locks, as those behind a network."""

    exclusive = Store.exclusive


@pytest.mark.parametrize("moment", ["before the index", "after the index"])
def test_where_there_are_no_locks_the_set_whose_index_is_lost_is_withdrawn(place, monkeypatch, moment):
    theirs = write(place / "theirs", name="theirs", shards=3)
    original = FolderStore.write

    def beside(self, name: str, data: bytes) -> None:
        """Another process puts its files and index there at the worst moment."""
        if moment == "after the index":
            original(self, name, data)
        for file in (place / "theirs").iterdir():
            (place / file.name).write_bytes(file.read_bytes())
        if moment == "before the index":
            raise BadRequest("holds a set of shards already")

    monkeypatch.setattr(WithoutLocks, "write", beside)
    with pytest.raises((BadRequest, DataError), match="a set"):
        write(WithoutLocks(str(place)), name="ours")
    assert not [name for name in names(place) if name.startswith("ours")]
    assert load_shards(str(place)).files == tuple(file.examples for file in theirs.files("train"))


def test_files_of_an_unfinished_set_are_removed_when_forced_and_others_never(place):
    write(place, shards=7)
    (place / INDEX).unlink()
    with pytest.raises(BadRequest, match=r"of an unfinished set: choose another place, or --force to remove it"):
        write(place)
    index = write(place, force=True)
    assert names(place) == sorted([INDEX, *(file.name for files in index.parts.values() for file in files)])
    (place / "theirs.tfrecord").write_bytes(b"")
    for force in (False, True):
        with pytest.raises(BadRequest, match=r"has 'theirs.tfrecord', which belongs to no set|already"):
            write(place, force=force)
    assert (place / "theirs.tfrecord").exists()


_WRITER = """
import sys, time
sys.path.insert(0, sys.argv[2])
from pathlib import Path
import test_shards_verify as tests
def stop(done, total, label):
    print("writing", flush=True)
    time.sleep(60)
tests.write(Path(sys.argv[1]), progress=stop)
"""


@pytest.mark.integration
def test_what_a_killed_process_left_is_found_and_removed_by_the_next(place):
    words = [sys.executable, "-c", _WRITER, str(place), str(Path(__file__).parent)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "writing\n"
        with pytest.raises(BadRequest, match="another process is writing"):
            write(place)
        writer.send_signal(signal.SIGKILL)
    left = [name for name in names(place) if name.endswith(".part")]
    assert left
    index = write(place)
    assert names(place) == sorted([INDEX, *(file.name for files in index.parts.values() for file in files)])
    (place / left[0]).write_bytes(b"half")
    found = {Path(checked.file).name: checked for checked in catalogue.verify(f"shards:{place}")}
    assert found[left[0]].state == "stray"
    assert "left it half written" in found[left[0]].detail
    assert load_shards(str(place)).classes == 3


def test_a_full_disk_names_the_file(place, monkeypatch):
    original = FolderStore.stage

    def full(self, name: str):
        staged = original(self, name)
        staged.path.unlink()
        staged.path.symlink_to("/dev/full")
        return staged

    monkeypatch.setattr(FolderStore, "stage", full)
    with pytest.raises(StorageError, match=r"tiny-train-00000-of-00004.tfrecord' cannot be written: No space left"):
        write(place)
    assert not place.exists()


@pytest.mark.parametrize("encoding", ["raw", "png"])
def test_a_set_as_it_was_written_is_sound(place, encoding):
    write(place, encoding=encoding)
    assert {checked.state for checked in catalogue.verify(f"shards:{place}")} == {"ok"}


def recount(fields: dict) -> None:
    for file, more in zip(fields["parts"]["train"], (1, 1, 1, 1), strict=True):
        file["examples"] += more


@pytest.mark.parametrize("encoding", ["raw", "png"])
@pytest.mark.parametrize(("change", "words"), [
    (recount, r"it holds 10 examples, but its index says 11"),
    (lambda fields: fields.update(shape=[4, 4, 1]), r"its image (has 12 bytes instead of 16|is 4×3 L instead of 4×4)"),
    (lambda fields: fields.update(classes=2, class_names=["a", "b"]), "the label 2, but its index has 2 classes"),
    (lambda fields: fields.update(shape=[3, 4, 1]), "of shape 4×3×1 instead of 3×4×1|is 4×3 L instead of 3×4"),
])
def test_verify_notices_an_index_that_is_not_that_of_its_files(velodrome, place, encoding, change, words):
    write(place, encoding=encoding)
    fields = json.loads((place / INDEX).read_text())
    change(fields)
    (place / INDEX).write_text(json.dumps(fields))
    done = velodrome("data", "verify", f"shards:{place}")
    assert done.code == 1
    assert re.search(words, done.out)
    assert "write the set again with velodrome data shard --force" in done.out
    assert "data prepare" not in done.out


def test_verify_names_every_file_that_is_missing_damaged_or_should_not_be_there(velodrome, place):
    write(place)
    first, second, *_ = sorted(place.glob("*train*"))
    first.unlink()
    second.write_bytes(second.read_bytes()[:-1])
    (place / "tiny-train-00009-of-00010.tfrecord").write_bytes(b"")
    done = velodrome("data", "verify", f"shards:{place}", "--json")
    assert done.code == 1
    states = {Path(file["file"]).name: file["state"] for file in done.json()["files"]}
    assert states[first.name] == "missing"
    assert states[second.name] == "damaged"
    assert states["tiny-train-00009-of-00010.tfrecord"] == "stray"
    assert done.json()["advice"] is None


def test_nothing_stored_is_not_verified(velodrome, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("book.txt").write_text("a b c\n" * 50)
    done = velodrome("data", "verify", "text:book.txt")
    assert done.code == 1
    assert "nothing is stored of text:book.txt: velodrome data prepare text:book.txt stores it" in done.out
    assert velodrome("data", "prepare", "text:book.txt").code == 0
    assert velodrome("data", "verify", "text:book.txt").code == 0
    done = velodrome("data", "verify", "my_data:load")
    assert done.code == 2
    assert "cannot be verified" in done.err
    done = velodrome("data", "verify", "digits")
    assert done.code == 0
    assert "digits.npz" in done.out


def test_a_count_that_differs_is_reported_in_whole_sentences(place):
    write(place)
    fields = json.loads((place / INDEX).read_text())
    recount(fields)
    (place / INDEX).write_text(json.dumps(fields))
    with pytest.raises(DataError, match=r"tfrecord' holds 10 examples, but its index says 11: write the set again"):
        ShardSet.open(str(place)).local_part("train")
    for file in fields["parts"]["train"]:
        file["examples"] -= 2
    (place / INDEX).write_text(json.dumps(fields))
    with pytest.raises(DataError, match=r"tfrecord' holds more than the 9 examples of its index: write the set again"):
        ShardSet.open(str(place)).local_part("train")
