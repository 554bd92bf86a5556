"""What is on disk of a run survives whatever happens to its writer."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from synthetic_races import result, typed
from velodrome import files
from velodrome.errors import BadRequest, VelodromeError
from velodrome.events.models import ProgressEvent
from velodrome.job.job import Job
from velodrome.job.names import check_name, default_name
from velodrome.run.store import OpenRun, RunFolder, Store

pytestmark = pytest.mark.unit

JOB = Job(strategy="ddp", workers=2)


def event(**fields: object) -> dict[str, object]:
    return {"time": 1.0, "role": "worker", "rank": 0, "kind": "progress", "epoch": 1, "steps": 9, "examples": 1,
            "seconds": 0.5, **fields}


def test_a_run_is_running_while_open_interrupted_when_left_and_what_its_result_says_afterwards(runs: Path) -> None:
    run = Store(runs).create("a", JOB)
    reader = RunFolder(run.path)
    assert reader.status() == "running"
    assert reader.job() == JOB
    run.close()
    assert reader.status() == "interrupted"
    again = Store(runs).reopen("a")
    assert reader.status() == "running"
    again.finish(typed(result()))
    again.close()
    assert reader.status() == "finished"
    assert sorted(path.name for path in run.path.iterdir()) == [
        "checkpoints", "events.jsonl", "job.yaml", "logs", "result.json", "tensorboard"
    ]


def test_a_name_that_is_taken_is_refused_and_one_that_nobody_chose_gets_a_number(runs: Path) -> None:
    store = Store(runs)
    store.create("a", JOB).close()
    with pytest.raises(BadRequest, match="never overwritten"):
        store.create("a", JOB)
    assert [store.create_new(name, JOB).name for name in ("a", "a", "b")] == ["a-2", "a-3", "b"]


def test_a_finished_and_a_running_run_cannot_be_reopened(runs: Path) -> None:
    store = Store(runs)
    run = store.create("a", JOB)
    with pytest.raises(BadRequest, match="running"):
        store.reopen("a")
    with pytest.raises(BadRequest, match="running already"):
        OpenRun(run.path).begin()
    run.finish(typed(result()))
    run.close()
    with pytest.raises(BadRequest, match="nothing to resume"):
        store.reopen("a")


@pytest.mark.parametrize(
    "content", ["", '{"status": "fi', "[]", '"finished"', '{"run": "a"}', '{"status": 5}', '{"status": "odd"}', "\xff"]
)
def test_a_result_that_is_not_whole_is_unreadable_and_kept(runs: Path, content: str) -> None:
    run = Store(runs).create("a", JOB)
    run.close()
    (run.path / "result.json").write_text(content)
    assert run.result() is None
    assert run.status() == "unreadable"
    with pytest.raises(BadRequest, match=r"run 'a' cannot be resumed: its result\.json .*; remove that file"):
        Store(runs).reopen("a")
    assert (run.path / "result.json").read_text() == content


def test_events_that_were_cut_off_are_passed_over_and_do_not_spoil_what_is_appended(runs: Path) -> None:
    run = Store(runs).create("a", JOB)
    run.add_event(event(step=1))
    run.close()
    with (run.path / "events.jsonl").open("ab") as stream:
        stream.write(b'{"time": 2, "ki')
    again = Store(runs).reopen("a")
    again.add_event(event(step=3))
    with (run.path / "events.jsonl").open("ab") as stream:
        stream.write(b'[1]\n{"no": "kind"}\n\xff\xfe\n')
    assert [found.step for found in again.events() if isinstance(found, ProgressEvent)] == [1, 3]
    again.close()


def test_a_run_without_events_has_none(runs: Path) -> None:
    assert list(RunFolder(runs / "nothing").events()) == []


def test_space_is_kept_from_the_start_and_given_back_at_the_end(runs: Path) -> None:
    run = Store(runs).create("a", JOB)
    reserve = run.path / ".reserve"
    assert reserve.stat().st_blocks * 512 >= 256 * 1024
    run.finish(typed(result(status="failed")))
    assert not reserve.exists()
    run.close()


def test_a_folder_that_cannot_be_written_is_a_bad_request(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadRequest, match="cannot write there"):
        Store(tmp_path / "file" / "runs").create("a", JOB)


def test_a_run_that_cannot_begin_leaves_no_folder(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(run: OpenRun) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(OpenRun, "begin", full)
    with pytest.raises(VelodromeError, match="No space left on device; free some space there, or choose another"):
        Store(runs).create("a", JOB)
    assert list(runs.iterdir()) == []


def test_a_file_is_there_in_full_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "file"
    files.write_text(path, "one")
    assert path.read_text() == "one"
    (tmp_path / "file.half").mkdir()
    with pytest.raises(OSError):
        files.write_text(path, "two")
    assert path.read_text() == "one"


def test_runs_are_found_by_name_and_by_path_in_the_order_they_were_made(runs: Path) -> None:
    store = Store(runs)
    assert store.runs() == []
    for number, name in enumerate(("b", "a")):
        store.create(name, JOB).close()
        os.utime(runs / name, (number, number))
    (runs / "no-run").mkdir()
    assert [run.name for run in store.runs()] == ["b", "a"]
    assert store.get("a").path == store.get(str(runs / "a")).path == runs / "a"
    with pytest.raises(BadRequest, match="no run 'c'"):
        store.get("c")


def test_an_unreadable_job_is_said_so(runs: Path) -> None:
    Store(runs).create("a", JOB).close()
    (runs / "a" / "job.yaml").write_text("workers: many")
    with pytest.raises(VelodromeError, match=r"no readable job\.yaml"):
        Store(runs).get("a").job()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a", "-a", ".a", "a b", "ä", "a" * 121, "a\n"])
def test_a_name_is_one_plain_folder(name: str) -> None:
    with pytest.raises(BadRequest, match="--name"):
        check_name(name)


def test_a_default_name_says_what_runs_and_is_a_name() -> None:
    name = default_name(JOB.model_copy(update={"model": "my.nets:build", "batch_size": 32}))
    assert check_name(name).startswith("torch-ddp-2w-digits-my.nets-build-32b-")


def test_a_result_is_json_that_any_reader_understands(runs: Path) -> None:
    run = Store(runs).create("a", JOB)
    run.finish(typed(result()))
    assert json.loads((run.path / "result.json").read_text()) == result()
    run.close()
