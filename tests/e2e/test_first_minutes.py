"""What new users do in their first ten minutes, each time beside another program that uses 0.3 of a core: a script of
their own, a Keras model on a folder of pictures, a long training, and a race in a browser. Each ends in a decision.

Only that program counts as foreign load here: whatever else uses this machine is no part of the stories. What takes
time in the scripts and models is a wait that is proportional to the batch, as for a device, so that a busy machine
changes no answer.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "data"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "servers"))
import browser
import pictures

from ui_server import Server, text, wait_for
from velodrome.run import samples

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

UNTIL_SURE = ("--until-sure", "--max-repeat", 10, "--budget", "8m")
#: Uses so much of a core as long as its parent lives.
USED = 0.3
LOAD = f"""
import os, time
parent = os.getppid()
while os.getppid() == parent:
    began = time.process_time()
    while time.process_time() - began < {0.1 * USED}:
        pass
    time.sleep({0.1 * (1 - USED)})
"""
SCRIPT = """
import argparse, time
import torch
import torch.distributed as dist
import velodrome

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=64)
options = parser.parse_args()
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(20, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
velodrome.log(step=0)
for step in range(40):
    optimizer.zero_grad()
    model(torch.ones(options.batch, 20)).square().mean().backward()
    time.sleep(0.002 * options.batch)
    optimizer.step()
    velodrome.log(step=step + 1, examples=options.batch, epoch=1)
if dist.get_rank() == 0:
    print("epoch 1 valid_loss 0.25 top1 0.91")
dist.destroy_process_group()
"""
#: The same without a framework, whose import would take longer than all that it does.
PLAIN_SCRIPT = """
import argparse, os, time
import velodrome

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=64)
options = parser.parse_args()
velodrome.log(step=0)
for step in range(40):
    time.sleep(0.002 * options.batch)
    velodrome.log(step=step + 1, examples=options.batch, epoch=1)
if os.environ["RANK"] == "0":
    print("epoch 1 valid_loss 0.25 top1 0.91")
"""
MODELS = """
def build(input_shape, classes):
    import keras
    return keras.Sequential([
        keras.Input(input_shape), keras.layers.Flatten(), keras.layers.Dense(16, activation="relu"),
        keras.layers.Dense(classes),
    ])


def slow(input_shape, classes):
    import time
    from torch import nn

    class Slow(nn.Module):
        def __init__(self):
            super().__init__()
            self.dense = nn.Linear(input_shape[0] * input_shape[1] * input_shape[2], classes)

        def forward(self, images):
            time.sleep(0.001 * len(images))
            return self.dense(images.flatten(1))

    return Slow()
"""


@pytest.fixture
def beside_load(monkeypatch: pytest.MonkeyPatch, idle: None) -> Iterator[None]:
    """A process that uses 0.3 of a core, which is all the foreign load that runs record; none is repeated for it."""
    measured = samples.host_cpu

    def only_ours(*series: Any) -> Any:
        found = measured(*series)
        return None if found is None else found.model_copy(update={"foreign": USED})

    monkeypatch.setattr(samples, "host_cpu", only_ours)
    with subprocess.Popen([sys.executable, "-c", LOAD]) as other:
        yield
        other.kill()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder."""
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "nets.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def answer(done: Any) -> list[str]:
    """The three lines of a race, which ended well."""
    assert done.code == 0, done.text
    lines = [line for line in done.out.splitlines() if line.startswith(("Verdict: ", "Why: ", "Next: "))]
    assert [line.partition(":")[0] for line in lines] == ["Verdict", "Why", "Next"], done.out
    assert len(lines[0].split()) <= 40
    assert "Other programs used 0.3 of 2 cores" in done.out
    return lines


def test_a_script_of_ones_own_ends_in_a_decision(velodrome, here: Path, runs: Path, beside_load: None) -> None:
    (here / "train.py").write_text(PLAIN_SCRIPT)
    job = ("race", "--script", "train.py", "--vary", "workers=1,4", "--runs", runs)
    asked = velodrome(*job, "--dry-run")
    assert asked.code == 0, asked.text
    assert "--batch {64/workers}" in asked.err, "its first message offers to keep the global batch"
    done = velodrome(*job, "--script-args", "--batch {64/workers}", *UNTIL_SURE, "--name", "mine")
    verdict, why, _ = answer(done)
    assert verdict == "Verdict: use torch/script with 4 workers: distributing pays off."
    assert "times as fast as torch/script with 1 worker" in why
    assert "--read 'top1 (?P<test_accuracy>[0-9.]+)'" in done.out, "which pattern reads what it printed"
    asked = velodrome("recommend", "mine", "--between", "workers=1,workers=4", "--runs", runs)
    assert asked.out.startswith("Verdict: use workers=4: it was "), asked.text


@pytest.mark.slow
def test_a_keras_model_and_a_folder_of_pictures_end_in_a_decision(
    velodrome, here: Path, runs: Path, beside_load: None
) -> None:
    pictures.write_folders(here / "photos", each=80)
    done = velodrome(
        "race", "--dataset", "path:photos", "--model", "nets:build", "--engine", "tensorflow", "--epochs", 3,
        "--vary", "entry=tensorflow/single,tensorflow/multi-worker-mirrored", "--vary", "workers=2", "--threads", 1,
        *UNTIL_SURE, "--name", "photos", "--runs", runs)
    verdict, why, _ = answer(done)
    assert verdict == "Verdict: use tensorflow/single with 1 worker: do not distribute this."
    assert "as fast as tensorflow/multi-worker-mirrored with 2 workers" in why


@pytest.mark.slow
def test_a_long_training_ends_in_a_decision_within_its_budget(
    velodrome, here: Path, runs: Path, beside_load: None
) -> None:
    job = ("race", "--dataset", "digits", "--model", "nets:slow", "--engine", "torch", "--epochs", 500, "--steps", 40,
           "--vary", "entry=torch/single,torch/ddp", "--vary", "workers=4", "--threads", 1, *UNTIL_SURE,
           "--name", "long", "--runs", runs)
    asked = velodrome(*job, "--dry-run")
    assert "the budget of 8 min is enough for 3 repetitions of all 2 configurations" in asked.err, asked.text
    done = velodrome(*job)
    verdict, why, _ = answer(done)
    assert verdict == "Verdict: use torch/ddp with 4 workers: distributing pays off."
    assert "times as fast as torch/single with 1 worker" in why


@pytest.mark.slow
@pytest.mark.skipif(bool(browser.unavailable()), reason=browser.unavailable() or "there is a browser")
def test_a_race_that_is_watched_in_a_browser_ends_in_a_decision(
    velodrome, here: Path, runs: Path, beside_load: None
) -> None:
    job = ("race", "--script", "train.py", "--script-args", "--batch {64/workers}", "--vary", "workers=1,4",
           "--name", "watched", "--runs", runs)
    velodrome(*job)
    server = Server(runs)
    try:
        with browser.chromium() as driver:
            driver.get(f"{server.address}/races/watched")
            wait_for(driver, "return /for now/.test(document.querySelector('#verdicts')?.textContent)",
                     "an answer that one run of each does not prove")
            answer(velodrome(*job, *UNTIL_SURE))
            wait_for(driver, "return /distributing pays off/.test(document.querySelector('#verdicts')?.textContent)",
                     "the decision, without a reload")
            assert "torch/script with 4 workers" in text(driver, "#verdicts")
    finally:
        server.end()
