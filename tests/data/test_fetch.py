"""Where the files of a data set come from, and what happens when a source is broken, wrong or away."""

from __future__ import annotations

import gzip
import multiprocessing
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import tiny_idx as tiny

from velodrome.data import cache, fetch
from velodrome.data.base import DataError

pytestmark = pytest.mark.usefixtures("own_cache")

IMAGES = tiny.NAMES[0]


def is_whole(splits) -> bool:
    images, labels, test_images, test_labels = tiny.arrays()
    both = np.concatenate([splits.train.images, splits.validation.images])
    return (
        sorted(image.tobytes() for image in both) == sorted(image.astype(np.uint8).tobytes() for image in images)
        and np.array_equal(splits.test.images[..., 0], test_images)
        and np.array_equal(splits.test.labels, test_labels)
        and len(splits.train) + len(splits.validation) == len(labels)
    )


def test_a_folder_mirror_fills_the_cache_and_is_not_needed_again(tmp_path, monkeypatch):
    mirror = tiny.write_mirror(tmp_path / "mirror")
    monkeypatch.setenv("VELODROME_DATA_MIRROR", str(mirror))
    tiny.data_set().prepare()
    monkeypatch.delenv("VELODROME_DATA_MIRROR")
    assert is_whole(tiny.data_set().load(1, 0.1))


def test_load_fetches_by_itself_where_nothing_was_prepared(tmp_path, monkeypatch):
    monkeypatch.setenv("VELODROME_DATA_MIRROR", str(tiny.write_mirror(tmp_path / "mirror")))
    assert is_whole(tiny.data_set().load(1, 0.1))


def test_a_web_mirror_is_asked_before_the_publisher(tmp_path, monkeypatch):
    with tiny.serve(tiny.write_mirror(tmp_path / "m")) as mirror, tiny.serve(tmp_path) as publisher:
        monkeypatch.setenv("VELODROME_DATA_MIRROR", mirror.address + "/")
        assert is_whole(tiny.data_set(publishers=(f"{publisher.address}/",)).load(1, 0.1))
    assert [path for path, _ in mirror.requests] == [f"/tiny/{name}" for name in tiny.NAMES]
    assert publisher.requests == []


def test_the_publishers_are_tried_one_after_the_other(tmp_path):
    mirror = tiny.write_mirror(tmp_path / "m")
    with tiny.serve(tmp_path / "nothing") as first, tiny.serve(mirror) as second:
        publishers = (f"{first.address}/", f"{second.address}/tiny/")
        assert is_whole(tiny.data_set(publishers=publishers).load(1, 0.1))
    assert len(first.requests) == len(second.requests) == 4


@pytest.mark.parametrize("packed", [True, False])
def test_a_system_package_may_have_packed_the_same_payload_differently(tmp_path, packed):
    for name, array in zip(tiny.NAMES, tiny.arrays(), strict=True):
        payload = tiny.idx(array)
        file = tmp_path / (name if packed else name.removesuffix(".gz"))
        file.write_bytes(gzip.compress(payload, compresslevel=1, mtime=12345) if packed else payload)
    assert is_whole(tiny.data_set(system=tmp_path).load(1, 0.1))


def test_a_download_that_breaks_off_goes_on_where_it_stopped(tmp_path):
    with tiny.serve(tiny.write_mirror(tmp_path / "m")) as server:
        server.breaks = 1
        assert is_whole(tiny.data_set(publishers=(f"{server.address}/tiny/",)).load(1, 0.1))
    half = tiny.data_set().files[0].gz_bytes // 2
    assert server.requests[:2] == [(f"/tiny/{IMAGES}", None), (f"/tiny/{IMAGES}", f"bytes={half}-")]
    assert len(server.requests) == 5


def test_a_server_without_ranges_is_simply_read_again(tmp_path):
    with tiny.serve(tiny.write_mirror(tmp_path / "m")) as server:
        server.breaks, server.ranges = 1, False
        assert is_whole(tiny.data_set(publishers=(f"{server.address}/tiny/",)).load(1, 0.1))


def test_the_rest_of_an_earlier_process_is_continued_and_a_wrong_rest_is_thrown_away(tmp_path, own_cache):
    mirror = tiny.write_mirror(tmp_path / "m")
    (own_cache / "tiny").mkdir(parents=True)
    part = own_cache / "tiny" / f"{IMAGES}.part"
    good = (mirror / "tiny" / IMAGES).read_bytes()
    for rest in (good[:100], b"x" * 100, good + b"too much"):
        part.write_bytes(rest)
        (own_cache / "tiny" / IMAGES.removesuffix(".gz")).unlink(missing_ok=True)
        with tiny.serve(mirror) as server:
            assert is_whole(tiny.data_set(publishers=(f"{server.address}/tiny/",)).load(1, 0.1))
        assert f"bytes={len(rest)}-" in [wanted for _, wanted in server.requests]
        assert not part.exists()


def test_a_complete_data_set_keeps_nothing_of_killed_processes(tmp_path, monkeypatch, own_cache):
    """Neither a download that another source has replaced nor a file that was killed while it was written."""
    monkeypatch.setenv("VELODROME_DATA_MIRROR", str(tiny.write_mirror(tmp_path / "m")))
    (own_cache / "tiny").mkdir(parents=True)
    payload = IMAGES.removesuffix(".gz")
    for left in (f"{IMAGES}.part", "archive.tar.gz.part", f"{payload}.half", f".{payload}.0123456789ab.half"):
        (own_cache / "tiny" / left).write_bytes(b"half")
    assert is_whole(tiny.data_set().load(1, 0.1))
    assert [path.name for path in (own_cache / "tiny").iterdir() if path.suffix in (".part", ".half")] == []


_STORER = """
import os, sys
from pathlib import Path
from velodrome.data import cache
write = Path.write_bytes
def half(path, content):
    write(path, content[:5])
    print("half", flush=True)
    sys.stdin.read()
Path.write_bytes = half
place = Path(sys.argv[1])
with cache.exclusive(place):
    cache.store(place / "images", b"ten bytes.")
"""


@pytest.mark.integration
def test_what_a_process_that_was_killed_while_it_stored_a_file_left_is_overwritten_by_the_next(tmp_path):
    words = [sys.executable, "-c", _STORER, str(tmp_path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as storer:
        assert storer.stdout is not None
        assert storer.stdout.readline() == "half\n"
        storer.kill()
    assert [path.read_bytes() for path in tmp_path.glob("*.half")] == [b"ten b"]
    with cache.exclusive(tmp_path):
        cache.store(tmp_path / "images", b"ten bytes.")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "images"]


def test_breaking_off_again_and_again_ends_with_a_sentence(tmp_path):
    with tiny.serve(tiny.write_mirror(tmp_path / "m")) as server:
        server.breaks = 100
        with pytest.raises(DataError, match=r"broke off after [0-9,]+ of [0-9,]+ bytes"):
            tiny.data_set(publishers=(f"{server.address}/tiny/",)).load(1, 0.1)
    assert len(server.requests) == fetch.ATTEMPTS


def test_a_silent_server_is_given_up(monkeypatch):
    monkeypatch.setattr(fetch, "SILENCE_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        began = time.monotonic()
        with pytest.raises(DataError, match="no answer for 0 s"):
            tiny.data_set(publishers=(url,)).load(1, 0.1)
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (gzip.compress(tiny.idx(np.zeros((40, 4, 4)))), "wrong checksum: md5"),
        (gzip.compress(b"\0" * 10_000_000), "wrong checksum: 657 bytes inside instead of 656"),
        (gzip.compress(tiny.idx(tiny.arrays()[0]))[:-200], "wrong checksum"),
        (b"\x1f\x8b nonsense", "not a whole gzip file"),
        (b"<html>please log in</html>", "wrong checksum"),
    ],
    ids=["altered", "bomb", "cut", "garbage", "login page"],
)
def test_what_is_not_the_published_file_never_reaches_the_cache(tmp_path, monkeypatch, own_cache, content, reason):
    mirror = tiny.write_mirror(tmp_path / "mirror")
    (mirror / "tiny" / IMAGES).write_bytes(content)
    with tiny.serve(mirror) as server:
        for address in (str(mirror), server.address):
            monkeypatch.setenv("VELODROME_DATA_MIRROR", address)
            with pytest.raises(DataError, match=reason):
                tiny.data_set().prepare()
    assert [file.name for file in (own_cache / "tiny").iterdir()] == [".lock"]


def test_a_failure_names_every_source_with_its_reason_and_the_way_out(tmp_path, monkeypatch):
    monkeypatch.setenv("VELODROME_DATA_MIRROR", str(tmp_path / "absent"))
    with tiny.serve(tmp_path) as server:
        server.status = 503
        with pytest.raises(DataError) as caught:
            tiny.data_set(publishers=(f"{server.address}/",), system=tmp_path).prepare()
    said = str(caught.value)
    assert f"the mirror {tmp_path / 'absent' / 'tiny'} (no such folder)" in said
    assert f"the system package's folder {tmp_path} (no such file)" in said
    assert f"{server.address}/{IMAGES} (the server answered 503 Service Unavailable)" in said
    assert f"Set --mirror or VELODROME_DATA_MIRROR to a folder or an http(s) address that holds tiny/{IMAGES}" in said


def test_a_redirect_cannot_lead_to_a_file_of_this_machine(tmp_path):
    import http.server
    import threading

    class Redirect(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("Location", (tmp_path / "secret").as_uri())
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    (tmp_path / "secret").write_bytes(b"secret")
    with http.server.HTTPServer(("127.0.0.1", 0), Redirect) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        with pytest.raises(fetch.DownloadError):
            fetch.download(f"http://127.0.0.1:{server.server_port}/x", tmp_path / "part", 100, lambda got: None)
        server.shutdown()
    assert not (tmp_path / "part").exists()


@pytest.mark.parametrize("damage", ["cut", "altered", "gone"])
def test_a_damaged_cache_file_is_noticed_and_fetched_again(tmp_path, monkeypatch, own_cache, damage):
    monkeypatch.setenv("VELODROME_DATA_MIRROR", str(tiny.write_mirror(tmp_path / "mirror")))
    tiny.data_set().prepare()
    victim = own_cache / "tiny" / IMAGES.removesuffix(".gz")
    data = bytearray(victim.read_bytes())
    data[300] ^= 1
    victim.unlink()
    if damage != "gone":
        victim.write_bytes(data[:300] if damage == "cut" else data)
    assert is_whole(tiny.data_set().load(1, 0.1))
    assert cache.read(victim, tiny.data_set().files[0]) is not None


def test_progress_counts_up_to_the_size_of_what_was_missing(tmp_path, own_cache):
    seen = []
    with tiny.serve(tiny.write_mirror(tmp_path / "m")) as server:
        data_set = tiny.data_set(publishers=(f"{server.address}/tiny/",))
        data_set.prepare(lambda *told: seen.append(told))
        total = sum(file.gz_bytes for file in data_set.files)
        assert seen[0] == (0, total, f"tiny/{IMAGES}")
        assert seen[-1] == (total, total, f"tiny/{tiny.NAMES[3]}")
        assert [done for done, _, _ in seen] == sorted(done for done, _, _ in seen)
        seen.clear()
        data_set.prepare(lambda *told: seen.append(told))
        assert seen == []


def test_a_cache_that_cannot_be_written_says_which_and_what_to_set(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("VELODROME_CACHE", str(tmp_path / "file"))
    monkeypatch.setenv("VELODROME_DATA_MIRROR", str(tiny.write_mirror(tmp_path / "mirror")))
    with pytest.raises(DataError, match=r"Not a directory.*set VELODROME_CACHE"):
        tiny.data_set().prepare()


def _prepare(address: str, start, results) -> None:
    start.wait(10)
    results.put(is_whole(tiny.data_set(publishers=(f"{address}/tiny/",)).load(1, 0.1)))


@pytest.mark.integration
def test_processes_that_prepare_at_once_fetch_each_file_once_and_all_succeed(tmp_path):
    context = multiprocessing.get_context("spawn")
    start, results = context.Event(), context.Queue()
    with tiny.serve(tiny.write_mirror(tmp_path / "m")) as server:
        processes = [context.Process(target=_prepare, args=(server.address, start, results)) for _ in range(3)]
        for process in processes:
            process.start()
        start.set()
        assert [results.get(timeout=280) for _ in processes] == [True] * 3
        for process in processes:
            process.join(10)
    assert len(server.requests) == 4


def test_a_process_waits_a_limited_time_for_another_that_fetches(tmp_path, monkeypatch, own_cache):
    monkeypatch.setattr(cache, "LOCK_SECONDS", 0.3)
    monkeypatch.setenv("VELODROME_DATA_MIRROR", str(tiny.write_mirror(tmp_path / "mirror")))
    with cache.exclusive(own_cache / "tiny"), pytest.raises(DataError, match="another process has been fetching into"):
        tiny.data_set().prepare()


@pytest.mark.parametrize("place", ["tiny", "beside"])
def test_a_process_waits_as_long_as_the_other_brings_something(monkeypatch, own_cache, place):
    monkeypatch.setattr(cache, "LOCK_SECONDS", 0.4)
    held, ended = threading.Event(), []
    (own_cache / place).mkdir(parents=True)

    def fetch() -> None:
        with cache.exclusive(own_cache / "tiny"):
            held.set()
            for number in range(12):
                (own_cache / place / "part").write_bytes(bytes(number))
                time.sleep(0.1)
            ended.append(time.monotonic())

    other = threading.Thread(target=fetch)
    other.start()
    held.wait(10)
    with cache.exclusive(own_cache / "tiny", own_cache / "beside"):
        assert time.monotonic() >= ended[0]
    other.join(10)


def test_a_store_that_fails_leaves_the_old_file_and_nothing_beside(tmp_path):
    path = Path(tmp_path / "file")
    cache.store(path, b"old")
    with pytest.raises(TypeError):
        cache.store(path, object())  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
