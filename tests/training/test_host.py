"""What a process reports of its host when it starts, and how it avoids instructions that its processor lacks."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import pytest

from velodrome.events import parse_event
from velodrome.events.models import HelloEvent
from velodrome.job.job import Job
from velodrome.training import host


@pytest.fixture
def gpus(tmp_path: Path) -> Path:
    """What NVIDIA's driver shows of two GPUs."""
    for number, model in enumerate(("NVIDIA A100", "Tesla T4")):
        folder = tmp_path / f"0000:0{number}:00.0"
        folder.mkdir()
        (folder / "information").write_text(f"Model: \t\t {model}\nIRQ:   \t\t 24\n")
    return tmp_path


@pytest.mark.unit
@pytest.mark.parametrize(
    ("visible", "names"),
    [
        pytest.param(None, ["NVIDIA A100", "Tesla T4"], id="all"),
        pytest.param("1", ["Tesla T4"], id="one"),
        pytest.param("1,0", ["Tesla T4", "NVIDIA A100"], id="reordered"),
        pytest.param("0,7", ["NVIDIA A100"], id="one that is not there"),
        pytest.param("", [], id="none"),
        pytest.param("-1", [], id="none, by number"),
        pytest.param("GPU-8932f937", ["NVIDIA A100", "Tesla T4"], id="by identifier"),
    ],
)
def test_gpus_are_those_of_the_driver_that_the_process_may_use(
    gpus: Path, visible: str | None, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert host.gpu_names(gpus) == names
    assert host.gpu_names(gpus / "no driver") == []


@pytest.mark.unit
@pytest.mark.parametrize("job", [None, "{", '{"engine": "nonsense"}'])
def test_a_process_without_a_readable_job_still_says_what_it_runs_on(job: str | None) -> None:
    said = host.describe_process(job)
    assert set(said["versions"]) == {"velodrome", "numpy"}
    assert said["versions"]["numpy"] == metadata.version("numpy")


@pytest.mark.unit
@pytest.mark.parametrize(
    ("asked", "seconds"),
    [(None, 1.0), ("0.02", 0.02), ("0", 0.0), ("-3", 0.0), ("often", 1.0), ("nan", 1.0), ("inf", 1.0)],
)
def test_it_says_how_often_its_heart_will_beat(
    monkeypatch: pytest.MonkeyPatch, asked: str | None, seconds: float
) -> None:
    monkeypatch.delenv("VELODROME_MEASURE", raising=False)
    if asked is not None:
        monkeypatch.setenv("VELODROME_MEASURE", asked)
    assert host.describe_process(None)["heartbeat_seconds"] == seconds


@pytest.mark.integration
def test_hello_comes_first_even_from_a_process_that_fails_at_once() -> None:
    command = [sys.executable, "-m", "velodrome.training", "--run", "r", "--role", "worker", "--rank", "1"]
    environment = {**os.environ, "VELODROME_JOB": Job(engine="torch").model_dump_json(), "VELODROME_WORLD": "[]"}
    done = subprocess.run(
        [*command, "--folder", "/tmp"], env=environment, capture_output=True, text=True, timeout=280
    )
    events = [parse_event(line) for line in done.stdout.splitlines()]
    assert [event.kind for event in events if event] == ["hello", "error"]
    said = events[0]
    assert isinstance(said, HelloEvent)
    assert (said.role, said.rank, said.host) == ("worker", 1, socket.gethostname())
    assert abs(said.clock - time.time()) < 60
    assert (said.interpreter, said.python) == (sys.executable, sys.version.split()[0])
    assert {"velodrome", "numpy"} <= set(said.versions)
    assert said.cores == len(os.sched_getaffinity(0))
    assert said.memory_bytes > 2**28


@pytest.mark.unit
@pytest.mark.parametrize(("announced", "there", "given", "expected"), [
    (True, False, None, "AVX512_CORE_FP16"), (True, False, "AVX2", "AVX2"), (True, True, None, None),
    (True, None, None, None), (False, False, None, None),
])
def test_amx_is_avoided_only_where_it_is_announced_and_missing(
    monkeypatch: pytest.MonkeyPatch, announced: bool, there: bool | None, given: str | None, expected: str | None
) -> None:
    monkeypatch.setattr(host, "announces_tiles", lambda: announced)
    monkeypatch.setattr(host, "has_tiles", lambda: there)
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    if given is not None:
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", given)
    host.avoid_missing_tiles()
    assert os.environ.get("ONEDNN_MAX_CPU_ISA") == expected


@pytest.mark.unit
def test_flags_are_those_of_the_processor(tmp_path: Path) -> None:
    about = tmp_path / "cpuinfo"
    about.write_text("model name: amx_tile\nflags\t\t: fpu amx_tile sse\n")
    assert host.announces_tiles(about)
    about.write_text("flags\t\t: fpu amx_tiles sse\n")
    assert not host.announces_tiles(about)
    assert not host.announces_tiles(tmp_path / "missing")


@pytest.mark.unit
@pytest.mark.skipif(platform.machine() != "x86_64", reason="CPUID is an instruction of x86-64")
def test_the_processor_answers() -> None:
    assert host._cpuid(0) >= 0xD, "a processor of x86-64 with AVX"
    assert host.has_tiles() in (True, False)


@pytest.mark.integration
def test_products_in_bfloat16_work_here() -> None:
    pytest.importorskip("torch")
    program = ("from velodrome.training.host import avoid_missing_tiles; avoid_missing_tiles(); import torch; "
               "print((torch.ones(64, 784, dtype=torch.bfloat16) @ torch.ones(784, 8, dtype=torch.bfloat16))[0, 0])")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert "tensor(784." in done.stdout, done.stderr
