"""Files that hosts send while a run lasts and at its end: each arrives whole, or what was stored before stays."""

from __future__ import annotations

import tarfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from velodrome.clusters.interrupts import Patience
from velodrome.clusters.remote.agent import CHUNK, Header
from velodrome.clusters.remote.agent.host import HostFiles
from velodrome.clusters.remote.group import RemoteGroup

pytestmark = pytest.mark.unit
NAME = "checkpoints/epoch-0001.safetensors"


def group_of(folder: Path) -> RemoteGroup:
    host: Any = SimpleNamespace(link=SimpleNamespace(host="h", lost=None, take=None))
    return RemoteGroup("t", folder, {"h": host})


def chunk(at: int, body: bytes, *, last: bool = False) -> tuple[Header, bytes]:
    return {"is": "file", "run": "t", "name": NAME, "at": at, "last": last}, body


def arrived(folder: Path, frames: list[tuple[Header, bytes]]) -> bytes | None:
    group = group_of(folder)
    for header, body in frames:
        group._write("h", header, body)
    path = folder / NAME
    return path.read_bytes() if path.exists() else None


def test_a_file_that_is_being_sent_when_all_are_collected_arrives_whole(tmp_path: Path) -> None:
    source, stored = tmp_path / "host", tmp_path / "stored"
    (source / "checkpoints").mkdir(parents=True)
    content = bytes(range(256)) * (3 * CHUNK // 256)
    (source / NAME).write_bytes(content)
    frames: list[tuple[Header, bytes]] = []
    begun, go_on = threading.Event(), threading.Event()

    def send(header: Header, body: bytes) -> None:
        frames.append((header, body))
        begun.set()
        if threading.current_thread() is watcher:
            go_on.wait(1.0)  # a slow link

    files = HostFiles(source, send)
    files.watch({"token": "t", "folder": str(source), "patterns": ["checkpoints/*.safetensors"]}, b"")
    watcher = threading.Thread(target=files.send_watched)
    watcher.start()
    begun.wait(10)
    collector = threading.Thread(target=files.collect, args=({"token": "t", "folder": str(source)}, b""))
    collector.start()
    collector.join(0.3)
    go_on.set()
    watcher.join()
    collector.join()
    assert [header["at"] for header, _ in frames] == [0, CHUNK, 2 * CHUNK, 3 * CHUNK]
    assert arrived(stored, frames) == content


def test_a_file_that_is_sent_again_begins_anew(tmp_path: Path) -> None:
    assert arrived(tmp_path, [chunk(0, b"broken o"), chunk(0, b"whole"), chunk(5, b"", last=True)]) == b"whole"


@pytest.mark.parametrize("frames", [
    [chunk(5, b"", last=True)],
    [chunk(0, b"whole"), chunk(10, b"other"), chunk(15, b"", last=True)],
    [chunk(0, b"whole"), chunk(5, b"and"), chunk(5, b"", last=True)],
], ids=["end only", "chunk missing", "chunk twice"])
def test_a_file_that_arrives_incomplete_never_replaces_a_complete_one(
    tmp_path: Path, frames: list[tuple[Header, bytes]]
) -> None:
    assert arrived(tmp_path, [chunk(0, b"first"), chunk(5, b"", last=True)]) == b"first"
    assert arrived(tmp_path, frames) == b"first"
    assert not [*tmp_path.glob("**/*.part")]


def packed(path: Path, *members: tarfile.TarInfo) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for member in members:
            archive.addfile(member)


def member(name: str, **fields: Any) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(made, field, value)
    return made


@pytest.mark.parametrize("bad", [
    member("../outside.py"), member("/outside.py"), member("link.py", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
    member("link.py", type=tarfile.LNKTYPE, linkname="a.py"), member("pipe", type=tarfile.FIFOTYPE),
], ids=["parent", "absolute", "symbolic link", "hard link", "pipe"])
def test_an_archive_with_anything_but_files_below_its_folder_is_refused(tmp_path: Path, bad: tarfile.TarInfo) -> None:
    packed(tmp_path / "root" / "x.tar", member("a.py"), bad)
    with pytest.raises(ValueError, match="which is no plain file below its folder"):
        HostFiles(tmp_path / "root", lambda header, body: None).unpack({"to": "code/x", "path": "x.tar"}, b"")
    assert not (tmp_path / "root" / "code" / "x").exists()
    assert not [*tmp_path.glob("**/*.py")]


def test_collecting_that_is_given_up_stores_what_has_come(tmp_path: Path) -> None:
    ended = threading.Event()

    def wait(number: int, do: str, seconds: float) -> None:
        ended.wait(seconds)

    link: Any = SimpleNamespace(host="h", lost=None, take=None, send=lambda do, **fields: 1, wait=wait)
    host: Any = SimpleNamespace(link=link, folder="/there")
    group = RemoteGroup("t", tmp_path, {"h": host})
    patience = Patience([], interrupted=True, seconds=0.3)
    for header, body in (chunk(0, b"whole"), chunk(5, b"", last=True)):
        group.take_over(link, header, body)
    began = time.monotonic()
    try:
        group.collect(patience.is_over)
    finally:
        ended.set()
    assert time.monotonic() - began < 10
    assert (tmp_path / NAME).read_bytes() == b"whole"


def test_patience_lasts_some_seconds_after_a_signal_and_none_after_two() -> None:
    signals: list[int] = []
    assert not Patience(signals, interrupted=False, seconds=0.0).is_over()
    patience = Patience(signals, interrupted=True, seconds=60.0)
    assert not patience.is_over()
    signals.append(2)
    assert patience.is_over()
    short = Patience(signals, interrupted=False, seconds=0.0)
    short.is_over()
    time.sleep(0.01)
    assert short.is_over()


@pytest.mark.parametrize("name", [
    "result.json", "./result.json", "model/../job.yaml", "checkpoints/../../other/result.json", "", ".", "..", "/",
    "/tmp/x", "//x", "model", "model/", "model//x", "logs", "job.yaml", "race.yaml", "RESULT.JSON", "events.jsonl",
    "events-worker-0.jsonl", "plan.json", "slurm.json", "controller.lock", ".reserve", "result.json/x", "model/\0",
    "a\nb", "model\\..\\x", "x" * 300, None, 5, ["model"], {"a": 1}, "model/\ud800", "é" * 200, "漢" * 90,
    "d/" * 3000 + "x", "/".join(["d" * 200] * 60), "logs/../result.json", "result.json\0", "result.json\n",
], ids=lambda name: repr(name)[:30])
def test_a_host_cannot_write_what_is_the_controllers(tmp_path: Path, name: object) -> None:
    folder = tmp_path / "runs" / "a"
    folder.mkdir(parents=True)
    (folder / "model").mkdir()
    before = {"job.yaml": "job", "result.json": "result"}
    for file, text in before.items():
        (folder / file).write_text(text)
    group = group_of(folder)
    for frame in ({"at": 0, "last": False}, {"at": 5, "last": True}, {}):
        group._handle((group.hosts["h"].link, {"is": "file", "run": "t", "name": name, **frame}, b"other"), None)
    assert {path.name: path.read_text() for path in folder.iterdir() if path.is_file()} == before
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == sorted(before)
    warnings = group.warnings()
    assert len(warnings) == 1
    assert warnings[0].startswith("host 'h' sent a file ")
    assert group.warnings() == []


@pytest.mark.parametrize("process", [["a"], {"a": 1}, 7, None])
def test_a_host_that_names_no_process_is_not_heard(tmp_path: Path, process: object) -> None:
    group, heard = group_of(tmp_path), list[str]()
    frame = {"is": "out", "run": "t", "id": process}
    group._handle((group.hosts["h"].link, frame, b"line"), lambda who, line: heard.append(line))
    assert not heard


def test_a_link_in_the_folder_of_the_run_does_not_lead_a_host_out_of_it(tmp_path: Path) -> None:
    folder, outside = tmp_path / "run", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    (folder / "model").symlink_to(outside)
    assert write_through(folder, "model/model.json") == ["the run's folder has a link of that name"]
    assert list(outside.iterdir()) == []


def test_a_file_in_place_of_a_folder_is_no_crash(tmp_path: Path) -> None:
    assert write_through(tmp_path, "model/a") == []
    assert write_through(tmp_path, "model/a/b") == ["the run's folder has something else of that name"]
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "x").mkdir()
    assert write_through(tmp_path, "logs/x") == ["the run's folder has something else of that name"]


@pytest.mark.parametrize("name", ["model/model.json", "model/a/b.bin", "logs/worker-0.log", "horovod-timeline.json",
                                  "weights.pt", "outputs/mine.csv", "tensorboard/events.out.tfevents.1"])
def test_what_processes_write_is_collected(tmp_path: Path, name: str) -> None:
    assert write_through(tmp_path, name) == []
    assert (tmp_path / name).read_bytes() == b"x"


def test_a_folder_in_place_of_a_file_that_arrives_is_no_crash(tmp_path: Path) -> None:
    assert write_through(tmp_path, "a.0.part/b") == []
    assert write_through(tmp_path, "a") == ["Is a directory"]
    assert write_through(tmp_path, "c") == []
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["b", "c"]


def test_a_host_that_begins_files_without_end_keeps_one_open(tmp_path: Path) -> None:
    group = group_of(tmp_path)
    for number in range(50):
        group._write("h", {"is": "file", "run": "t", "name": f"model/{number}", "at": 0, "last": False}, b"x")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["49.0.part"]


@pytest.mark.parametrize("frame", [
    {"is": "out", "id": ["worker-0"]}, {"is": "exit", "id": {"a": 1}, "code": 1}, {"is": ["file"], "name": "x"},
    {"is": "file"}, {},
], ids=str)
def test_a_report_of_other_types_is_left_out(tmp_path: Path, frame: Header) -> None:
    group = group_of(tmp_path)
    group._handle((group.hosts["h"].link, {"run": "t", **frame}, b"x"), lambda process, line: None)
    assert list(tmp_path.iterdir()) == []


def write_through(folder: Path, name: str) -> list[str]:
    """Write a file as a host does; the reasons for which it was refused."""
    group = group_of(folder)
    for at, body, last in ((0, b"x", False), (1, b"", True)):
        group._write("h", {"is": "file", "run": "t", "name": name, "at": at, "last": last}, body)
    return [sentence.rpartition(": ")[2] for sentence in group.warnings()]
