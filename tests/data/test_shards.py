"""Sets of shards in a folder: written whole or not at all, read back in order, and every kind of damage named."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from velodrome.data import catalogue
from velodrome.data.base import DataError, Gather
from velodrome.data.examples import ExamplePart, ExampleSet, image_part, image_set
from velodrome.data.shards import write as shard_write
from velodrome.data.shards.data_set import ShardSet, load_shards
from velodrome.data.shards.index import INDEX, file_name
from velodrome.data.source import Description
from velodrome.data.storage import store as storage
from velodrome.data.storage.store import open_store
from velodrome.errors import BadRequest

pytestmark = pytest.mark.usefixtures("own_cache")


def part(count: int, first: int) -> ExamplePart:
    images = np.random.default_rng(first).integers(0, 256, (count, 4, 3, 1), np.uint8)
    return image_part(images, np.arange(first, first + count) % 5)


SPLITS = image_set("tiny", part(47, 0), part(6, 100), part(10, 200), classes=5, class_names=tuple("abcde"))
ABOUT = Description("tiny", "Tiny", "none", "", 47, 6, 10, (4, 3, 1), 5)


def write(url: object, **options):
    chosen = {"shards": 5, "encoding": "raw", "seed": 1, "validation": 0.1, **options}
    return shard_write.write_shards(SPLITS, ABOUT, open_store(str(url)), **chosen)


def same(found: ExampleSet) -> bool:
    return all(
        np.array_equal(getattr(found, name).images, getattr(SPLITS, name).images)
        and np.array_equal(getattr(found, name).labels, getattr(SPLITS, name).labels)
        for name in ("train", "validation", "test")
    )


@pytest.mark.parametrize("encoding", ["raw", "png"])
@pytest.mark.parametrize("shards", [1, 5, 47])
def test_a_set_comes_back_in_the_order_of_the_data_set(tmp_path, encoding, shards):
    write(tmp_path / "s", encoding=encoding, shards=shards)
    found = load_shards(str(tmp_path / "s"))
    assert same(found)
    assert (found.classes, found.scale, found.class_names) == (5, 1 / 255, tuple("abcde"))


def test_files_are_named_numbered_and_dealt_out_evenly(tmp_path):
    write(tmp_path / "s")
    names = sorted(path.name for path in (tmp_path / "s").iterdir())
    assert names == [
        "index.json", "tiny-test-00000-of-00001.tfrecord", *(f"tiny-train-0000{k}-of-00005.tfrecord" for k in range(5)),
        "tiny-validation-00000-of-00001.tfrecord",
    ]
    index = json.loads((tmp_path / "s" / INDEX).read_text())
    assert [file["examples"] for file in index["parts"]["train"]] == [10, 10, 9, 9, 9]
    for files in index["parts"].values():
        for file in files:
            data = (tmp_path / "s" / file["name"]).read_bytes()
            assert (len(data), hashlib.sha256(data).hexdigest()) == (file["bytes"], file["sha256"])


@pytest.mark.parametrize("name", ["path:/data/my photos/", "fruits:variety", "../x", "module:function"])
def test_names_of_files_hold_nothing_strange(name):
    assert file_name(name, "train", 0, 1).endswith("-train-00000-of-00001.tfrecord")
    assert not set(file_name(name, "train", 0, 1)) & set("/: ")


def test_a_worker_may_take_some_files_only(tmp_path):
    write(tmp_path / "s")
    shards = ShardSet.open(str(tmp_path / "s"))
    seen = []
    for files in ([0], [3, 1], [2, 4]):
        local = shards.local_part("train", files)
        seen += local.images.reshape(len(local), -1).tolist()
        assert np.array_equal(local.gather(np.array([1, 0])), local.images[[1, 0]])
    assert sorted(seen) == sorted(SPLITS.train.images.reshape(47, -1).tolist())
    with pytest.raises(BadRequest, match=r"has 5 train files, and \[5\] were asked for"):
        shards.local_part("train", [5])


def test_beyond_the_budget_arrays_stay_on_disk(tmp_path):
    write(tmp_path / "s")
    small, large = load_shards(str(tmp_path / "s"), memory_budget=0), load_shards(str(tmp_path / "s"))
    assert isinstance(small.train.images, np.memmap)
    assert not isinstance(large.train.images, np.memmap)
    assert same(small)
    assert same(large)


def test_another_set_is_replaced_only_when_forced_and_then_wholly(tmp_path):
    write(tmp_path / "s")
    (tmp_path / "s" / "notes.txt").write_text("mine")
    before = {path.name: path.read_bytes() for path in (tmp_path / "s").iterdir()}
    with pytest.raises(BadRequest, match="holds a set of shards already"):
        write(tmp_path / "s", shards=3)
    assert {path.name: path.read_bytes() for path in (tmp_path / "s").iterdir()} == before
    write(tmp_path / "s", shards=3, force=True)
    assert same(load_shards(str(tmp_path / "s")))
    assert sum("train" in path.name for path in (tmp_path / "s").iterdir()) == 3
    assert (tmp_path / "s" / "notes.txt").read_text() == "mine"


def test_an_interrupted_writing_leaves_the_old_set_whole_and_nothing_else(tmp_path, monkeypatch):
    write(tmp_path / "s")
    before = {path.name: path.read_bytes() for path in (tmp_path / "s").iterdir()}
    calls = iter(range(100))
    original = shard_write.to_records

    def breaks(*arguments):
        if next(calls) == 4:
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(shard_write, "to_records", breaks)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "s", shards=7, force=True)
    assert {path.name: path.read_bytes() for path in (tmp_path / "s").iterdir()} == before


@pytest.mark.parametrize("broken", ["commit", "write", "remove"])
def test_whatever_interrupts_a_replacement_leaves_one_of_the_sets_whole(tmp_path, monkeypatch, broken):
    write(tmp_path / "s")
    calls = iter(range(100))
    of = storage._StagedBeside if broken == "commit" else storage.FolderStore
    original = getattr(of, broken)

    def breaks(*arguments):
        if next(calls) == (3 if broken != "write" else 0):
            raise KeyboardInterrupt
        return original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(of, broken, breaks)
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path / "s", force=True)
    assert same(load_shards(str(tmp_path / "s")))
    write(tmp_path / "s", force=True)
    assert same(load_shards(str(tmp_path / "s")))
    assert not list((tmp_path / "s").glob(".*"))


def test_a_set_without_its_index_is_never_read_as_whole(tmp_path):
    with pytest.raises(DataError, match="holds no set of shards: write one with velodrome data shard"):
        ShardSet.open(str(tmp_path / "s"))
    write(tmp_path / "s")
    (tmp_path / "s" / INDEX).unlink()
    with pytest.raises(DataError, match=r"has 7 TFRecord files and no index.json: writing it never came to its end"):
        ShardSet.open(str(tmp_path / "s"))
    with pytest.raises(BadRequest, match="of an unfinished set"):
        write(tmp_path / "s")
    write(tmp_path / "s", force=True)
    assert same(load_shards(str(tmp_path / "s")))


@pytest.mark.parametrize("encoding", ["raw", "png"])
def test_a_damaged_file_is_named(tmp_path, encoding):
    write(tmp_path / "s", encoding=encoding)
    victim = tmp_path / "s" / "tiny-train-00002-of-00005.tfrecord"
    whole = victim.read_bytes()

    victim.write_bytes(whole[:-5])
    with pytest.raises(DataError, match=r"00002-of-00005.tfrecord' has [\d,]+ bytes, but its index says"):
        load_shards(str(tmp_path / "s"))
    victim.write_bytes(whole[:50] + bytes([whole[50] ^ 4]) + whole[51:])
    with pytest.raises(DataError, match=r"00002-of-00005.tfrecord' is damaged .* at byte 0 is wrong"):
        load_shards(str(tmp_path / "s"))
    other = (tmp_path / "s" / "tiny-train-00003-of-00005.tfrecord").read_bytes()
    if len(other) == len(whole):  # a sound file in the wrong place
        victim.write_bytes(other)
        with pytest.raises(DataError, match=r"00002-of-00005.tfrecord' has another checksum"):
            load_shards(str(tmp_path / "s"))
    victim.unlink()
    with pytest.raises(DataError, match=r"00002-of-00005.tfrecord' is missing from its set"):
        load_shards(str(tmp_path / "s"))
    victim.write_bytes(whole)
    assert same(load_shards(str(tmp_path / "s")))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": 9}, "its schema is 9"),
        ({"encoding": "gif"}, "its encoding is 'gif'"),
        ({"shape": [0, 3, 1]}, r"its shape\[0\] is 0: Input should be greater than 0"),
        ({"parts": {"train": [{"name": "../../x.tfrecord", "examples": 1, "bytes": 1, "sha256": "0" * 64}]}},
         r"its parts.train\[0\].name is '../../x.tfrecord': String should match pattern"),
        ({"parts": {"train": [{"name": "x.tfrecord", "examples": -1, "bytes": 1, "sha256": ""}]}},
         r"parts.train\[0\].examples is -1: Input should be greater than or equal to 0"),
        ({"parts": {"extra": []}}, "its parts.extra.* is 'extra': Input should be 'train', 'validation' or 'test'"),
        ({"parts": {"train": [{"name": "x.tfrecord", "examples": 1, "bytes": 1, "sha256": "x"}]}},
         r"its parts.train\[0\].sha256 is 'x': String should match pattern"),
        ({"classes": None}, "its classes is None: Input should be a valid integer"),
        ({"classes": 6}, "it has 6 classes and 5 names"),
        ({"scale": float("nan")}, "its scale is nan"),
        ({"scale": 0}, "its scale is 0"),
        ({"validation": 2}, "its validation is 2: Input should be less than 1"),
    ],
)
def test_an_index_that_cannot_be_is_refused(tmp_path, change, words):
    write(tmp_path / "s")
    path = tmp_path / "s" / INDEX
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(DataError, match=f"is not a usable index of shards: .*{words}"):
        ShardSet.open(str(tmp_path / "s"))


def test_an_index_that_is_cut_short_is_refused(tmp_path):
    write(tmp_path / "s")
    path = tmp_path / "s" / INDEX
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match="is not a usable index of shards"):
        ShardSet.open(str(tmp_path / "s"))


def test_a_rewritten_set_is_decoded_anew(tmp_path):
    write(tmp_path / "s", encoding="raw")
    assert same(load_shards(str(tmp_path / "s")))
    shifted = image_set("tiny", part(47, 1), part(6, 2), part(10, 3), classes=5, scale=1 / 255)
    shard_write.write_shards(
        shifted, ABOUT, open_store(str(tmp_path / "s")), shards=5, encoding="raw", seed=2, validation=0.1, force=True
    )
    assert np.array_equal(load_shards(str(tmp_path / "s")).train.images, shifted.train.images)


def _load(url: str) -> bool:
    return same(load_shards(url))


@pytest.mark.integration
def test_processes_that_decode_at_once_all_get_the_whole(tmp_path):
    write(tmp_path / "s", encoding="png")
    # Not forked: a test before this one may have left threads in this process, and their locks held.
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        assert pool.map(_load, [str(tmp_path / "s")] * 6) == [True] * 6


def test_too_many_shards_are_refused_with_the_number(tmp_path):
    with pytest.raises(BadRequest, match="--shards 48: tiny has 47 examples"):
        write(tmp_path / "s", shards=48)
    with pytest.raises(BadRequest, match="--shards 0: give a number from 1"):
        write(tmp_path / "s", shards=0)


def test_the_catalogue_knows_a_set_by_its_address(tmp_path):
    write(tmp_path / "s")
    name = f"shards:{tmp_path / 's'}"
    about = catalogue.describe(name)
    assert (about.train, about.validation, about.test, about.input_shape, about.classes) == (47, 6, 10, (4, 3, 1), 5)
    catalogue.prepare(name)
    assert same(catalogue.load(name, seed=9, validation=0.1))
    assert {checked.state for checked in catalogue.verify(name)} == {"ok"}
    victim = tmp_path / "s" / "tiny-test-00000-of-00001.tfrecord"
    victim.write_bytes(victim.read_bytes()[:-1] + b"\0")
    assert [checked.file for checked in catalogue.verify(name) if checked.state == "damaged"] == [str(victim)]
    notes = catalogue.load(name, seed=9, validation=0.3).notes
    assert "--validation 0.3 is not used" in notes[0]


def test_a_set_without_a_test_part_is_refused_for_training(tmp_path):
    write(tmp_path / "s", parts=("train",))
    assert len(ShardSet.open(str(tmp_path / "s")).local_part("train")) == 47
    with pytest.raises(BadRequest, match="has no test part: write it again"):
        load_shards(str(tmp_path / "s"))


def test_the_command_writes_digits_and_says_what_it_wrote(velodrome, tmp_path):
    done = velodrome("data", "shard", "digits", "--shards", 4, "--to", tmp_path / "d", "--encoding", "raw", "--json")
    assert done.code == 0, done.text
    assert done.json()["parts"] == {
        "train": {"files": 4, "examples": 1294}, "validation": {"files": 1, "examples": 144},
        "test": {"files": 1, "examples": 359},
    }
    found, original = load_shards(str(tmp_path / "d")), catalogue.load("digits", seed=1, validation=0.1)
    assert np.array_equal(found.train.images, original.train.images)
    assert np.array_equal(found.test.labels, original.test.labels)
    again = velodrome("data", "shard", "digits", "--to", tmp_path / "d")
    assert (again.code, "--force" in again.err) == (2, True)
    assert velodrome("data", "shard", "digits", "--to", tmp_path / "e", "--part", "tain").code == 2
    plain = velodrome("data", "shard", "digits", "--to", tmp_path / "f", "--part", "train,test", "--shards", 2)
    assert "1,294 examples in   2 files" in plain.out


#: Of this program alone: what `getrusage` tells goes back to the process that started it.
_PEAK = """
import re
from pathlib import Path
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) >> 10
"""

_GATHERS = _PEAK + """
import sys
import numpy as np
from velodrome.data.examples import Gather
images = np.memmap(sys.argv[1], np.uint8, "r", shape=(400_000, 28, 28, 1))
random = np.random.default_rng(0)
gather = Gather(images, window=32 << 20)
gather(np.arange(10))
before = peak()
for _ in range(400):
    gather(random.integers(0, len(images), 500))
print(peak() - before)
"""


@pytest.mark.integration
def test_gathering_at_random_does_not_let_the_process_grow(tmp_path):
    large = tmp_path / "images"
    with large.open("wb") as stream:
        stream.truncate(400_000 * 784)  # 300 MiB, without a block on disk
    done = subprocess.run(
        [sys.executable, "-c", _GATHERS, str(large)], capture_output=True, text=True, timeout=280, check=True
    )
    assert int(done.stdout) < 96


_LARGE = _PEAK + """
import sys
import numpy as np
from velodrome.data.examples import Gather
from velodrome.data.shards.data_set import load_shards
found = load_shards(sys.argv[1], memory_budget=256 << 20)
gather, random = Gather(found.train.images), np.random.default_rng(0)
for _ in range(2000):
    chosen = random.integers(0, len(found.train), 128)
    assert np.array_equal(gather(chosen)[:, 0, 0, 0], found.train.labels[chosen])
print(found.train.images.nbytes >> 20, peak())
"""


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_set_of_4_gib_is_read_at_random_within_one_and_a_half(tmp_path):
    count, shape = 1 << 20, (64, 64, 1)
    with (tmp_path / "pixels").open("wb") as stream:
        stream.truncate(count * 64 * 64)
    pixels = np.memmap(tmp_path / "pixels", np.uint8, "r+", shape=(count, *shape))
    labels = np.random.default_rng(0).integers(0, 100, count)
    pixels[:, 0, 0, 0] = labels
    some = image_part(np.asarray(pixels[:10]), labels[:10])
    splits = image_set("large", image_part(np.asarray(pixels), labels), some, some, classes=100, scale=1 / 255)
    store = open_store(str(tmp_path / "s"))
    shard_write.write_shards(splits, ABOUT, store, shards=16, encoding="raw", seed=1, validation=0.1)
    done = subprocess.run(
        [sys.executable, "-c", _LARGE, str(tmp_path / "s")], capture_output=True, text=True, timeout=600, check=True
    )
    size, resident = map(int, done.stdout.split())
    assert size == 4096
    assert resident < 1536, f"{resident} MiB"


def test_gathering_equals_indexing(tmp_path):
    images = np.random.default_rng(3).integers(0, 256, (1000, 7, 5, 3), np.uint8)
    np.save(tmp_path / "images.npy", images)
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")
    wanted = np.random.default_rng(4).integers(0, 700, 5000)
    for source, window in ((images, 1), (mapped, 1), (mapped, 10 << 20)):
        assert np.array_equal(Gather(source, window)(wanted), images[wanted])
        assert np.array_equal(Gather(source[200:900], window)(wanted), images[200:900][wanted])
        assert Gather(source, window)(wanted[:0]).shape == (0, 7, 5, 3)
        with pytest.raises(IndexError):
            Gather(source, window)(np.array([1000]))


def test_a_file_that_shrinks_while_it_is_read_is_told(tmp_path):
    np.save(tmp_path / "images.npy", np.zeros((100, 8, 8, 1), np.uint8))
    gather = Gather(np.load(tmp_path / "images.npy", mmap_mode="r"), window=1)
    with (tmp_path / "images.npy").open("r+b") as stream:
        stream.truncate(1000)
    with pytest.raises(DataError, match=r"images.npy' was truncated while it was read"):
        gather(np.array([99]))


def test_relative_folders_and_file_addresses_are_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write("s")
    assert ShardSet.open("file://" + str(tmp_path / "s")).store.url == ShardSet.open("s").store.url
    assert ShardSet.open("./s").index.key == ShardSet.open(str(Path("s").absolute())).index.key
