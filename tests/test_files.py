"""A file is written in full or not at all, and a lock is held by one process for as long as that lives."""

from __future__ import annotations

import io
import os
import threading
import time
from pathlib import Path

import pytest

from velodrome import files

pytestmark = pytest.mark.unit


def _write_half(path: Path, error: BaseException, *, shared: bool = False) -> None:
    before = path.read_bytes() if path.exists() else None
    with files.atomic_path(path, shared=shared) as partial:
        partial.write_text("half")
        assert (path.read_bytes() if path.exists() else None) == before
        raise error


def test_a_file_is_replaced_only_when_its_new_content_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "file"
    files.write_text(path, "old ä")
    with pytest.raises(RuntimeError):
        _write_half(path, RuntimeError())
    assert path.read_text(encoding="utf-8") == "old ä"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("shared", [False, True])
def test_a_full_disk_names_the_file_and_leaves_nothing(tmp_path: Path, shared: bool) -> None:
    path = tmp_path / "file"
    with pytest.raises(OSError, match="No space left") as caught:
        _write_half(path, OSError(28, os.strerror(28)), shared=shared)
    assert caught.value.filename == str(path)
    assert caught.value.strerror == os.strerror(28)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_missing_is_reported_with_the_name_that_was_asked_for(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        files.write_bytes(tmp_path / "none" / "file", b"")
    assert caught.value.filename == str(tmp_path / "none" / "file")


def test_an_error_about_another_file_keeps_its_name(tmp_path: Path) -> None:
    with pytest.raises(OSError) as caught, files.atomic_path(tmp_path / "file"):
        (tmp_path / "other" / "place").write_text("")
    assert caught.value.filename == str(tmp_path / "other" / "place")


def test_what_a_killed_writer_left_is_overwritten_by_the_next(tmp_path: Path) -> None:
    (tmp_path / f"file{files.PARTIAL}").write_text("half of a longer te")
    files.write_text(tmp_path / "file", "text")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"file": "text"}


def test_writers_of_a_shared_file_do_not_mix_their_contents(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with files.atomic_path(path, shared=True) as one, files.atomic_path(path, shared=True) as other:
        assert one != other
        one.write_text("one")
        other.write_text("other")
    assert path.read_text() == "one"
    assert list(tmp_path.iterdir()) == [path]


def test_one_holder_at_a_time_and_a_reader_can_ask(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not files.is_locked(path)
    assert not path.exists()  # asking creates nothing
    first, second = files.FileLock(path), files.FileLock(path)
    assert first.acquire()
    assert files.is_locked(path)
    assert not second.acquire(0.05)
    first.release()
    assert not files.is_locked(path)
    assert second.acquire()
    second.release(remove=True)
    assert not path.exists()
    second.release(remove=True)  # a second time changes nothing


def test_asking_does_not_need_permission_to_write(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = files.FileLock(path)
    assert lock.acquire()
    path.chmod(0o444)
    assert files.is_locked(path)
    lock.release()


def test_a_lock_that_is_released_by_another_thread_is_free(tmp_path: Path) -> None:
    lock = files.FileLock(tmp_path / "lock")
    assert lock.acquire()
    thread = threading.Thread(target=lock.release)
    thread.start()
    thread.join()
    assert files.FileLock(tmp_path / "lock").acquire()


def test_who_waits_for_a_file_that_its_holder_removes_locks_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    holder, waiting = files.FileLock(path), files.FileLock(path)
    assert holder.acquire()
    timer = threading.Timer(0.1, lambda: holder.release(remove=True))
    timer.start()
    assert waiting.acquire(10)
    timer.join()
    assert path.exists()
    assert not files.FileLock(path).acquire()
    waiting.release()


def test_what_killed_writers_left_is_removed_after_a_day(tmp_path: Path) -> None:
    for name, age in ((".a*b.old.half", 100_000), (".a*b.new.half", 10), (".axb.old.half", 100_000)):
        (tmp_path / name).write_text("half")
        os.utime(tmp_path / name, (0, time.time() - age))
    files.write_text(tmp_path / "a*b", "whole", shared=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".a*b.new.half", ".axb.old.half", "a*b"]


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


@pytest.mark.timeout(20)
@pytest.mark.parametrize("read", [
    files.open_regular, files.check_regular, lambda path: files.read_bytes(path, 10),
    lambda path: files.read_json(path, 10), lambda path: list(files.read_lines(path, 10)), files.sha256_of,
])
def test_only_regular_files_are_read(tmp_path: Path, pipe: Path, read) -> None:
    (tmp_path / "zeros").symlink_to("/dev/zero")
    for path, kind in ((pipe, "a named pipe"), (tmp_path / "zeros", "a device"), (tmp_path, "a folder")):
        with pytest.raises(OSError, match=f"it is {kind}, not a regular file"):
            read(path)
    assert not files.is_locked(pipe)


def test_a_file_that_is_larger_than_expected_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(OSError, match="it has 1,099,511,627,776 bytes, but at most 1,000 are read"):
        files.read_bytes(path, 1000)
    path.write_text("exact")
    assert files.read_text(path, 5) == "exact"
    with pytest.raises(OSError, match="more than 1"):  # the size that such a file reports is 0
        files.read_bytes("/proc/self/status", 100)


def test_lines_are_read_up_to_one_that_does_not_end(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"one\n\xff\n0123456789\nlast")
    assert list(files.read_lines(path, 11)) == ["one\n", "\ufffd\n", "0123456789\n", "last"]
    read = files.read_lines(path, 10)
    assert [next(read), next(read)] == ["one\n", "\ufffd\n"]
    with pytest.raises(OSError, match="its line 3 has more than 10 bytes"):
        next(read)


def test_half_a_surrogate_is_written_escaped(tmp_path: Path) -> None:
    files.write_text(tmp_path / "file", "ä \ud800,1\n")
    assert (tmp_path / "file").read_bytes() == b"\xc3\xa4 \\ud800,1\n"


def test_blank_lines_are_counted_and_left_out_many_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"one\n" + b"\n" * 5_000_000 + b" \r\n\ttwo\n\nthree\n \n")
    lines = list(files.numbered_lines(path, 100))
    assert [(number, line.strip()) for number, line in lines] == [(1, "one"), (5_000_003, "two"), (5_000_005, "three")]
    opened, calls = files.open_regular, []

    class Counted(io.BufferedReader):
        def readline(self, *size: int) -> bytes:
            calls.append(size)
            return super().readline(*size)

    monkeypatch.setattr(files, "open_regular", lambda path, **_: Counted(opened(path).detach()))
    assert [line.strip() for line in files.read_lines(path, 100)] == ["one", "two", "three"]
    assert len(calls) < 5_000, "a call for each piece that is read, not for each line"


def test_json_that_is_nested_too_deeply_is_a_value_error(tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    path.write_text("[" * 100_000)
    with pytest.raises(ValueError, match="nested too deeply"):
        files.read_json(path, 1_000_000)


def test_a_held_folder_is_gone_when_a_link_to_it_takes_its_place(tmp_path: Path) -> None:
    """Readers of runs follow no link; one on the way, or that was there before, is the user's."""
    (tmp_path / "runs" / "run").mkdir(parents=True)
    (tmp_path / "linked").symlink_to(tmp_path / "runs" / "run")
    held, linked = files.HeldFolder(tmp_path / "runs" / "run"), files.HeldFolder(tmp_path / "linked")
    assert (held.is_in_place(), linked.is_in_place()) == (True, True)
    (tmp_path / "runs").rename(tmp_path / "moved")
    (tmp_path / "runs").symlink_to(tmp_path / "moved")
    assert (held.is_in_place(), linked.is_in_place()) == (True, True)
    (tmp_path / "moved" / "run").rename(tmp_path / "moved" / "other")
    (tmp_path / "moved" / "run").symlink_to(tmp_path / "moved" / "other")
    assert not held.is_in_place()
    held.close()
    linked.close()
