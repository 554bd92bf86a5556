"""Files for people who start jobs themselves: each starts the same processes, with the addresses of its own hosts."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest
import yaml

from velodrome.api.train import plan
from velodrome.errors import BadRequest
from velodrome.job.job import Job

JOB = Job.model_validate({
    "engine": "tensorflow", "strategy": "parameter-server", "workers": 2, "servers": 1, "model": "m:it_is",
    "model_args": {"text": "it's \"odd\""},
})
#: Prints what it was started with, in place of a training process.
PYTHON = """#!/bin/sh
echo "$VELODROME_ROLE $VELODROME_RANK $TF_CONFIG" >> "$SEEN"
"""


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "python"
    path.write_text(PYTHON)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    return path


def started(script: str, seen: Path, **variables: str) -> list[str]:
    """The processes that a script starts, with the addresses that they know."""
    done = subprocess.run(["bash", "-c", script], env={**os.environ, **variables}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return sorted(seen.read_text().splitlines())


@pytest.mark.integration
def test_a_task_of_skypilot_starts_the_processes_of_its_node_with_real_addresses(python: Path, tmp_path: Path) -> None:
    file = yaml.safe_load(plan(JOB, ["a", "b"], python=str(python), name="x", format="skypilot")["file"])
    assert file["num_nodes"] == 2
    addresses = {"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2"}
    first = started(file["run"], tmp_path / "seen", SKYPILOT_NODE_RANK="0", **addresses)
    everyone = started(file["run"], tmp_path / "seen", SKYPILOT_NODE_RANK="1", **addresses)
    assert {line.split()[0] for line in first} == {"chief", "worker", "server"}
    assert len(everyone) == 4
    assert all("10.0.0.1:" in line and "10.0.0.2:" in line and "HOST" not in line for line in everyone)


@pytest.mark.integration
def test_a_batch_script_of_slurm_starts_them_with_the_addresses_of_its_allocation(python: Path, tmp_path: Path) -> None:
    file = plan(JOB, ["a", "b"], python=str(python), name="x", format="slurm")["file"]
    assert "#SBATCH --nodes=2" in file
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in {
        "scontrol": "echo n1; echo n2", "srun": 'shift; for SLURM_NODEID in 0 1; do export SLURM_NODEID; "$@"; done',
        "getent": 'echo "10.1.1.${2#n} STREAM $2"',
    }.items():
        (tools / name).write_text(f"#!/bin/bash\n{text}\n")
        (tools / name).chmod(0o755)
    lines = started(file, tmp_path / "seen", PATH=f"{tools}:{os.environ['PATH']}", SLURM_JOB_NODELIST="n[1-2]")
    assert [" ".join(line.split()[:2]) for line in lines] == ["chief 0", "server 0", "worker 0", "worker 1"]
    assert all("10.1.1.1:" in line and "10.1.1.2:" in line for line in lines)
    assert [line.split()[0] for line in file.splitlines() if "VELODROME_SECRET=" in line] == ["export"]


@pytest.mark.integration
def test_a_compose_file_has_a_service_for_each_host_and_their_names_as_addresses(python: Path, tmp_path: Path) -> None:
    file = yaml.safe_load(plan(JOB, ["a", "b"], python=str(python), name="X.y", format="compose")["file"])
    assert [*file["services"]] == ["host0", "host1"]
    assert len({service["environment"]["VELODROME_SECRET"] for service in file["services"].values()}) == 1
    for service in file["services"].values():
        assert "VELODROME_SECRET" not in str(service["command"])
        lines = started(service["command"][2].replace("$$", "$"), tmp_path / "seen")
    assert len(lines) == 4
    assert all("host0:" in line for line in lines)


def test_an_unknown_format_is_refused_with_the_known_ones() -> None:
    known = "slurm, skypilot, compose, k8s, jobset"
    with pytest.raises(BadRequest, match=f"--format 'nomad' is unknown; choose from {known}"):
        plan(JOB, ["a"], format="nomad")


def test_a_role_can_be_placed() -> None:
    made = plan(JOB, ["a", "b", "c"], place={"server": "c"})
    assert [one["host"] for one in made["processes"] if one["role"] == "server"] == ["c"]


def test_a_host_that_is_named_twice_is_refused() -> None:
    for format in (None, "slurm"):
        with pytest.raises(BadRequest, match="--hosts: 'a' is named twice; name each host once"):
            plan(JOB, ["a", "b", "a"], format=format)


def test_a_pin_is_refused_with_the_names_that_were_given() -> None:
    with pytest.raises(BadRequest, match="--place worker:1='zz': no host 'zz'; choose from a, b"):
        plan(JOB, ["a", "b"], format="slurm", place={"worker:1": "zz"})


@pytest.mark.parametrize(("fields", "commands"), [
    ({"engine": "tensorflow"}, ["pip install 'velodrome[tensorflow]'"]),
    ({"engine": "mxnet"}, ["pip install velodrome", "velodrome engines install mxnet"]),
    ({"engine": "horovod", "framework": "torch"},
     ["pip install velodrome", "velodrome engines install horovod --framework torch"]),
])
def test_a_task_of_skypilot_installs_what_the_engine_needs(fields: dict[str, str], commands: list[str]) -> None:
    job = Job.model_validate({"dataset": "fashion-mnist", "strategy": "single", "model": "lenet5", **fields})
    file = yaml.safe_load(plan(job, ["a"], format="skypilot")["file"])
    assert file["setup"].splitlines() == commands


def test_a_host_that_finishes_first_does_not_end_the_others() -> None:
    assert "--abort-on-container-failure" in plan(JOB, ["a", "b"], format="compose")["file"]
