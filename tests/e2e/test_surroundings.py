"""What a run needs is missing: a port, disk, memory, a place to write. Or what is there is broken."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from scene import LONG, Scene, left_in, training

from synthetic_races import result, typed
from velodrome.clusters.local.launcher import LocalLauncher, free_port
from velodrome.job.job import Job
from velodrome.run.attempt import JobFailed
from velodrome.run.execute import execute
from velodrome.run.store import Store

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

slow = pytest.mark.slow
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system, which only root may")


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize(
    ("engine", "strategy", "taken"),
    [
        pytest.param("torch", "ddp", 0, id="ddp"),
        pytest.param("torch", "allreduce", 0, id="allreduce", marks=slow),
        pytest.param("tensorflow", "multi-worker-mirrored", 0, id="multi-worker-mirrored-chief", marks=slow),
        pytest.param("tensorflow", "multi-worker-mirrored", 1, id="multi-worker-mirrored-worker", marks=slow),
        pytest.param("tensorflow", "parameter-server", 0, id="parameter-server-server", marks=slow),
        pytest.param("tensorflow", "parameter-server", 1, id="parameter-server-worker", marks=slow),
        pytest.param("tensorflow", "parameter-server", 3, id="parameter-server-chief", marks=slow),
    ],
)
def test_a_port_that_was_taken_after_planning_is_replaced(scene: Scene, engine: str, strategy: str, taken: int) -> None:
    """And neither try leaves a descriptor or a child behind."""
    asked: list[int] = []
    before, children = descriptors(), set(psutil.Process().children(recursive=True))
    with socket.socket() as other:
        other.bind(("127.0.0.1", free_port()))
        other.listen()

        def port(host: str) -> int:
            asked.append(other.getsockname()[1] if len(asked) == taken else free_port())
            return asked[-1]

        job = Job(engine=engine, strategy=strategy, workers=2, epochs=1)
        result = execute(job, store=Store(scene.runs), name=scene.name, launcher=LocalLauncher(port=port))
    assert result.status == "finished"
    assert descriptors() == before
    assert set(psutil.Process().children(recursive=True)) <= children
    warnings = [event["message"] for event in scene.events() if event["kind"] == "warning"]
    assert any("trying again with other ports" in message and str(asked[taken]) in message for message in warnings)


@slow
def test_ports_that_are_always_taken_end_the_run(scene: Scene) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", free_port()))
        other.listen()
        job = Job(engine="torch", strategy="ddp", workers=1, epochs=1)
        launcher = LocalLauncher(port=lambda host: other.getsockname()[1])
        with pytest.raises(JobFailed, match=rf"port {other.getsockname()[1]}"):
            execute(job, store=Store(scene.runs), name=scene.name, launcher=launcher)
    assert scene.result()["error"]["cause"] == "port"


@pytest.fixture
def small_disk(scene: Scene) -> Iterator[Path]:
    scene.runs.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=700k", "velodrome-test", scene.runs], check=True)
    yield scene.runs
    subprocess.run(["umount", scene.runs], check=True)


@needs_root
def test_a_full_disk_is_told_of_on_that_disk(velodrome, scene: Scene, small_disk: Path) -> None:
    done = velodrome(*scene.words("torch", "ddp", "--model", "dense-300-100", "--epochs", 50))
    assert done.code == 1, done.text
    sentence = next(line for line in done.err.splitlines() if line.startswith("velodrome:"))
    assert "No space left on device" in sentence
    assert "; free some space there, then" in sentence
    assert "Traceback" not in done.err
    result = scene.result()
    assert result["status"] == "failed"
    assert "No space left on device" in result["error"]["message"]
    assert "failed" in velodrome("runs", "list", "--runs", scene.runs).out


@needs_root
def test_a_disk_that_is_full_already_is_told_of_before_the_start(velodrome, scene: Scene, small_disk: Path) -> None:
    (small_disk / "ballast").write_bytes(os.urandom(600 * 1024))
    done = velodrome(*scene.words("torch", "ddp"))
    assert done.code == 1, done.text
    assert "velodrome: cannot begin run 'a'" in done.err
    assert "No space left on device" in done.err
    assert not scene.path.exists()


def test_more_processes_than_memory_holds_are_refused_with_the_numbers(velodrome, scene: Scene) -> None:
    done = velodrome(*scene.words("torch", "ddp", "--batch-scope", "per-worker", "--batch-size", 1, workers=1200))
    assert done.code == 2
    assert "--workers 1200: 1200 torch processes need about" in done.err
    assert "GiB are free here" in done.err
    assert not scene.path.exists()


def test_a_folder_that_cannot_be_written_is_a_bad_request(velodrome, scene: Scene) -> None:
    scene.runs.write_text("a file, not a folder")
    done = velodrome(*scene.words("torch", "ddp"))
    assert done.code == 2
    assert f"--runs '{scene.runs}': cannot write there" in done.err


@slow
@pytest.mark.parametrize(
    ("engine", "strategy"),
    [("tensorflow", "parameter-server"), ("tensorflow", "multi-worker-mirrored"), ("tensorflow", "allreduce"),
     ("torch", "ddp"), ("torch", "allreduce")],
)
def test_nothing_is_left_among_temporary_files(scene: Scene, tmp_path: Path, engine: str, strategy: str) -> None:
    """`test_stock_form.py` and `test_debug.py` look for them after a run of each engine in `make test`."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    process = scene.start(*scene.words(engine, strategy, "--epochs", 1), TMPDIR=str(folder))
    said, _ = process.communicate(timeout=280)
    assert process.returncode == 0, said
    assert left_in(folder) == []


@pytest.mark.parametrize(
    ("which", "harm"),
    [
        pytest.param("run", "renamed", id="renamed"),
        pytest.param("run", "removed", id="removed", marks=slow),
        pytest.param("run", "replaced", id="replaced", marks=slow),
        pytest.param("runs", "renamed", id="runs-renamed", marks=slow),
    ],
)
def test_a_folder_that_vanishes_ends_its_run_with_all_processes(scene: Scene, which: str, harm: str) -> None:
    controller = scene.start(*scene.words("torch", "ddp", *LONG))
    scene.until(training)
    place, moved = scene.path if which == "run" else scene.runs, scene.runs.with_name("moved")
    if harm == "removed":
        shutil.rmtree(place, ignore_errors=True)
    else:
        place.rename(moved)
    if harm == "replaced":
        place.mkdir()
    text, _ = controller.communicate(timeout=120)
    assert controller.returncode == 1, text
    assert text.count("velodrome: run 'a' ended because its folder") == 1, text
    assert "Traceback" not in text
    scene.until_gone(1)
    assert not list(scene.runs.parent.rglob("result.json"))
    assert not scene.path.exists() or not list(scene.path.iterdir())


def test_a_name_that_exists_is_refused(velodrome, scene: Scene) -> None:
    (scene.path).mkdir(parents=True)
    done = velodrome(*scene.words("torch", "ddp"))
    assert done.code == 2
    assert "a run is never overwritten; choose another name" in done.err


@pytest.mark.parametrize("content", [b"", b'{"status": "finished", "test": "no', b'{"status": "finished", "test": [1]}',
                                     b'{"status": "failed", "throughput": 3, "seconds": "x"}', b"\xff\xfe\x00"])
def test_what_is_broken_on_disk_does_not_break_the_list(velodrome, scene: Scene, content: bytes) -> None:
    store = Store(scene.runs)
    for name in ("broken", "whole"):
        run = store.create(name, Job())
        run.finish(typed(result(accuracy=0.5)))
        run.close()
    (scene.runs / "broken" / "result.json").write_bytes(content)
    (scene.runs / "broken" / "events.jsonl").write_bytes(b'{"time": 1, "kind": "prog')
    listed = velodrome("runs", "list", "--runs", scene.runs)
    assert listed.code == 0, listed.text
    rows = {row["run"]: row for row in velodrome("runs", "list", "--runs", scene.runs, "--json").json()}
    assert rows["whole"]["accuracy"] == 0.5
    assert rows["broken"]["accuracy"] is None
    shown = velodrome("runs", "show", "broken", "--runs", scene.runs)
    assert shown.code in (0, 1)
    assert "Traceback" not in shown.text
    assert json.loads((scene.runs / "whole" / "result.json").read_text())["status"] == "finished"
