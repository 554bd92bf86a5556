"""The fault matrix: whatever breaks, under every launcher, a run ends within its limit with a sentence that names host
and cause. `VELODROME_RECORD=1` writes what happened into the documentation (docs/fault_matrix.py)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from scene import LONG, Scene, training

from velodrome.clusters.emulated.network import missing_tools

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs"))
from fault_matrix import record

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]
needs_root = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0 or bool(missing_tools()),
    reason="emulated hosts need Linux, root, iproute2 and util-linux",
)
#: Seconds without progress after which a run is stopped, and what a busy machine may take in addition.
STALL, SLACK = 20.0, 30.0
TORCH = ("torch", "ddp", *LONG, "--stall-timeout", STALL)
SERVERS = ("tensorflow", "parameter-server", "--servers", 1, *LONG, "--stall-timeout", STALL)


@dataclass(frozen=True)
class Cell:
    """What breaks, in which job, and what the sentence must have."""

    fault: str
    job: tuple[object, ...]
    break_it: str
    parts: tuple[str, ...]
    limit: float = SLACK


EMULATED = [
    Cell("kill worker", TORCH, "kill worker1 at 1s", ("worker 1 on node2", "SIGKILL")),
    Cell("kill server", SERVERS, "kill server0 at 1s", ("server 0 on node1", "SIGKILL")),
    Cell("kill chief", SERVERS, "kill chief at 1s", ("chief 0 on node4", "SIGKILL")),
    Cell("pause", TORCH, "pause worker1 from 1s", ("worker 1 on node2", f"{STALL:g} s"), STALL + SLACK),
    Cell("partition", TORCH, "partition node2 from 1s", ("worker 1 on node2", "cut off from the others"),
         STALL + SLACK),
]


def sentence_of(text: str) -> str:
    return next(line for line in text.splitlines() if line.startswith("velodrome: ")).removeprefix("velodrome: ")


@needs_root
@pytest.mark.parametrize("cell", EMULATED, ids=lambda cell: cell.fault)
def test_emulated(velodrome: Any, scene: Scene, cell: Cell) -> None:
    nodes = 4 if cell.job is SERVERS else 2
    engine, strategy, *more = cell.job
    words = scene.words(str(engine), str(strategy), *more, "--on", f"emulated:nodes={nodes}", "--fault", cell.break_it)
    done = velodrome(*words)
    assert done.code == 1, done.text
    sentence = sentence_of(done.err)
    for part in cell.parts:
        assert part in sentence
    (fault,) = scene.result()["faults"]
    took = scene.result()["seconds"]["total"] - fault["start"]
    assert took < cell.limit
    record("emulated", cell.fault, sentence, took, cell.limit)


@pytest.fixture
def small_disk(scene: Scene) -> Iterator[Path]:
    scene.runs.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1200k", "velodrome-test", scene.runs], check=True)
    yield scene.runs
    subprocess.run(["umount", scene.runs], check=True)


@needs_root
def test_emulated_full_disk(velodrome: Any, scene: Scene, small_disk: Path) -> None:
    began = time.monotonic()
    done = velodrome(
        *scene.words("torch", "ddp", "--model", "dense-300-100", "--epochs", 50, "--on", "emulated:nodes=2")
    )
    assert done.code == 1, done.text
    sentence = sentence_of(done.err)
    assert "No space left on device" in sentence
    assert "worker 0 on node1" in sentence
    record("emulated", "full disk", sentence, time.monotonic() - began, 120)


@needs_root
def test_emulated_kill_controller(velodrome: Any, scene: Scene) -> None:
    controller = scene.start(*scene.words("torch", "ddp", *LONG, "--on", "emulated:nodes=2,latency=1ms"))
    scene.until(training)
    os.kill(controller.pid, signal.SIGKILL)
    controller.wait()
    began = time.monotonic()
    scene.until_gone(SLACK)
    took = time.monotonic() - began
    done = velodrome("train", "--runs", scene.runs, "--name", "next", "--epochs", 1)
    assert done.code == 0, done.text
    sentence = next(line for line in done.err.splitlines() if "was interrupted" in line)
    record("emulated", "kill controller", f"no process is left, and the next command prints: {sentence}", took, SLACK)
