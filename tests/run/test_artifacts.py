"""Artifacts: a run that was sent to a store comes back as it was, can be served, and nothing false comes with it."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "servers"))
import s3 as s3_server

import velodrome
from velodrome.data.storage.store import open_store
from velodrome.errors import BadRequest, VelodromeError
from velodrome.job.job import Job
from velodrome.run.artifacts import INDEX, check_address, fetch, is_address
from velodrome.web.model_api import serve_app


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    pytest.importorskip("moto")
    with s3_server.s3("models") as variables, pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield "s3://models/velodrome"


@pytest.mark.integration
def test_a_trained_model_goes_to_s3_and_is_served_from_there(bucket: str, tmp_path: Path) -> None:
    """Slides of fruits-horovod, Results: artifacts such as the model, checkpoints and TensorBoard logs are uploaded."""
    job = Job(dataset="digits", model="linear", engine="torch", epochs=2)
    told = velodrome.train(job, name="monday", runs=tmp_path / "there", artifacts=bucket)
    assert told["artifacts"] == f"{bucket}/monday"
    velodrome.export("monday", tmp_path / "there")
    here = fetch(told["artifacts"], tmp_path / "here")
    sent = {artifact["name"] for artifact in json.loads((here / INDEX).read_text())["files"]}
    kinds = {name.partition("/")[0] for name in sent}
    assert {"model", "checkpoints", "tensorboard", "result.json", "job.yaml"} <= kinds
    for name in sent:
        assert (here / name).read_bytes() == (tmp_path / "there" / "monday" / name).read_bytes()
    shutil.rmtree(tmp_path / "there")
    with TestClient(serve_app([here.name], tmp_path / "here", "127.0.0.1"), base_url="http://127.0.0.1") as client:
        names = [model["name"] for model in client.get("/api/models").json()["models"]]
    assert names == ["monday"]
    assert fetch(told["artifacts"], tmp_path / "here") == here


@pytest.mark.integration
def test_finished_runs_of_a_race_go_below_its_name(tmp_path: Path) -> None:
    asked = {"vary": {"batch_size": [64, 128]}, "repeat": 1, "name": "batches", "runs": tmp_path / "here",
             "job": {"dataset": "digits", "model": "linear", "engine": "torch", "strategy": "single", "epochs": 1}}
    there = str(tmp_path / "there")
    told = velodrome.race(**asked, artifacts=there)
    assert told["artifacts"] == f"{there}/batches"
    names = {"torch-single-1w-64b-1", "torch-single-1w-128b-1"}  # and none of the attempts that were repeated
    assert {path.name for path in Path(there, "batches").iterdir()} == names
    for name in names:
        run = fetch(f"{there}/batches/{name}", tmp_path / "again")
        assert (run / "result.json").read_bytes() == (tmp_path / "here" / "batches" / name / "result.json").read_bytes()
    with pytest.raises(BadRequest, match="--artifacts 'ftp://a/b'"):
        velodrome.race(**asked, artifacts="ftp://a/b")


@pytest.fixture
def sent(tmp_path: Path) -> Path:
    """A folder that holds what was sent of a run."""
    run = tmp_path / "runs" / "monday"
    (run / "model").mkdir(parents=True)
    (run / "model" / "weights").write_bytes(b"0123")
    (run / "result.json").write_text("{}")
    from velodrome.run.artifacts import send

    (tmp_path / "store").mkdir()
    send(run, str(tmp_path / "store"))
    return tmp_path / "store" / "monday"


@pytest.mark.unit
@pytest.mark.parametrize(("file", "content", "why"), [
    ("model/weights", "3210", "is not the file that was sent"),
    ("model/weights", "01234", "is not the file that was sent"),
    (INDEX, "{", "cannot be read"),
    (INDEX, '{"run": "monday", "files": [{"name": "../../x", "bytes": 0, "sha256": ""}]}', "leads elsewhere"),
    (INDEX, '{"run": "monday", "files": [{"name": "/etc/x", "bytes": 0, "sha256": ""}]}', "leads elsewhere"),
])
def test_what_was_changed_on_its_way_is_refused_and_leaves_nothing(
    sent: Path, tmp_path: Path, file: str, content: str, why: str
) -> None:
    (sent / file).write_text(content)
    with pytest.raises(VelodromeError, match=why):
        fetch(str(sent), tmp_path / "here")
    assert not [*(tmp_path / "here").glob("*")]


@pytest.mark.unit
def test_a_run_comes_back_once_and_takes_the_place_of_no_other(sent: Path, tmp_path: Path) -> None:
    here = fetch(str(sent), tmp_path / "here")
    assert (here / "model" / "weights").read_bytes() == b"0123"
    assert fetch(str(sent), tmp_path / "here") == here
    (here / INDEX).unlink()
    with pytest.raises(BadRequest, match="is another run"):
        fetch(str(sent), tmp_path / "here")
    with pytest.raises(BadRequest, match="holds no run"):
        fetch(str(tmp_path / "store" / "tuesday"), tmp_path / "here")
    assert open_store(str(sent)).size(INDEX)


@pytest.mark.unit
def test_an_address_is_checked_before_anything_trains(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"--artifacts 'ftp://a/b': .*no kind of store 'ftp'"):
        check_address("ftp://a/b")
    assert is_address("s3://bucket/monday")
    assert not is_address("race/monday")
