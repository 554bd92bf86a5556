"""Which code of a file may run, decided without importing any of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import typer
import yaml

from velodrome.cli.options import asking
from velodrome.errors import BadRequest
from velodrome.job.job import Job
from velodrome.job.resolve import resolve
from velodrome.models.own import builder_of
from velodrome.run import trust
from velodrome.run.trust import UntrustedCode, admit_file, admit_stored, code_of

pytestmark = pytest.mark.unit
OWN = Job(model="trust_nets:build", model_args={"width": 3}, optimizer="trust_nets:adam")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a module that fails when it is imported."""
    place = tmp_path / "project"
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (place / "trust_nets.py").write_text("raise AssertionError('imported')\n")
    return place


def fields(job: Job, **options: bool) -> list[str]:
    return [code.field for code in code_of(job, **options)]


def test_a_job_of_the_zoo_names_no_code():
    for dataset in ("digits", "shards:hdfs://host/mnist", "path:photos", "text:novel"):
        assert code_of(Job(dataset=dataset, model="lenet5")) == []


def test_every_field_that_names_code_is_found(here):
    job = Job(model="a:b", task="a:T", optimizer="a.c:d", transform="a:t", dataset="a:data")
    assert fields(job) == ["model", "task", "optimizer", "transform", "dataset"]
    (script,) = code_of(resolve(Job(script="trust_nets.py", script_args="--x 1")))
    assert (script.field, script.file) == ("script", str(here / "trust_nets.py"))


@pytest.mark.parametrize(("where", "named"), [
    ("local", 0), ("debug", 0), ("emulated:nodes=2", 0), ("slurm", 0), ("ray", 0),
    ("ssh:a,b", 1), ("slurm:python=/tmp/x", 1), ("ray:evil:6379", 1), ("mine", 0), ("lab", 1), ("unknown", 0),
])
def test_a_file_does_not_choose_other_machines(here, tmp_path, where, named):
    """The clusters of a folder may be somebody else's, those of the user's configuration are not."""
    (tmp_path / "config" / "velodrome").mkdir(parents=True)
    (tmp_path / "config" / "velodrome" / "clusters.yaml").write_text("mine: {launcher: ssh, hosts: [a]}\n")
    (here / "clusters.yaml").write_text("lab: {launcher: ssh, hosts: [a], ssh_config: evil}\n")
    job = Job(on=where)
    assert fields(job) == ["on"] * named
    assert fields(job, launched=False) == []


def test_what_a_person_starts_is_trusted_until_it_changes(here, tmp_path):
    run = tmp_path / "runs" / "a"
    with pytest.raises(UntrustedCode, match="--trust-code trust_nets:build --trust-code trust_nets:adam"):
        admit_stored(OWN, "run 'a'", run)
    trust.record([OWN])
    assert not list(here.rglob("*.json"))
    assert oct((tmp_path / "state/velodrome/trusted-code").stat().st_mode & 0o777) == "0o700"
    admit_stored(OWN, "run 'a'", run)
    for other in (OWN.model_copy(update={"model_args": {"width": 4}}), Job(model="trust_nets:other")):
        with pytest.raises(UntrustedCode):
            admit_stored(other, "run 'a'", run)
    (here / "trust_nets.py").write_text("pass\n")
    with pytest.raises(UntrustedCode):
        admit_stored(OWN, "run 'a'", run)
    admit_stored(OWN, "run 'a'", run, ["trust_nets:build", "trust_nets:adam"])
    admit_stored(OWN, "run 'a'", run)


def test_naming_one_of_two_is_not_enough(tmp_path):
    with pytest.raises(UntrustedCode) as refused:
        admit_stored(OWN, "run 'a'", tmp_path, ["trust_nets:build"])
    assert [code.name for code in refused.value.codes] == ["trust_nets:adam"]


def test_a_state_folder_that_cannot_be_written_fails_no_run(tmp_path):
    (tmp_path / "state").write_text("")
    trust.record([OWN])
    with pytest.raises(UntrustedCode):
        admit_stored(OWN, "run 'a'", tmp_path)


def test_trusted_code_does_not_run_with_a_run_folder_before_it_on_the_path(here, tmp_path, monkeypatch):
    trust.record([OWN])
    run = tmp_path / "run"
    run.mkdir()
    monkeypatch.chdir(run)
    monkeypatch.setenv("PYTHONPATH", str(here))
    with pytest.raises(BadRequest, match="run this in the folder of your code"):
        admit_stored(OWN, "run 'run'", run)


def test_a_file_may_name_what_lies_beside_it_or_here(here, tmp_path):
    file = here / "job.yaml"
    assert [code.name for code in admit_file([OWN], file)] == ["trust_nets:build", "trust_nets:adam"]
    assert admit_file([OWN], file, given=["trust_nets:build", "trust_nets:adam"]) == []
    (tmp_path / "elsewhere.py").touch()
    script = Job(script="../elsewhere.py")
    with pytest.raises(UntrustedCode, match=r"script '\.\./elsewhere\.py'"):
        admit_file([script], file)
    admit_file([script], tmp_path / "job.yaml")
    admit_file([script], file, trusted=["../elsewhere.py"])


@pytest.mark.parametrize("place", ["lib/site-packages/x.py", "runs/sent/x.py", "link.py"])
def test_what_is_installed_linked_or_in_a_run_is_not_of_the_folder(here, tmp_path, place):
    for folder in ("lib/site-packages", "runs/sent"):
        (here / folder).mkdir(parents=True)
        (here / folder / "x.py").touch()
    for name in ("job.yaml", "events.jsonl"):
        (here / "runs/sent" / name).touch()
    (tmp_path / "x.py").touch()
    (here / "link.py").symlink_to(tmp_path / "x.py")
    with pytest.raises(UntrustedCode):
        admit_file([Job(script=place)], here / "job.yaml")


@pytest.mark.parametrize("name", ["yaml:load", "os.path:join", "pip:main"])
def test_installed_functions_are_not_of_the_folder_either(here, name):
    with pytest.raises(UntrustedCode):
        admit_file([Job(model=name)], here / "job.yaml")


def test_a_module_that_is_imported_already_is_not_taken_for_the_file_here(here, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (here / "yaml.py").write_text("def load(stream):\n    pass\n")
    with pytest.raises(BadRequest, match="has the name of a module that is imported already"):
        builder_of("yaml:load")
    assert yaml.safe_load("1") == 1


@pytest.mark.parametrize(("answer", "model", "asked"), [
    (True, "trust_nets:build", 1), (False, "trust_nets:build", 1), (True, "yaml:load", 0),
])
def test_on_a_terminal_the_user_is_asked_once(here, tmp_path, monkeypatch, capsys, answer, model, asked):
    """Never about a function of a library."""
    questions = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr(typer, "confirm", lambda text, **options: questions.append(options["default"]) or answer)
    job, run = Job(model=model), tmp_path / "run"

    def call(names: list[str]) -> str:
        admit_stored(job, "run 'run'", run, names)
        return "ran"

    if answer and asked:
        assert [asking(call, None), asking(call, None)] == ["ran", "ran"]
    else:
        with pytest.raises(typer.Exit if asked else UntrustedCode):
            asking(call, None)
    assert questions == [False] * asked
