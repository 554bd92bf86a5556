"""Four real scripts, as their frameworks' users write them, under `velodrome train --script`."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from velodrome.api import examples
from velodrome.clusters.local.launcher import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(280)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The example files, in the folder in which the command is typed."""
    examples.copy(tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(velodrome: Any, name: str, engine: str = "torch") -> dict[str, Any]:
    words = ["--script", f"examples/script_{name}.py", "--script-args", "--save weights-{rank}.npy", "--workers", 2]
    done = velodrome("train", *words, "--engine", engine, "--name", "a", "--json")
    assert done.code == 0, done.text
    found: dict[str, Any] = done.json()
    return found


def needing(name: str, module: str, engine: str = "torch", *marks: Any) -> Any:
    missing = pytest.mark.skipif(find_spec(module) is None, reason=f"{module} is not installed")
    return pytest.param(name, engine, id=name, marks=[missing, *marks])


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        needing("tensorflow", "tensorflow", "tensorflow", pytest.mark.slow),
        needing("accelerate", "accelerate", "torch", pytest.mark.slow),
        needing("fabric", "lightning_fabric", "torch", pytest.mark.slow),
    ],
)
def test_a_script_of_this_framework_trains_with_equal_weights_on_all_ranks(
    velodrome: Any, folder: Path, no_strays: None, name: str, engine: str
) -> None:
    result = train(velodrome, name, engine)
    check(result, folder)


def check(result: dict[str, Any], folder: Path) -> None:
    assert result["test"]["total"] == 1000
    assert result["test"]["accuracy"] > 0.85
    assert result["history"][1]["train_loss"] < result["history"][0]["train_loss"]
    assert result["throughput"]["examples_per_second"] > 0
    assert result["not_reported"] == []
    first, second = (np.load(folder / f"weights-{rank}.npy") for rank in range(2))
    assert np.array_equal(first, second)


def test_a_torchrun_script_reaches_the_same_weights_and_metric_as_under_torchrun(
    velodrome: Any, folder: Path, no_strays: None
) -> None:
    result = train(velodrome, "ddp")
    check(result, folder)
    ours = np.load(folder / "weights-0.npy")
    (folder / "weights-0.npy").unlink()
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1",
         "--master-port", str(free_port("127.0.0.1")), "examples/script_ddp.py", "--save", "weights-{rank}.npy"],
        capture_output=True, text=True, timeout=280, cwd=folder,
    )
    # Its exit code says nothing about the training: PyTorch's threads rarely abort a process that has ended its work.
    printed = re.search(r"test accuracy: ([0-9.]+)", done.stdout)
    assert printed is not None, done.stderr
    assert np.array_equal(np.load(folder / "weights-0.npy"), ours), done.stderr
    assert float(printed[1]) == pytest.approx(result["test"]["accuracy"], abs=1e-4)


@pytest.mark.skipif(find_spec("tensorflow") is None, reason="tensorflow is not installed")
@pytest.mark.parametrize(("servers", "more"), [
    pytest.param(1, "", id="synchronous"),
    pytest.param(2, " --asynchronous", id="asynchronous-two-servers", marks=pytest.mark.slow),
])
def test_workers_move_two_numbers_on_servers_towards_a_sum(
    velodrome: Any, folder: Path, no_strays: None, servers: int, more: str
) -> None:
    arguments = "--job_name={role} --task_index={index} --ps_hosts={ps_hosts} --worker_hosts={worker_hosts}"
    done = velodrome(
        "train", "--script", "examples/script_servers.py", "--script-args", f"{arguments} --iterations 40{more}",
        "--workers", 2, "--servers", servers, "--engine", "tensorflow", "--name", "a", "--json",
    )
    assert done.code == 0, done.text
    result = done.json()
    assert (result["workers"], result["servers"], result["steps"]) == (2, servers, 20), "each does its share"
    # 40 updates of 0.02 % of the distance each, synchronous ones of two workers from the same point, begin near zero.
    assert result["test"]["distance"] == pytest.approx((1 - 0.0002) ** 40, abs=0.02)
    assert result["seconds"]["train"] >= 20 * 0.01
    assert result["seconds"]["startup"] > result["seconds"]["evaluate"]
