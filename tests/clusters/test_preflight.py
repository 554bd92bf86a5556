"""What cannot work is refused before anything starts, with the numbers and the way out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from velodrome.catalog import segments
from velodrome.cli.console import JobProgress
from velodrome.clusters import preflight
from velodrome.clusters.plan import consecutive_ports, make_plan
from velodrome.errors import BadRequest, Unavailable
from velodrome.job.job import Job
from velodrome.job.resolve import resolve
from velodrome.run.store import Store

pytestmark = pytest.mark.unit


def check(**fields: Any) -> None:
    job = resolve(Job(**fields))
    preflight.check_job(job)
    preflight.check_here(job)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        pytest.param({"model": "lenet5"}, ["'lenet5'", "16×16", "8×8"], id="images too small"),
        pytest.param({"model": "dense-128", "model_args": {"x": 1}}, ["--model-arg", "'dense-128'"], id="arguments"),
        pytest.param({"model": "no_such_module_here:build"}, ["no module named 'no_such_module_here'"], id="no module"),
        pytest.param({"model": "no module:build"}, ["module:function"], id="not a module's name"),
        pytest.param({"batch_size": 100_000}, ["--batch-size 100000", "1,"], id="a batch larger than the set"),
        pytest.param({"engine": "tensorflow", "strategy": "tpu"}, ["tensorflow/tpu cannot run", "a TPU"], id="a TPU"),
    ],
)
def test_a_job_that_cannot_run_is_refused(fields: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(BadRequest) as refusal:
        check(**fields)
    for word in words:
        assert word in str(refusal.value)
    assert refusal.value.exit_code == 2


def test_more_processes_than_memory_holds_are_refused_with_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "available_memory", lambda: 2 * 2**30)
    check(strategy="ddp", workers=2)
    needs = r"50 torch processes need about 1\d\.\d GiB of memory, but only 2\.0 GiB are free"
    with pytest.raises(BadRequest, match=needs):
        check(strategy="ddp", workers=50)


def test_more_workers_than_cores_are_warned_of(monkeypatch: pytest.MonkeyPatch, velodrome, runs: Path) -> None:
    monkeypatch.setattr(preflight, "cores", lambda: 2)
    monkeypatch.setattr(preflight, "available_memory", lambda: 2**50)
    assert preflight.crowded([Job(strategy="ddp", workers=2)]) is None
    job = resolve(Job(strategy="ddp", workers=64))
    told = "--workers 64: this machine has 2 cores, so the workers share cores"
    assert told in (preflight.crowded([job, Job(workers=1)]) or "")
    words = ("--strategy", "ddp", "--no-baseline", "--runs", runs, "--dry-run", "--json")
    raced = velodrome("race", *words, "--vary", "workers=1,8,64")
    assert "--workers 8, 64: this machine has 2 cores" in raced.err
    assert any("--workers 8, 64" in note for note in raced.json()["notes"])
    assert velodrome("race", *words, "--vary", "workers=1,2").json()["notes"] == []


@pytest.mark.parametrize(("hosts", "warned"), [(["127.0.0.1"], True), (["10.0.0.1", "10.0.0.2"], False)])
def test_a_run_with_more_workers_than_cores_begins_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], runs: Path, hosts: list[str], warned: bool
) -> None:
    monkeypatch.setattr(preflight, "cores", lambda: 2)
    job = resolve(Job(strategy="ddp", workers=64))
    run = Store(runs).create("many", job)
    progress = JobProgress()
    progress.begin(make_plan("many", job, hosts, consecutive_ports(29400)), run)
    progress.end()
    run.close()
    assert ("warning: --workers 64: this machine has 2 cores" in capfd.readouterr().err) is warned


def test_a_module_in_the_current_folder_is_found_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_nets.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    check(model="my_nets:build")


def test_a_host_without_shared_memory_for_mpi_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(segments, "FOLDER", tmp_path / "none")
    check(strategy="ddp", workers=2)
    with pytest.raises(Unavailable, match=r"none cannot be used \(No such file or directory\), but MPI needs 3\.0 MiB"):
        check(strategy="allreduce", workers=3)


@pytest.mark.parametrize(("fields", "takes"), [
    ({"engine": "jax"}, "engine jax trains on images and text"),
    ({"engine": "mxnet"}, "engine mxnet trains on images and text"),
    ({"engine": "horovod", "framework": "tensorflow"}, "engine horovod with --framework tensorflow trains on images"),
])
@pytest.mark.parametrize("model", [{}, {"model": "linear"}])
def test_tables_are_refused_by_engines_that_take_none(
    fields: dict[str, str], model: dict[str, str], takes: str
) -> None:
    with pytest.raises(BadRequest) as refused:
        preflight.check_job(resolve(Job.model_validate({"dataset": "breast-cancer", **fields, **model})))
    assert str(refused.value) == (
        f"--dataset 'breast-cancer' is arrays of numbers, but {takes}; choose --engine tensorflow or torch or "
        "accelerate or fabric or deepspeed or horovod for it"
    )
