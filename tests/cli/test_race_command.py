"""`velodrome race` as a user types it: a small race really runs to its end, a job of it fails, the rest goes on."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import racing
from velodrome.api.race import title_of
from velodrome.clusters import preflight
from velodrome.clusters.yaml_files import read_yaml
from velodrome.job.names import expand
from velodrome.job.race import parse_race
from velodrome.races.check import check_race
from velodrome.races.folder import RaceFolder

OWN_MODEL = '''
from math import prod
from pathlib import Path

from torch import nn


def build(input_shape, classes, broken=False):
    if broken and not Path("mended").exists():
        raise ValueError("my own mistake")
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), classes))
'''
RACE = """
job: {dataset: digits, model: "own_net:build", engine: torch, strategy: single, threads: 1, target: "accuracy>=0.99"}
vary:
  entry:
    - {epochs: 1}
    - {epochs: 2}
    - {epochs: 1, model_args: {broken: true}}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own_net.py").write_text(OWN_MODEL)
    (tmp_path / "race.yaml").write_text(RACE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def started(err: str) -> list[str]:
    return re.findall(r"^\d+/\d+ (\S+): started", err, flags=re.MULTILINE)


@pytest.mark.integration
@pytest.mark.timeout(600)
def test_a_race_goes_on_after_a_failing_job_and_again_runs_only_what_is_missing(
    velodrome, here: Path, runs: Path, no_strays, idle
) -> None:
    asked = RaceFolder(runs, "small").stamped(parse_race(read_yaml(here / "race.yaml")))
    order = [entry.name for entry in check_race(asked, racing.here()).entries]
    assert sorted(order) == ["torch-single-1w-128b-1e-1", "torch-single-1w-128b-1e-broken-true-1",
                             "torch-single-1w-128b-2e-1"]
    broken = "torch-single-1w-128b-1e-broken-true-1"
    command = ("race", "race.yaml", "--name", "small", "--runs", runs)
    done = velodrome(*command, "--json")
    assert done.code == 1, done.text
    assert started(done.err) == order
    told = done.json()
    assert told["failed"] == [broken]
    assert "my own mistake" in json.loads((runs / "small" / broken / "result.json").read_text())["error"]["message"]

    # Two numbers of epochs are two configurations, not two runs of one.
    assert sorted(row["name"] for row in told["rows"]) == [
        "torch/single with 1 worker, epochs 1",
        "torch/single with 1 worker, epochs 2",
    ]
    assert [row["runs"] for row in told["rows"]] == [1, 1]
    assert all(row["thesis_batches_per_second"] > 0 for row in told["rows"])
    asked = velodrome("recommend", "small", "--runs", runs, "--json").json()
    assert asked["objective"] == "time-to-accuracy"
    assert told["verdict"] == f"Verdict: {asked['verdict']}"
    velodrome("report", "small", "--runs", runs)
    assert f'<td class="">{broken}</td>' in (runs / "small" / "report.html").read_text()

    kept = {name: (runs / "small" / name / "result.json").stat().st_mtime_ns for name in order if name != broken}
    again = velodrome(*command)
    assert again.code == 1
    assert started(again.err) == [broken]
    assert f"Did not finish: {broken}: " in again.out
    assert (runs / "small" / f"{broken}.attempt-1").is_dir()

    (here / "mended").touch()
    last = velodrome(*command, "--json")
    assert last.code == 0, last.text
    assert started(last.err) == [broken]
    assert len(last.json()["rows"]) == 3
    assert started(velodrome(*command).err) == []
    assert kept == {name: (runs / "small" / name / "result.json").stat().st_mtime_ns for name in kept}


@pytest.mark.unit
def test_the_same_command_in_a_second_terminal_is_refused(velodrome, here: Path, runs: Path) -> None:
    folder = RaceFolder(runs, "small")
    folder.begin(parse_race(read_yaml(here / "race.yaml")))
    with folder.held():
        done = velodrome("race", "race.yaml", "--name", "small", "--runs", runs)
    assert done.code == 2
    assert "this race is running" in done.err
    assert [path.name for path in folder.path.iterdir()] == ["race.yaml"]


@pytest.mark.unit
def test_the_title_of_the_picture_names_every_number_of_epochs(here: Path) -> None:
    title = title_of([entry.job for entry in expand(parse_race(read_yaml(here / "race.yaml")))])
    assert re.search(r"digits, (1, 2|2, 1) epochs, batch 128$", title)


@pytest.mark.parametrize("text", ["vary:\n  - workers: [1, 2]\n", "job: digits\n"])
def test_a_race_file_of_another_shape_is_refused_in_a_sentence(velodrome, tmp_path: Path, text: str) -> None:
    file = tmp_path / "race.yaml"
    file.write_text(text)
    done = velodrome("race", file, "--runs", tmp_path / "runs")
    assert done.code == 2
    assert "give fields by name" in done.err
    assert "Traceback" not in done.text


@pytest.mark.unit
def test_a_file_for_another_command_names_that_command(velodrome, tmp_path: Path, runs: Path) -> None:
    job, race = tmp_path / "my job.yaml", tmp_path / "race.yaml"
    job.write_text("engine: torch\nstrategy: single\nepochs: 2\n")
    race.write_text("job: {strategy: single}\nvary: {epochs: [1, 2]}\n")
    done = velodrome("race", job, "--runs", runs)
    assert (done.code, f"{str(job)!r} is a job: run it with `velodrome train '{job}'`" in done.err) == (2, True)
    for command in ("train", "plan"):
        done = velodrome(command, race, "--runs", runs)
        assert (done.code, f"{str(race)!r} is a race: run it with `velodrome race {race}`" in done.err) == (2, True)


@pytest.mark.unit
def test_strategies_bring_their_engine_when_nobody_names_one(velodrome, runs: Path, monkeypatch) -> None:
    monkeypatch.setattr(preflight, "available_memory", lambda: 2**50)
    words = ["--dataset", "fashion-mnist", "--model", "lenet5", "--vary",
             "strategy=multi-worker-mirrored,parameter-server", "--vary", "workers=1,2,4", "--vary",
             "batch_size=128,256", "--repeat", 3, "--name", "asked", "--runs", runs]
    done = velodrome("race", *words, "--dry-run", "--json")
    assert done.code == 0, done.err
    jobs = done.json()["jobs"]
    assert len([job for job in jobs if job["strategy"] != "single"]) == 2 * 3 * 2 * 3
    assert len([job for job in jobs if job["strategy"] == "single"]) == 2 * 3  # the baselines, once for each batch size
    assert {job["engine"] for job in jobs} == {"tensorflow"}
    refused = velodrome("race", *words, "--engine", "torch", "--dry-run")
    assert refused.code == 2
    assert "engine torch has no strategy" in refused.err


@pytest.mark.unit
def test_a_race_that_nobody_named_has_the_same_name_each_time(velodrome, here: Path, runs: Path) -> None:
    def name(*words: object) -> str:
        done = velodrome("race", *words, "--runs", runs, "--dry-run", "--json")
        assert done.code == 0, done.err
        return str(done.json()["race"])

    assert name("race.yaml") == "race"
    flags = ("--dataset", "digits", "--vary", "batch_size=32,64")
    assert re.fullmatch("race-[0-9a-f]{8}", name(*flags))
    assert name(*flags) == name(*flags) != name(*flags, "--epochs", 2)


@pytest.mark.unit
def test_a_file_that_was_changed_is_another_race_and_the_way_out_is_told(velodrome, here: Path, runs: Path) -> None:
    RaceFolder(runs, "race").begin(parse_race(read_yaml(here / "race.yaml")))
    done = velodrome("race", "race.yaml", "--epochs", 7, "--runs", runs)
    assert done.code == 2
    assert "holds another race; choose another name" in done.err


@pytest.mark.unit
def test_a_race_file_that_varies_over_nothing_is_refused(velodrome, tmp_path: Path, runs: Path) -> None:
    (tmp_path / "none.yaml").write_text("vary: {workers: []}")
    done = velodrome("race", tmp_path / "none.yaml", "--runs", runs)
    assert (done.code, "'workers' has no values" in done.err) == (2, True)
    assert not runs.exists()


@pytest.mark.unit
def test_an_argument_of_a_model_that_yaml_cannot_say_is_refused(velodrome, runs: Path) -> None:
    done = velodrome("race", "--model", "own:net", "--model-arg", "born=2022-13-45", "--runs", runs)
    assert (done.code, "--model-arg 'born=2022-13-45'" in done.err) == (2, True)


@pytest.mark.unit
def test_the_place_of_jobs_is_a_field_of_files(velodrome, tmp_path: Path, runs: Path) -> None:
    job, race = tmp_path / "job.yaml", tmp_path / "race.yaml"
    job.write_text("engine: torch\nstrategy: single\non: moon\n")
    done = velodrome("train", job, "--runs", runs)
    assert (done.code, "--on 'moon': no such launcher" in done.err) == (2, True)
    race.write_text("job: {engine: torch, strategy: single, threads: 1}\nvary: {on: [local, debug]}\n")
    done = velodrome("race", race, "--dry-run", "--json", "--runs", runs)
    assert done.code == 0, done.err
    assert sorted(entry["run"] for entry in done.json()["jobs"]) == [
        "torch-single-1w-128b-on-debug-1", "torch-single-1w-128b-on-local-1"]
    # As earlier versions stored a race that was given with --vary on=local,debug.
    folder = RaceFolder(runs, "old")
    folder.path.mkdir(parents=True)
    (folder.path / "race.yaml").write_text(
        "job: {engine: torch, strategy: single, threads: 1, checkpoints: false}\nvary:\n  'on': [local, debug]\n"
        "named_by: ['on']\n")
    written = folder.written()
    assert written is not None
    assert (written.vary, written.job["checkpoints"]) == ({"on": ["local", "debug"]}, False)
    assert folder.refuse_other(written)


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_a_race_whose_model_cannot_be_built_is_refused_where_it_is_measured_and_not_job_by_job(
    velodrome, here: Path, runs: Path, no_strays
) -> None:
    (here / "kerasish.py").write_text("from torch import nn\n\ndef make_model(input_shape, num_classes=3):\n"
                                      "    return nn.Flatten()\n")
    job = ("race", "--dataset", "digits", "--model", "kerasish:make_model", "--runs", runs, "--name", "wrong")
    for way in ((), ("--dry-run",)):
        done = velodrome(*job, "--measure", *way)
        assert done.code == 2, done.text
        assert "make_model() got an unexpected keyword argument 'classes'" in done.err
        assert "started" not in done.err
    named = velodrome(*job[:4], "kerasish", *job[5:])
    assert (named.code, named.err.strip()) == (2, (
        "velodrome: no model 'kerasish', but a file kerasish.py: name the function in it that builds the model, as "
        "--model kerasish:build"))
