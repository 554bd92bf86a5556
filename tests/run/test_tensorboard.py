"""A race opens in TensorBoard: a real server on loopback answers with its scalars and compares its runs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from synthetic_races import result, typed
from velodrome.clusters.local.launcher import free_port
from velodrome.events import make_event
from velodrome.job.job import Job
from velodrome.job.resolve import resolve
from velodrome.run.tensorboard import SESSION, Scalars, hyperparameters, metrics, write_session


class TensorBoard:
    """What the server answers, as its own pages ask for it."""

    def __init__(self, port: int) -> None:
        self._data = f"http://127.0.0.1:{port}/data"

    def get(self, path: str, **query: str) -> Any:
        with urllib.request.urlopen(f"{self._data}/{path}?{urllib.parse.urlencode(query)}", timeout=20) as answer:
            return json.load(answer)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            f"{self._data}/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.load(answer)

    def when(self, ready: Any) -> Any:
        """Ask until the answer is there: the server reads its files after it has begun to answer."""
        for _ in range(300):
            try:
                if answer := ready():
                    return answer
            except (urllib.error.URLError, ConnectionError):
                pass
            time.sleep(0.2)
        raise AssertionError("TensorBoard did not answer")


@pytest.fixture
def tensorboard(runs: Path) -> Iterator[TensorBoard]:
    runs.mkdir(exist_ok=True)
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "tensorboard.main", "--logdir", runs, "--host", "127.0.0.1", "--port", str(port),
         "--load_fast", "false", "--reload_interval", "1"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    try:
        yield TensorBoard(port)
    finally:
        server.terminate()
        server.wait(20)


@pytest.mark.integration
@pytest.mark.timeout(150)
def test_tensorboard_shows_the_curves_of_a_race_and_compares_its_runs(
    velodrome, idle: None, runs: Path, tensorboard
) -> None:
    done = velodrome(
        "race", "--dataset", "digits", "--engine", "torch", "--strategy", "single", "--vary", "batch_size=32,64",
        "--repeat", 2, "--epochs", 2, "--threads", 1, "--name", "race", "--runs", runs,
    )
    assert done.code == 0
    stored = {path.parent.name: json.loads(path.read_text()) for path in runs.glob("race/*/result.json")}
    names = {f"race/{name}/tensorboard" for name in stored}
    sessions = {f"{name}/{SESSION}" for name in names}

    def tags() -> Any:
        shown = tensorboard.get("plugin/scalars/tags")
        return shown if shown.keys() >= names | sessions else None

    found = tensorboard.when(tags)
    curves = {"accuracy/train", "accuracy/validation", "accuracy/test", "loss/train", "loss/validation", "loss/test"}
    for name in names:
        assert curves <= found[name].keys()
        points = tensorboard.get("plugin/scalars/scalars", run=name, tag="accuracy/validation")
        assert [step for _, step, _ in points] == [1, 2]
        history = stored[name.split("/")[1]]["history"]
        assert [value for *_, value in points] == pytest.approx([row["validation_accuracy"] for row in history])

    experiment = tensorboard.post("plugin/hparams/experiment", {"experimentName": ""})
    differs = {info["name"] for info in experiment["hparamInfos"] if info.get("differs")}
    assert differs == {"batch_size"}
    answer = tensorboard.post("plugin/hparams/session_groups", {
        "experimentName": "", "startIndex": 0, "sliceSize": 100, "allowedStatuses": ["STATUS_SUCCESS"],
        "colParams": [{"metric": {"group": "", "tag": "accuracy/test"}}],
    })
    groups = answer["sessionGroups"]
    # Repetitions share a group, configurations do not.
    assert sorted(group["hparams"]["batch_size"] for group in groups) == [32, 64]
    assert sorted(session["name"] for group in groups for session in group["sessions"]) == sorted(sessions)
    for group in groups:
        for session in group["sessions"]:
            assert session["status"] == "STATUS_SUCCESS"
            shown = {value["name"]["tag"]: value["value"] for value in session["metricValues"]}
            ours = stored[session["name"].split("/")[1]]
            assert shown["accuracy/test"] == pytest.approx(ours["test"]["accuracy"])
            assert shown["time/train_seconds"] == pytest.approx(ours["seconds"]["train"], rel=1e-5)
            rate = ours["throughput"]["examples_per_second"]
            assert shown["throughput/examples_per_second"] == pytest.approx(rate, rel=1e-5)
            # Curves of processes are no columns of the comparison.
            assert not any(tag.startswith(("cpu_percent", "memory_bytes")) for tag in shown)


def _tags(folder: Path) -> dict[str, list[float]]:
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    found: dict[str, list[float]] = {}
    for path in folder.glob("events.out.tfevents.*"):
        for event in LegacyEventFileLoader(str(path)).Load():
            for value in event.summary.value:
                found.setdefault(value.tag, []).append(value.simple_value)
    return found


@pytest.mark.unit
def test_a_language_model_is_shown_by_its_perplexity(tmp_path: Path) -> None:
    scalars = Scalars(tmp_path, Job(model="lstm-small"))
    counts = {"correct": 0, "total": 10, "loss_sum": 20.0}
    row = {"epoch": 1, "seconds": 1.0, "evaluate_seconds": 1.0}
    pace = {"seconds": 1.0, "examples": 10, "warmup": {"steps": 0, "examples": 0, "seconds": 0.0}}
    scalars.take(make_event("epoch", **row, steps=1, train=counts, validation=counts))
    scalars.take(make_event("result", test=counts, history=[row], parameters=1, steps=1, pace=pace))
    scalars.close()
    tags = _tags(tmp_path)
    assert tags["perplexity/test"] == pytest.approx([7.389056])
    assert not any(tag.startswith("accuracy") for tag in tags)


@pytest.mark.unit
def test_a_failed_run_is_a_failed_session_without_metrics_it_never_had(tmp_path: Path) -> None:
    nothing = {"examples_per_second": None, "batches_per_second": None}
    failed = typed(result(status="failed", test=None, history=[], throughput=nothing))
    seconds = failed.seconds.model_copy(update={"train": None, "total": None})
    failed = failed.model_copy(update={"seconds": seconds})
    write_session(tmp_path, resolve(Job(model="my:net", model_args={"width": 3})), failed)
    assert set(_tags(tmp_path / SESSION)) == {"_hparams_/session_start_info", "_hparams_/session_end_info"}


@pytest.mark.unit
def test_what_is_compared_leaves_out_seed_and_time_limits() -> None:
    told = hyperparameters(resolve(Job(strategy="ddp", workers=2, seed=7, model="my:net", model_args={"width": 3})))
    assert told["workers"] == 2
    assert told["model_args"] == "width=3"
    assert not {"seed", "stall_timeout", "target"} & told.keys()
    assert metrics(typed(result(rate=500.0)))["throughput/examples_per_second"] == 500.0
