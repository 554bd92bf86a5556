"""/dev/shm is small, full or read-only, as in a container, or MPI cannot be loaded: `allreduce` does
without, or one sentence says why not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from scene import HERE, Scene

from velodrome.catalog import segments

pytest.importorskip("mpi4py")
pytestmark = [
    pytest.mark.e2e, pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system, which only root may"),
]

WORKERS = 2
#: Just enough for MPI, rounded up to whole pages.
ENOUGH_FOR_MPI = -(-segments.needed(WORKERS) // 4096) * 4096


def train(scene: Scene, options: str, engine: str = "torch") -> subprocess.CompletedProcess[str]:
    """The command where another file system is mounted on /dev/shm, which no other process sees."""
    script = f'mount -t tmpfs -o {options} velodrome-test {segments.FOLDER} && exec "$@"'
    words = scene.words(engine, "allreduce", "--model", "dense-300-100", "--epochs", 1, "--json", workers=WORKERS)
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", sys.executable, "-m", "velodrome", *words],
        cwd=HERE, text=True, capture_output=True, timeout=280, check=False,
    )


@pytest.mark.parametrize(
    ("options", "why"),
    [
        pytest.param("size=1m", "has 1.0 MiB free", id="small"),
        pytest.param("size=64m,ro", "cannot be used (Read-only file system)", id="read-only"),
    ],
)
def test_a_host_without_enough_shared_memory_for_mpi_is_refused_in_one_sentence(scene, options: str, why: str) -> None:
    done = train(scene, options)
    assert done.returncode == 2
    assert done.stderr.startswith(f"velodrome: /dev/shm {why}, but MPI needs 2.0 MiB of shared memory")
    assert len(done.stderr.splitlines()) == 1
    assert not scene.path.exists()


@pytest.mark.parametrize("engine", ["torch", pytest.param("tensorflow", marks=pytest.mark.slow)])
def test_workers_that_cannot_share_parameters_train_over_mpi(scene: Scene, engine: str) -> None:
    """Also proves that MPI takes no more than is looked for: it would be ended by SIGBUS."""
    done = train(scene, f"size={ENOUGH_FOR_MPI}", engine)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.strip().splitlines()[-1])
    assert result["implementation"]["path"] == "mpi"
    warnings = [event["message"] for event in scene.events() if event["kind"] == "warning"]
    if engine == "torch":
        assert any("of shared memory, and /dev/shm has 0 bytes free" in message for message in warnings), warnings


def test_an_mpi_that_cannot_be_loaded_is_found_before_the_start(
    velodrome, runs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MPI4PY_LIBMPI", str(tmp_path / "libmpi.so"))
    done = velodrome("train", "--engine", "torch", "--strategy", "allreduce", "--workers", 2, "--runs", runs)
    assert done.code == 2, done.text
    assert 'velodrome: MPI cannot be loaded (cannot load MPI library): pip install "velodrome[mpi]" into ' in done.err
    assert done.err.rstrip().endswith("or choose a strategy without MPI (velodrome engines)")
    assert not runs.exists()
    race = ("race", "--engine", "torch", "--vary", "strategy=ddp,allreduce", "--vary", "workers=2", "--runs", runs,
            "--dry-run", "--skip-unavailable")
    said = velodrome(*race).err
    assert "left out: MPI cannot be loaded (" in said
    assert "(1 of 3 jobs: torch/allreduce)" in said
    monkeypatch.delenv("MPI4PY_LIBMPI")
    assert "left out" not in velodrome(*race).err
