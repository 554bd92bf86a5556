"""`velodrome check` trains for a second, reports what it takes, and says in a sentence what users' code lacks."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from velodrome.catalog.registry import engine as engine_named

pytest.importorskip("torch")
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

NETS = '''
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, pixels, classes, fault):
        super().__init__()
        self.fault = fault
        self.hidden = nn.Linear(pixels, 20)
        self.relu = nn.ReLU(inplace=True)
        self.head = nn.Linear(20 + (fault == "shape"), classes)
        self.spare = nn.Parameter(torch.zeros(3))

    def forward(self, images):
        logits = self.head(self.relu(self.hidden(images.flatten(1))))
        if self.fault == "detached":
            return logits.detach()
        if self.fault == "mistake":
            raise ValueError("a mistake of the user's")
        return logits * float("nan") if self.fault == "nan" else logits

def build(input_shape, classes, fault=""):
    return Net(input_shape[0] * input_shape[1] * input_shape[2], classes, fault)
'''
DATA = '''
import numpy as np

def load():
    raise OSError("the user's disk is gone")
'''


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "checked_nets.py").write_text(NETS)
    (tmp_path / "checked_data.py").write_text(DATA)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def words(*more: object) -> list[object]:
    """Inside this process, which has imported PyTorch already."""
    return ["check", "--model", "checked_nets:build", "--engine", "torch", "--batch-size", 50, "--on", "debug", *more]


def test_layers_memory_and_traffic_are_those_of_the_model(velodrome, here: Path) -> None:
    done = velodrome(*words("--workers", 4, "--json"))
    assert done.code == 0, done.text
    found = done.json()
    weights = 64 * 20 + 20 + 20 * 10 + 10 + 3
    assert (found["parameters"], found["batch"], found["task"]) == (weights, 50, "classification")
    layers = {layer["name"]: layer for layer in found["layers"]}
    assert layers["hidden"]["shape"] == layers["relu"]["shape"] == [50, 20]
    assert layers["head"]["shape"] == [50, 10]
    assert {name: layer["parameters"] for name, layer in layers.items() if layer.get("parameters")} == {
        "hidden": 1300, "head": 210, "(model)": 3,
    }
    assert sum(layer["share"] for layer in found["layers"]) == pytest.approx(1)
    assert all(layers[name]["seconds"] > 0 for name in ("hidden", "head", "(optimizer)", "(loss, counts)"))
    memory, size = found["memory"], 4 * weights
    assert (memory["weight_bytes"], memory["gradient_bytes"]) == (size, size)
    assert size * 2 <= memory["optimizer_bytes"] <= size * 2 + 100  # Adam's two slots, and its counters
    assert 50 * (64 + 20) * 4 <= memory["activation_bytes"] <= 50 * (64 + 20 + 20 + 10 + 10 + 10) * 4
    strategies = {row["strategy"]: row for row in found["strategies"]}
    assert strategies["single"]["traffic"]["several_hosts"] == 0
    # A ring of four: each sends three of four parts twice.
    assert strategies["ddp"]["traffic"]["one_host"] == 2 * 3 * size // 4
    assert strategies["allreduce"]["traffic"]["one_host"] == 0
    assert strategies["allreduce"]["traffic"]["several_hosts"] == 2 * 3 * size // 4
    assert strategies["zero1"]["traffic"]["one_host"] == strategies["fsdp"]["traffic"]["one_host"] == 3 * 3 * size // 4
    assert strategies["local-sgd"]["traffic"]["one_host"] == round(2 * 3 * size / 4 / 8)
    for name, reason in (("pipeline", "is not an nn.Sequential"),
                         ("tensor", "no dense layers that 4 workers can divide")):
        assert strategies[name]["traffic"] is None
        assert reason in strategies[name]["refused"]
    assert found["test"]["total"] == 359
    assert sorted(path.name for path in here.iterdir() if path.suffix != ".py") in ([], ["__pycache__"])


UNEVEN = """
import itertools, time
from torch import nn

class Uneven(nn.Module):
    def __init__(self, pixels, classes):
        super().__init__()
        self.head = nn.Linear(pixels, classes)
        self.calls = itertools.count()

    def forward(self, images):
        time.sleep(0.1 if next(self.calls) % 5 == 0 else 0.0)
        return self.head(images.flatten(1))

def build(input_shape, classes):
    return Uneven(input_shape[0] * input_shape[1] * input_shape[2], classes)
"""


def test_the_time_of_a_job_follows_from_many_steps_because_one_is_like_no_other(velodrome, here: Path) -> None:
    (here / "uneven.py").write_text(UNEVEN)
    found = velodrome("check", "--model", "uneven:build", "--engine", "torch", "--batch-size", 8, "--epochs", 1000,
                      "--on", "debug", "--json").json()
    assert 0.02 <= found["step_seconds"] < 0.03
    steps = 1000 * 162  # of 1,293 training examples
    assert found["seconds"] == pytest.approx(steps * 0.023, rel=0.3)


def test_what_strategies_send_that_divide_the_model_is_listed(velodrome, here: Path) -> None:
    done = velodrome("check", "--model", "dense-300-100", "--engine", "torch", "--batch-size", 50, "--workers", 2,
                     "--on", "debug", "--json")
    assert done.code == 0, done.text
    rows = {row["strategy"]: row for row in done.json()["strategies"]}
    # Each of two stages sends the outputs of a layer, or their gradient: 300, 100 or 10 numbers for each example.
    assert rows["pipeline"]["traffic"]["one_host"] in (50 * 300 * 4, 50 * 100 * 4)
    # Sums of 100 outputs, and of their gradients; ten outputs, half of which each worker has.
    assert rows["tensor"]["traffic"]["one_host"] == (2 * 100 + 2 * 100 + 10) * 50 * 4 // 2
    assert "dense2 (row)" in rows["tensor"]["traffic"]["formula"]
    assert rows["pipeline"]["refused"] is rows["tensor"]["refused"] is None


def test_a_mesh_is_that_of_the_jobs_own_strategy_whose_groups_divide_the_model(velodrome, here: Path) -> None:
    options = ["check", "--model", "dense-300-100", "--engine", "torch", "--batch-size", 40, "--workers", 4, "--on",
               "debug", "--json"]
    dense = 300 * 65, 100 * 301, 10 * 101
    gradients = 4 * sum(dense)
    done = velodrome(*options, "--strategy", "tensor", "--mesh", "data=2,tensor=2")
    assert done.code == 0, done.text
    rows = {row["strategy"]: row for row in done.json()["strategies"]}
    assert rows["fsdp"]["refused"] is rows["tensor"]["refused"] is None
    assert rows["fsdp"]["traffic"]["one_host"] == round(3 * 3 / 4 * gradients)
    # As for two workers with half of the batch; and half of the gradients in a ring of two, a row layer's bias whole.
    inside = (2 * 100 + 2 * 100 + 10) * 20 * 4 // 2
    assert rows["tensor"]["traffic"]["one_host"] == inside + gradients // 2 + 100 * 4 // 2
    done = velodrome(*options, "--strategy", "fsdp", "--mesh", "data=2,fsdp=2")
    rows = {row["strategy"]: row for row in done.json()["strategies"]}
    assert rows["fsdp"]["refused"] is None
    assert rows["fsdp"]["traffic"]["one_host"] == round(3 / 2 * gradients + gradients / 2)
    assert rows["tensor"]["refused"] is None


def test_a_consistency_is_that_of_the_jobs_own_strategy(velodrome, here: Path) -> None:
    done = velodrome(*words("--strategy", "ddp", "--workers", 2, "--consistency", "bsp", "--json"))
    assert done.code == 0, done.text
    rows = {row["strategy"]: row for row in done.json()["strategies"]}
    assert [rows[name]["refused"] for name in ("single", "ddp", "local-sgd")] == [None] * 3
    assert [rows[name]["consistency"] for name in ("single", "ddp", "local-sgd")] == ["none", "bsp", "periodic"]


def test_what_would_be_refused_is_listed_with_the_reason(velodrome, here: Path) -> None:
    """A global batch of 2 has no example for a third worker; one process trains it nevertheless."""
    done = velodrome("check", "--model", "checked_nets:build", "--engine", "torch", "--batch-size", 2, "--workers", 3,
                     "--on", "debug", "--json")
    assert done.code == 0, done.text
    refused = {row["strategy"]: row["refused"] for row in done.json()["strategies"]}
    assert refused["single"] is None
    assert "at least one example for each of the 3 workers" in refused["ddp"]


@pytest.mark.parametrize(("fault", "code", "sentence", "line"), [
    ("shape", 2, "mat1 and mat2 shapes cannot be multiplied", "logits = self.head("),
    ("detached", 2, "cannot be trained: what it returns does not depend on a parameter", None),
    ("mistake", 1, "ValueError: a mistake of the user's", 'raise ValueError("a mistake of the user'),
    ("nan", 1, "the loss became nan in epoch 1", None),
])
def test_a_fault_of_the_model_is_a_sentence_with_the_users_lines(
    velodrome, here: Path, fault: str, code: int, sentence: str, line: str | None
) -> None:
    done = velodrome(*words("--model-arg", f"fault={fault}", "--json"))
    assert done.code == code, done.text
    (said,) = [each for each in done.err.splitlines() if each.startswith("velodrome:")]
    assert sentence in said
    error = done.json()["error"]
    assert sentence in error["message"]
    if line is None:
        assert "traceback" not in error
    else:
        assert line in error["traceback"]
        assert "velodrome/engines" not in error["traceback"].replace("\\", "/")


def test_data_that_raises_is_a_sentence_with_the_users_lines(velodrome, here: Path) -> None:
    done = velodrome(*words("--dataset", "checked_data:load"))
    assert done.code == 1, done.text
    assert "the user's disk is gone" in done.err
    assert 'raise OSError("the user' in done.err


@pytest.mark.parametrize("engine", ["torch", pytest.param("tensorflow", marks=pytest.mark.slow)])
def test_it_prints_tables_from_a_process_of_its_own(velodrome, here: Path, engine: str) -> None:
    pytest.importorskip(engine)
    done = velodrome("check", "--dataset", "digits", "--model", "dense-128", "--engine", engine)
    assert done.code == 0, done.text
    for text in ("9,610 parameters", "128×128", "8,320", "optimizer state", "2·(N−1)/N·G", "allreduce"):
        assert text in done.out
    assert json.loads("[]") == [path.name for path in here.iterdir() if path.is_dir() and path.name == "runs"]


KERAS = """
import keras


def build(input_shape, classes):
    return keras.Sequential([keras.Input(input_shape), keras.layers.Flatten(), keras.layers.Dense(classes)])


def make():
    return keras.optimizers.RMSprop(0.01, momentum=0.5)
"""


@pytest.mark.parametrize("options", [
    ["--optimizer", "checked_keras:make"],
    pytest.param(["--optimizer", "adam", "--implementation", "stock"], marks=pytest.mark.slow),
], ids=["own", "stock"])
def test_a_keras_optimizer_is_checked_with_its_state(velodrome, here: Path, options: list[str]) -> None:
    pytest.importorskip("tensorflow")
    (here / "checked_keras.py").write_text(KERAS)
    done = velodrome("check", "--model", "checked_keras:build", "--engine", "tensorflow", *options, "--json")
    assert done.code == 0, done.text
    found = done.json()
    # RMSprop has mean squares and momentum, Adam two moments: two numbers per weight.
    assert found["memory"]["optimizer_bytes"] == 2 * found["memory"]["weight_bytes"] == 2 * 4 * (64 * 10 + 10)
    refused = {row["strategy"]: row["refused"] for row in found["strategies"]}
    assert refused["single"] is None
    assert "one flat buffer" in refused["allreduce"] or "no stock form" in refused["allreduce"]


def test_the_python_function_returns_the_same(here: Path) -> None:
    import velodrome as package

    found: dict[str, Any] = package.check(package.Job(model="linear", engine="torch"), on="debug")
    assert found["parameters"] == 650
    assert [row["strategy"] for row in found["strategies"]] == [one.name for one in engine_named("torch").strategies]


def test_a_task_of_the_users_own_is_checked_with_its_metrics(velodrome, here: Path) -> None:
    assert velodrome("new", "task", "checked_task.py", "--engine", "torch").code == 0
    done = velodrome("check", "--model", "checked_task:build", "--task", "checked_task:Task", "--engine", "torch",
                     "--on", "debug", "--json")
    assert done.code == 0, done.text
    found = done.json()
    assert found["task"] == "checked_task:Task"
    assert 0 <= found["test"]["within"] <= 1
    assert found["test"]["total"] == 359
    assert any(layer["kind"] == "Linear" and layer["parameters"] == 64 * 32 + 32 for layer in found["layers"])


SCRIPT = """
import os
import sys
import time
from pathlib import Path
import velodrome

rank = int(os.environ["RANK"])
assert Path("data/input.txt").read_text() == "input"
Path("model.txt").write_text("overwritten")
Path(__file__).with_name("beside.txt").write_text("new")
Path("out").mkdir(exist_ok=True)
Path("out/log.txt").open("a").write("a line")
if "outside" in sys.argv:
    Path(sys.argv[-1]).write_text("overwritten")
if "fail" in sys.argv:
    raise ValueError("the user's own mistake")
velodrome.log(step=0, total_steps=1_000_000)
for step in range(1_000_000 if "forever" in sys.argv else 5):
    time.sleep(0.02)
    velodrome.log(step=step + 1, examples=8, loss=1.0)
    print("test acc: 12.5 %", flush=True)
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a script, its data, and a file of an earlier run that it would overwrite."""
    folder = tmp_path / "work"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "input.txt").write_text("input")
    (folder / "model.txt").write_text("precious")
    (folder / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(folder)
    return folder


def test_a_script_is_tried_for_a_few_steps_in_a_copy_of_its_folder(velodrome, script: Path, no_strays: None) -> None:
    before = sorted(path.relative_to(script) for path in script.rglob("*"))
    done = velodrome("check", "--script", "train.py", "--script-args", "forever", "--engine", "torch", "--workers", 2)
    assert done.code == 0, done.text
    assert "train.py, torch, 2 workers: ended after " in done.out
    assert "examples/s" in done.out
    assert "reported: train loss 1" in done.out
    assert "--read 'test acc: (?P<test_accuracy_percent>[0-9.]+)'" in done.out
    assert "the whole job takes about " in done.out
    assert "the copy and what it wrote there are removed (beside.txt, model.txt, out/log.txt)" in done.out
    assert (script / "model.txt").read_text() == "precious"
    assert sorted(path.relative_to(script) for path in script.rglob("*")) == before, "nothing is stored"


def test_how_long_a_script_takes_follows_from_its_arguments_where_it_does_not_report_it(
    velodrome, script: Path
) -> None:
    (script / "train.py").write_text(SCRIPT.replace("step=0, total_steps=1_000_000", "step=0"))
    job = ("check", "--script", "train.py", "--engine", "torch", "--script-args")
    found = velodrome(*job, "forever --steps 100000", "--json").json()
    assert 2000 < found["expected_seconds"] < 4000
    done = velodrome(*job, "forever")
    assert "how long the whole job takes is unknown: report its length with velodrome.log(total_epochs=…)" in done.out


def test_a_script_that_ends_by_itself_is_summed_up_as_json(velodrome, script: Path) -> None:
    found = velodrome("check", "--script", "train.py", "--engine", "torch", "--json").json()
    assert (found["script"], found["workers"], found["ended"], found["steps"]) == ("train.py", 1, "by itself", 5)
    assert found["figures"]["train"] == {"loss": 1.0}
    assert found["expected_seconds"] > 1000


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        pytest.param("fail", "velodrome: ValueError: the user's own mistake", id="raises"),
        pytest.param("outside {outside}", "check lets a script write to its scratch folder only", id="outside"),
    ],
)
def test_a_script_that_fails_on_trial_is_shown_with_its_own_path(
    velodrome, script: Path, words: str, sentence: str
) -> None:
    # Temporary folders may be written to, and so this one must not be below them.
    outside = Path(__file__).with_name("precious.txt")
    outside.write_text("precious")
    try:
        done = velodrome("check", "--script", "train.py", "--engine", "torch", "--script-args",
                         words.replace("{outside}", str(outside)))
        assert outside.read_text() == "precious"
    finally:
        outside.unlink()
    assert done.code == 1, done.text
    assert sentence in done.err
    assert f'File "{script / "train.py"}"' in done.err


def test_a_script_may_not_write_to_its_real_folder_by_its_absolute_path_although_that_lies_among_temporary_ones(
    velodrome, script: Path
) -> None:
    assert script.resolve().is_relative_to(Path(tempfile.gettempdir()).resolve())
    done = velodrome("check", "--script", "train.py", "--engine", "torch", "--script-args",
                     f"outside {script / 'model.txt'}")
    assert (script / "model.txt").read_text() == "precious"
    assert done.code == 1, done.text
    assert "check lets a script write to its scratch folder only" in done.err


def test_a_script_is_not_tried_elsewhere(velodrome, script: Path) -> None:
    done = velodrome("check", "--script", "train.py", "--on", "debug", "--engine", "torch")
    assert done.code == 2, done.text
    assert "--on 'debug': a script is tried on this machine, in a scratch folder" in done.err
