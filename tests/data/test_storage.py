"""Stores: addresses that are none, folders, hosts that do not answer, and files that are whole or not there."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import time

import pytest
from fsspec.implementations.local import LocalFileSystem

from velodrome.data.storage import remote
from velodrome.data.storage.store import File, StorageError, open_store
from velodrome.errors import BadRequest

pytestmark = pytest.mark.unit


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(remote, "WAIT_SECONDS", 1.0)
    monkeypatch.setattr(remote, "PAUSE_SECONDS", 0.01)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "'' is not an address"),
        ("ftp://host/path", "no kind of store 'ftp'; give a folder or an address with file://, hdfs://"),
        ("file://data", "write three slashes"),
        ("hdfs:///data", r"not a complete address: write it as hdfs://host:port/path"),
        ("hdfs://namenode:9000", "not a complete address"),
        ("hdfs://namenode:port/data", "'hdfs://namenode:port/data' is not an address: Port"),
        ("s3:///path", "write it as s3://bucket/path"),
        ("a\0b", r"'a\\x00b' is not an address: it has a NUL character"),
        ("hdfs://h\0/x", "it has a NUL character"),
        ("~nobody-of-that-name/x", "there is no such user"),
    ],
)
def test_an_address_that_is_none_is_refused_with_the_way_out(url, words):
    with pytest.raises(BadRequest, match=words):
        open_store(url)


def test_a_folder_is_listed_sized_and_read_in_ranges(tmp_path):
    store = open_store(str(tmp_path / "new" / "folder"))
    assert (store.list(), store.size("a")) == ([], None)
    store.write("b", b"0123456789")
    store.write("a", b"x")
    (tmp_path / "new" / "folder" / "inner").mkdir()
    assert store.list() == [File("a", 1), File("b", 10)]
    assert (store.read("b"), store.read("b", 3, 4), store.read("b", 8, 9)) == (b"0123456789", b"3456", b"89")
    assert b"".join(store.chunks("b", 4)) == b"456789"
    store.remove("b")
    store.remove("b")
    with pytest.raises(StorageError, match=r"there is no '.*/folder/b'"):
        store.read("b")


def test_a_file_is_whole_or_not_there(tmp_path):
    store = open_store(str(tmp_path))
    store.write("a", b"old")
    staged = store.stage("a")
    staged.path.write_bytes(b"half")
    assert (store.read("a"), store.list()) == (b"old", [File("a", 3)])
    staged.discard()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a"]
    staged = store.stage("a")
    staged.path.write_bytes(b"new")
    staged.commit()
    staged.discard()
    assert store.read("a") == b"new"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_told(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(StorageError, match="no permission for"):
        open_store(str(tmp_path)).write("a", b"")


def test_a_file_where_a_folder_should_be_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"file' cannot be used: "):
        open_store(str(tmp_path / "file")).write("a", b"")


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("scheme", ["hdfs", "webhdfs"])
def test_a_host_that_refuses_is_told_with_its_address(scheme):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"{scheme}://127.0.0.1:{taken.getsockname()[1]}/data"
        with pytest.raises(StorageError, match=rf"'{url}' did not answer in 3 tries .*Connection refused"):
            open_store(url).list()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("scheme", ["hdfs", "webhdfs"])
def test_a_host_that_takes_the_call_and_says_nothing_is_not_waited_for_long(scheme):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(8)
        began = time.monotonic()
        with pytest.raises(StorageError, match="did not answer in 3 tries of at most 1 s"):
            open_store(f"{scheme}://127.0.0.1:{silent.getsockname()[1]}/data").size("x")
    assert time.monotonic() - began < 100


@pytest.mark.parametrize(("scheme", "package"), [("hdfs", "hdfs_native"), ("s3", "s3fs")])
def test_a_missing_extra_is_told_with_the_command_that_installs_it(scheme, package, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(StorageError, match=rf"needs {package}.*: pip install 'velodrome\[{scheme}\]'"):
        open_store(f"{scheme}://place/path").size("x")


@pytest.mark.usefixtures("quick")
def test_a_rename_whose_answer_was_lost_is_not_done_twice(tmp_path, monkeypatch):
    class Forgetful(LocalFileSystem):
        """Files of this machine; the first rename is done, and not answered."""

        cachable = False
        calls = 0

        def mv(self, path1, path2, **more):
            os.replace(path1, path2)  # noqa: PTH105
            Forgetful.calls += 1
            if Forgetful.calls == 1:
                raise TimeoutError

    monkeypatch.setattr(remote, "connect", lambda url, scheme, wait: (Forgetful(), str(tmp_path)))
    store = open_store("hdfs://namenode:9000/data")
    store.write("a", b"whole")
    assert (Forgetful.calls, store.read("a"), store.list()) == (1, b"whole", [File("a", 5)])
    with pytest.raises(StorageError, match="there is no"):
        store.rename("never-there", "a")


def test_staged_files_of_a_killed_process_are_removed_by_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / "velodrome-staged-left"
    left.mkdir()
    (left / "half.tfrecord").write_bytes(b"half")
    ours = remote.Scratch()
    assert left.exists()  # it may be that of a process that is about to lock it
    for folder in (left, ours.path):
        os.utime(folder, (0, 0))
    other = remote.Scratch()
    assert not left.exists()
    assert ours.path.exists()
    assert other.path.exists()
    path = ours.path
    del ours
    assert not path.exists()
