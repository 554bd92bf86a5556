"""A race folder holds one race: its own, or the same one grown by jobs that can run now."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from racing import Noted, here, run_race
from synthetic_races import result
from velodrome.clusters import preflight
from velodrome.errors import BadRequest, FolderGone
from velodrome.files import PARTIAL
from velodrome.job.names import expand
from velodrome.job.race import Entry, Race, parse_race
from velodrome.job.result import Result
from velodrome.races.check import check_race
from velodrome.races.costs import Costs
from velodrome.races.folder import EXPECTED, RaceFolder
from velodrome.races.plan import plan_entries
from velodrome.races.request import default_name
from velodrome.races.runs import RaceRuns
from velodrome.reporting.load import load_race
from velodrome.run.attempt import JobFailed
from velodrome.run.check import check_run


def race(*entries: dict[str, Any], **more: Any) -> Race:
    return parse_race({"job": {"dataset": "digits", **more}, "vary": {"entry": list(entries)}})


ONE, TWO = {"strategy": "single"}, {"strategy": "ddp", "workers": 2}


def test_the_same_race_goes_on_and_another_is_refused(runs: Path) -> None:
    folder = RaceFolder(runs, "first")
    folder.begin(race(ONE))
    folder.begin(race(ONE))
    for other in (race(ONE, TWO), race(ONE, epochs=9)):
        with pytest.raises(BadRequest, match="holds another race"):
            folder.begin(other)


def test_a_race_may_grow_but_not_change(runs: Path) -> None:
    folder = RaceFolder(runs, "first")
    folder.begin(race(ONE))
    folder.begin(race(ONE, TWO), grown=True)
    folder.begin(race(ONE, TWO))
    for other in (race(ONE), race(ONE, TWO, epochs=9)):
        with pytest.raises(BadRequest, match="holds another race"):
            folder.begin(other, grown=True)


def test_a_race_of_several_data_sets_and_models_names_them() -> None:
    entries = expand(race(ONE, {**ONE, "dataset": "mnist"}, {**ONE, "dataset": "path:/my/photos", "model": "linear"}))
    assert [entry.name for entry in entries] == [
        "digits-dense-128-torch-single-1w-128b-1", "mnist-dense-128-torch-single-1w-128b-1",
        "path-my-photos-linear-torch-single-1w-128b-1",
    ]


def test_the_order_is_random_and_follows_from_the_seed() -> None:
    def order(seed: int) -> list[str]:
        asked = race(ONE, TWO, seed=seed).model_copy(update={"repeat": 6})
        return [entry.name for entry in check_race(asked, here()).entries]

    assert order(1) == order(1)
    assert order(1) != sorted(order(1))
    assert sorted(order(1)) == sorted(order(2))
    assert order(1) != order(2)


def test_every_repetition_runs_each_configuration_once_in_a_new_order() -> None:
    """Five jobs of one configuration after five of another would take a machine that slows down for a difference."""
    asked = race(ONE, TWO, {**TWO, "workers": 3}).model_copy(update={"repeat": 8})
    entries = check_race(asked, here()).entries
    assert [entry.repetition for entry in entries] == [number for number in range(1, 9) for _ in range(3)]
    blocks = [tuple(entry.job.workers for entry in entries[at : at + 3]) for at in range(0, 24, 3)]
    assert {tuple(sorted(block)) for block in blocks} == {(1, 2, 3)}
    assert len(set(blocks)) > 1


def test_more_repetitions_are_added_to_a_race_and_fewer_discard_none(runs: Path) -> None:
    three = race(ONE, TWO).model_copy(update={"repeat": 3})
    five = three.model_copy(update={"repeat": 5})
    folder = RaceFolder(runs, "first")
    folder.begin(three)
    folder.begin(five)
    assert folder.written() == five
    folder.begin(three)
    assert folder.written() == five
    first = [entry.name for entry in check_race(three, here()).entries]
    assert [entry.name for entry in check_race(five, here()).entries][:6] == first
    assert default_name(None, three) == default_name(None, five)


def begun(runs: Path, *entries: dict[str, Any], **more: Any) -> tuple[RaceFolder, list[Entry]]:
    folder, asked = RaceFolder(runs, "first"), race(*entries, **more)
    folder.begin(asked)
    return folder, [*check_race(asked, here()).entries]


def run_all(folder: RaceFolder, entries: list[Entry]) -> dict[str, str]:
    """Why each job failed, by its name."""
    told: dict[str, str] = {}

    def ended(entry: Entry, result: Result, error: JobFailed | None) -> None:
        assert error is not None
        assert error.result is result
        told[entry.name] = str(error)

    results = run_race(folder, entries, Noted(ended))
    assert [result.status for result in results] == ["failed"] * len(entries)
    assert [result.run for result in results] == [entry.name for entry in entries]
    return told


def test_jobs_that_cannot_begin_any_more_are_recorded_and_the_race_goes_on(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, entries = begun(runs, ONE, TWO)
    monkeypatch.setattr(preflight, "available_memory", lambda: 0)
    told = run_all(folder, entries)
    assert len(told) == 2
    record = load_race(runs, "first")
    assert {failure.run: failure.message for failure in record.failures} == told
    assert all("MiB of memory" in message for message in told.values())
    for entry in entries:
        assert check_run(folder.path / entry.name).problems == []
    run_all(folder, entries)
    assert load_race(runs, "first").aside == 2


@pytest.mark.parametrize("harm", [Path.unlink, lambda path: path.write_bytes(b"no arrays at all")])
def test_data_that_is_gone_since_the_race_was_checked_ends_no_more_than_its_jobs(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: Any
) -> None:
    monkeypatch.setenv("VELODROME_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "set.npz"
    images, labels = np.zeros((60, 4, 4), np.uint8), np.arange(60) % 3
    np.savez(file, x_train=images, y_train=labels, x_test=images, y_test=labels)
    folder, entries = begun(runs, ONE, {**ONE, "epochs": 2}, dataset=f"path:{file}", batch_size=8)
    harm(file)
    told = run_all(folder, entries)
    assert all("set.npz" in message for message in told.values())
    assert [failure.status for failure in load_race(runs, "first").failures] == ["failed", "failed"]


def test_a_race_that_is_being_run_is_refused_and_nothing_of_it_is_moved(runs: Path) -> None:
    folder, entries = begun(runs, ONE)
    (folder.path / entries[0].name).mkdir()
    with folder.held():
        with pytest.raises(BadRequest, match="'first': this race is running"):
            run_race(RaceFolder(runs, "first"), entries)
        with pytest.raises(BadRequest, match="running"):
            folder.refuse_running()
        assert [path.name for path in folder.path.iterdir() if path.is_dir()] == [entries[0].name]
    folder.refuse_running()
    assert not (folder.path / "controller.lock").exists()


@pytest.mark.parametrize("which", ["race", "runs"])
def test_a_race_whose_folder_is_renamed_between_jobs_stops_and_makes_no_other(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    folder, entries = begun(runs, ONE, TWO)
    monkeypatch.setattr(preflight, "available_memory", lambda: 0)
    told: list[str] = []

    def ended(entry: Entry, result: Result, error: JobFailed | None) -> None:
        told.append(entry.name)
        place = folder.path if which == "race" else runs
        place.rename(tmp_path / "elsewhere")

    with pytest.raises(FolderGone, match="race 'first' ended because its folder") as end:
        run_race(folder, entries, Noted(ended))
    assert end.value.exit_code == 1
    assert len(told) == 1
    assert not folder.path.exists()
    assert not list((tmp_path / "elsewhere").rglob("controller.lock"))


def test_a_race_whose_file_is_removed_stops_after_the_job(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, entries = begun(runs, ONE, TWO)
    monkeypatch.setattr(preflight, "available_memory", lambda: 0)
    ended: list[str] = []

    def one_ended(entry: Entry, result: dict[str, Any], error: JobFailed | None) -> None:
        ended.append(entry.name)
        (folder.path / "race.yaml").unlink()

    with pytest.raises(FolderGone, match=r"race 'first' ended because its file '.*race.yaml' was removed"):
        run_race(folder, entries, Noted(one_ended))
    assert len(ended) == 1


def test_a_job_whose_folder_vanishes_ends_its_race(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, entries = begun(runs, ONE, TWO)
    begun_jobs: list[str] = []

    def vanish(job: Any, *, name: str, **more: Any) -> None:
        begun_jobs.append(name)
        raise FolderGone(f"run {name!r}", folder.path / name)

    monkeypatch.setattr("velodrome.races.runs.execute", vanish)
    with pytest.raises(FolderGone):
        run_race(folder, entries)
    assert len(begun_jobs) == 1
    assert sorted(path.name for path in folder.path.iterdir()) == ["calibration.jsonl", "race.yaml"]


def test_a_run_of_it_that_somebody_resumes_is_not_put_aside(runs: Path) -> None:
    folder, entries = begun(runs, ONE)
    run = folder.store.create(entries[0].name, entries[0].job)
    with pytest.raises(BadRequest, match=f"run '{entries[0].name}' is running"):
        run_race(folder, entries)
    run.close()
    assert run.path.is_dir()


@pytest.mark.integration
def test_whoever_runs_a_race_and_is_killed_holds_it_no_longer(runs: Path) -> None:
    folder, _ = begun(runs, ONE)
    code = (
        "import sys, time; from pathlib import Path; from velodrome.races.folder import RaceFolder\n"
        f"with RaceFolder(Path({str(runs)!r}), 'first').held(): print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    with pytest.raises(BadRequest):
        folder.refuse_running()
    process.kill()
    process.communicate()
    assert (folder.path / "controller.lock").exists()
    with folder.held():
        pass


@pytest.mark.parametrize("content", [{"status": "finished"}, {**result(), "throughput": None}])
def test_a_run_that_says_finished_without_its_numbers_is_run_again(runs: Path, content: dict[str, Any]) -> None:
    folder, entries = begun(runs, ONE)
    run = folder.store.create(entries[0].name, entries[0].job)
    (run.path / "result.json").write_text(json.dumps(content))
    run.close()
    assert folder.finished() == {}
    assert not plan_entries(folder, race(ONE), entries, here(), Costs()).stored
    (run.path / "result.json").write_text(json.dumps(result()))
    assert list(folder.finished()) == [entries[0].name]


def test_what_is_finished_needs_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [entry.name for entry in check_race(race(ONE), here()).entries]
    monkeypatch.setattr(preflight, "available_memory", lambda: 0)
    assert [entry.name for entry in check_race(race(ONE), here(), finished=names).entries] == names
    with pytest.raises(BadRequest, match="MiB of memory, but only 0 bytes are free"):
        check_race(race(ONE), here()).refuse_unavailable()


@pytest.mark.integration
def test_data_that_change_between_the_jobs_of_a_race_are_noticed_at_once_and_when_it_is_resumed(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VELODROME_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "set.npz"

    def write(count: int) -> None:
        images, labels = np.random.default_rng(1).integers(0, 255, (count, 4, 4), np.uint8), np.arange(count) % 3
        np.savez(file, x_train=images, y_train=labels, x_test=images[:60], y_test=labels[:60])

    write(120)
    folder, entries = begun(runs, ONE, {**ONE, "batch_size": 16}, dataset=f"path:{file}", batch_size=8, epochs=1)
    noted = Noted()
    with folder.held():
        first = RaceRuns(folder, noted, here())
        first.run_block(entries[:1])
        data = first.results[entries[0].name].data
        assert data is not None
        assert data.train == 108
        assert not any("differ" in note for note in noted.notes)
    write(150)  # and the race is resumed another day
    with folder.held():
        second = RaceRuns(folder, noted, here())
        second.run_block(entries)
    told = [note for note in noted.notes if "differ" in note]  # a busy machine has more to say
    assert len(told) == 1
    assert "differ from those of earlier runs of this race: training examples 120 → 150; " in told[0]
    record = load_race(runs, "first")
    assert len({result.data_version for result in record.results}) == 2


@pytest.mark.parametrize("name", ["race.png", "calibration.jsonl", "controller.lock", "new.txt"])
def test_a_link_in_the_place_of_a_file_that_is_written_is_refused(tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    folder = RaceFolder(tmp_path, "race")
    folder.path.mkdir()
    (folder.path / name).symlink_to(victim)
    with pytest.raises(BadRequest, match=f"{name}: it is a link, which is not followed"), folder.held():
        pass
    assert victim.read_text() == "mine"


@pytest.mark.parametrize("name", ["race.png", "calibration.jsonl", "controller.lock", "new.txt"])
def test_a_pipe_in_the_place_of_a_file_that_is_written_is_refused(tmp_path: Path, name: str) -> None:
    folder = RaceFolder(tmp_path, "race")
    folder.path.mkdir()
    os.mkfifo(folder.path / name)
    with pytest.raises(BadRequest, match=f"{name}: it is a named pipe, not a regular file"), folder.held():
        pass


def test_nobody_waits_for_a_pipe_in_the_place_of_a_half_written_race_yaml(tmp_path: Path) -> None:
    folder = RaceFolder(tmp_path, "race")
    folder.path.mkdir()
    os.mkfifo(folder.path / f"race.yaml{PARTIAL}")
    folder.begin(race(ONE))
    assert folder.written() is not None


@pytest.mark.parametrize("text", ["9" * 400, "1e400", "-1", "NaN", '"5"', "null", "[]"])
def test_an_expected_time_that_is_none_is_left_out(tmp_path: Path, text: str) -> None:
    folder = RaceFolder(tmp_path, "race")
    folder.path.mkdir()
    (folder.path / EXPECTED).write_text(f'{{"first": {text}, "second": 5}}')
    assert folder.expected() == {"second": 5.0}


def test_a_link_in_the_place_of_a_half_written_race_yaml_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    folder = RaceFolder(tmp_path, "race")
    folder.path.mkdir()
    (folder.path / f"race.yaml{PARTIAL}").symlink_to(victim)
    folder.begin(race(ONE))
    assert victim.read_text() == "mine"
    assert folder.written() is not None
