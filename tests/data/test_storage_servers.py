"""Shards on a real HDFS, one of whose machines dies, and on a server that speaks S3."""

from __future__ import annotations

import multiprocessing
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "servers"))
import hdfs as hdfs_server
import s3 as s3_server

from velodrome.data import cache, catalogue
from velodrome.data.base import DataError
from velodrome.data.examples import ExampleSet, image_part, image_set
from velodrome.data.shards import write as shard_write
from velodrome.data.shards.data_set import ShardSet, load_shards
from velodrome.data.source import Description
from velodrome.data.storage import remote
from velodrome.data.storage.store import File, StorageError, open_store
from velodrome.errors import BadRequest

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("own_cache")]


@pytest.fixture(scope="module")
def hadoop(tmp_path_factory):
    if why := hdfs_server.unavailable():
        pytest.skip(why)
    with hdfs_server.hdfs(tmp_path_factory.mktemp("hdfs")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def bucket():
    pytest.importorskip("moto")
    with s3_server.s3("races") as variables, pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield "s3://races"


@pytest.fixture(params=["hdfs", "webhdfs", "s3"])
def place(request) -> str:
    """An address below which nothing is, on each kind of store."""
    name = request.node.name.partition("[")[0]
    if request.param == "s3":
        return f"{request.getfixturevalue('bucket')}/{name}"
    cluster = request.getfixturevalue("hadoop")
    return f"{getattr(cluster, request.param)}/{request.param}/{name}"


def random_splits(examples: int, side: int = 16) -> ExampleSet:
    random = np.random.default_rng(0)
    parts = [
        image_part(random.integers(0, 256, (count, side, side, 1), np.uint8), random.integers(0, 10, count))
        for count in (examples, 20, 30)
    ]
    return image_set("tiny", *parts, classes=10, scale=1 / 255)


SPLITS = random_splits(500)
ABOUT = Description("tiny", "Tiny", "none", "", 500, 20, 30, (16, 16, 1), 10)


def write(url: str, splits: ExampleSet = SPLITS, **options):
    chosen = {"shards": 4, "encoding": "raw", "seed": 1, "validation": 0.1, **options}
    return shard_write.write_shards(splits, ABOUT, open_store(url), **chosen)


def same(found: ExampleSet) -> bool:
    return all(
        np.array_equal(getattr(found, name).images, getattr(SPLITS, name).images)
        and np.array_equal(getattr(found, name).labels, getattr(SPLITS, name).labels)
        for name in ("train", "validation", "test")
    )


def test_files_are_written_replaced_listed_read_and_removed(place):
    store = open_store(place)
    assert (store.list(), store.size("a")) == ([], None)
    store.write("a", b"old")
    store.write("a", b"0123456789" * 300_000)
    assert store.list() == [File("a", 3_000_000)]
    assert store.read("a", 2_999_995, 20) == b"56789"
    assert store.read("a") == b"0123456789" * 300_000
    staged = store.stage("b")
    staged.path.write_bytes(b"half")
    staged.upload()
    assert [file.name for file in store.list()] == ["a"]
    staged.discard()
    store.remove("a")
    store.remove("a")
    assert store.list() == []
    with pytest.raises(StorageError, match=f"there is no '{place}/a'"):
        store.read("a")


def test_a_set_goes_there_and_comes_back(place):
    write(place)
    assert same(load_shards(place))
    with pytest.raises(BadRequest, match="holds a set of shards already"):
        write(place)
    write(place, shards=2, force=True)
    assert sum("train" in file.name for file in open_store(place).list()) == 2
    assert same(load_shards(place))
    assert {checked.state for checked in catalogue.verify(f"shards:{place}")} == {"ok"}


def test_what_a_killed_process_left_half_written_is_removed_when_it_is_old(place, monkeypatch):
    store = open_store(place)
    staged = store.stage("a.tfrecord")
    staged.path.write_bytes(b"half")
    staged.upload()
    left = 0 if place.startswith("s3") else 1  # there an object appears when it is whole
    with store.exclusive():
        assert store.half_written() == []
    monkeypatch.setattr(remote, "ABANDONED_SECONDS", -3600)
    assert len(store.half_written()) == left
    with store.exclusive():
        assert store.half_written() == []


def test_a_damaged_file_is_named_with_its_address(place):
    name = write(place).files("train")[1].name
    store = open_store(place)
    data = bytearray(store.read(name))
    data[1000] ^= 1
    store.write(name, bytes(data))
    with pytest.raises(DataError, match=rf"'{place}/{name}' is damaged: it has another checksum"):
        load_shards(place)
    store.write(name, bytes(data[:-9]))
    with pytest.raises(DataError, match=rf"'{place}/{name}' is damaged: it has [\d,]+ bytes instead of"):
        load_shards(place)


def test_fetching_goes_on_where_it_broke_off(place):
    shards = ShardSet(open_store(place), write(place))
    file = shards.index.files("train")[0]
    whole = shards.store.read(file.name)
    folder = cache.folder() / "shards" / shards.index.key[:32]
    folder.mkdir(parents=True)
    (folder / f".{file.name}.part").write_bytes(whole[:20_000])
    asked = []
    original = shards.store.chunks
    shards.store.chunks = lambda name, start=0: (asked.append(start), original(name, start))[1]
    assert shards.fetch([file])[0].read_bytes() == whole
    assert asked == [20_000]
    (folder / file.name).unlink()
    (folder / f".{file.name}.part").write_bytes(b"x" * 20_000)  # of another set: only the sum tells
    assert shards.fetch([file])[0].read_bytes() == whole


def _load(url: str) -> bool:
    return same(load_shards(url))


def test_processes_that_fetch_at_once_all_get_the_whole(place):
    write(place)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map(_load, [place] * 2, chunksize=1) == [True] * 2


def test_a_user_without_permission_is_told(hadoop, monkeypatch):
    open_store(f"{hadoop.hdfs}/mine").write("a", b"1")
    monkeypatch.setenv("HADOOP_USER_NAME", "somebody")
    for url in (f"{hadoop.hdfs}/mine", f"{hadoop.webhdfs}/mine"):
        with pytest.raises(StorageError, match=f"no permission for '{url}/b'"):
            open_store(url).write("b", b"1")


@pytest.mark.parametrize("scheme", ["hdfs", pytest.param("webhdfs", marks=pytest.mark.slow)])
def test_a_read_completes_although_a_datanode_is_killed_meanwhile(hadoop, scheme):
    url = f"{getattr(hadoop, scheme)}/{scheme}/killed"
    payload = np.random.default_rng(5).bytes(40 << 20)
    store = open_store(url)
    store.write("large", payload)
    chunks = store.chunks("large")
    got = [next(chunks)]
    hadoop.kill_datanode(0)
    try:
        got += chunks
    finally:
        hadoop.restart_datanode(0)
    assert b"".join(got) == payload
