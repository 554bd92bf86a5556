"""`velodrome clusters` and `--vary on`: what a user types, and what comes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from synthetic_races import result, typed
from velodrome.clusters import where_of
from velodrome.job.job import Job
from velodrome.job.names import named
from velodrome.job.race import combinations, parse_race, parse_vary


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def test_a_cluster_is_added_listed_and_shown(velodrome: Any, tmp_path: Path) -> None:
    added = velodrome("clusters", "add", "lab", "ssh:a,b", "--option", "silence=20", "--json")
    assert added.json()["launcher"] == "ssh"
    assert (tmp_path / "clusters.yaml").exists()
    listed = velodrome("clusters", "list", "--json").json()
    assert [one["name"] for one in listed][-1] == "lab"
    assert "lab: hosts that your OpenSSH client reaches" in velodrome("clusters", "list").out
    assert velodrome("clusters", "show", "lab", "--json").json()["options"]["silence"] == 20
    assert "hosts: ['a', 'b']" in velodrome("clusters", "show", "lab").out


@pytest.mark.parametrize(("words", "sentence"), [
    (("show", "moon"), "--on 'moon': no such launcher; choose one of local"),
    (("add", "lab", "moon:a"), "'moon:a': launcher 'moon' is unknown"),
    (("add", "lab", "ssh:a", "--option", "silence"), "--option 'silence': write it as FIELD=VALUE"),
    (("add", "lab", "ssh:a", "--option", "silence=[1"), "--option 'silence=[1': the value cannot be read"),
    (("add", "lab", "ssh:a", "--option", "colour=red"), "no field 'colour'"),
    (("prepare", "local"), "cluster 'local' needs no environment"),
])
def test_what_cannot_be_is_refused(velodrome: Any, words: tuple[str, ...], sentence: str) -> None:
    done = velodrome("clusters", *words)
    assert done.code == 2
    assert sentence in done.text


def test_pins_need_several_hosts(velodrome: Any) -> None:
    done = velodrome("train", "--place", "worker=a")
    assert done.code == 2
    assert "--place: --on local has one host" in done.text


def test_a_race_can_vary_where_it_runs() -> None:
    vary = parse_vary(['on=local,lab,"emulated:nodes=2,bandwidth=1gbit"'])
    race = parse_race({"job": {"engine": "torch"}, "vary": vary})
    entries = named(combinations(race).entries, race.model_copy(update={"named_by": ["on"]}))
    assert [entry.job.on for entry in entries] == ["local", "lab", "emulated:nodes=2,bandwidth=1gbit"]
    assert len({entry.name for entry in entries}) == 3


def test_the_command_wins_over_the_job() -> None:
    job = Job.model_validate({"on": "lab"})
    assert where_of(job, None) == "lab"
    assert where_of(job, "local") == "local"
    assert where_of(job, "debug") == "debug"
    assert where_of(Job.model_validate({}), None) == "local"


def test_a_place_that_is_named_wins_over_that_of_the_job(velodrome: Any, tmp_path: Path, runs: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("engine: torch\nstrategy: single\nworkers: 1\nfaults: ['partition node1 1s..2s']\non: emulated\n")
    done = velodrome("train", file, "--on", "local", "--runs", runs)
    assert (done.code, "--on local cannot partition" in done.text) == (2, True), done.text
    done = velodrome("doctor", file, "--on", "debug")
    assert done.text.splitlines()[-1].startswith("debug: ")
    file.write_text("engine: torch\nstrategy: single\non: debug\n")
    assert velodrome("doctor", file).text.splitlines()[-1].startswith("debug: ")
    done = velodrome("train", file, "--place", "worker=a", "--runs", runs)
    assert "--place: --on debug has one host" in done.text


def test_a_run_can_be_resumed_elsewhere(
    velodrome: Any, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runs / "lost"
    run.mkdir(parents=True)
    (run / "job.yaml").write_text("engine: torch\nstrategy: single\n'on': gone\n")
    asked: list[str] = []

    def resume(name: str, **words: Any) -> Any:
        asked.append(words["launcher"].name)
        return typed(result())

    monkeypatch.setattr("velodrome.api.train.execute.resume", resume)
    monkeypatch.setattr("velodrome.cli.train.print_summary", lambda result: None)
    done = velodrome("resume", "lost", "--runs", runs)
    assert (done.code, "--on 'gone': no such launcher" in done.text) == (2, True)
    done = velodrome("resume", "lost", "--runs", runs, "--on", "local")
    assert (done.code, asked) == (0, ["local"]), done.text


def test_a_race_checks_its_faults_where_its_jobs_run(velodrome: Any, tmp_path: Path, runs: Path) -> None:
    file = tmp_path / "race.yaml"
    file.write_text("job: {engine: torch, strategy: single, on: debug, faults: ['kill worker0 at 1s']}\n"
                    "vary: {batch_size: [32, 64]}\n")
    done = velodrome("race", file, "--dry-run", "--runs", runs)
    assert (done.code, "--on debug cannot kill" in done.text) == (2, True), done.text
    done = velodrome("race", file, "--dry-run", "--runs", runs, "--on", "local")
    assert done.code == 0, done.text
    done = velodrome("race", file, "--dry-run", "--runs", runs, "--vary", "on=local,debug", "--on", "local")
    assert (done.code, "--on 'local': the race varies where its jobs run" in done.text) == (2, True)
