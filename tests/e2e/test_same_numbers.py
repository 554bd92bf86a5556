"""The same numbers everywhere: every strategy of TensorFlow and PyTorch under every launcher, on hosts with their own
addresses. Synchronous strategies end with the weights of `local`, and every result has all that one of `local` has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import k8s_scene
import numpy as np
import pytest
from safetensors.numpy import load_file

from velodrome.catalog import registry
from velodrome.clusters.emulated.network import missing_tools
from velodrome.clusters.emulated.node import GROUPS, PREFIX

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "servers"))
import ray_hosts
import slurm
import sshd

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]
JOB = ("--dataset", "digits", "--epochs", 2, "--seed", 7, "--optimizer", "sgd", "--learning-rate", 0.1,
       "--batch-size", 100)
#: One process with several devices, or a single one: there is nothing to put on a second host.
ONE_PROCESS = ("single", "mirrored", "central-storage")
#: Workers are ahead of each other, or combine their weights now and then.
NOT_SYNCHRONOUS = ("parameter-server",)
STRATEGIES = [
    (engine, strategy.name)
    for engine in ("tensorflow", "torch") for strategy in registry.engine(engine).strategies if strategy.name != "tpu"
]


@dataclass(frozen=True)
class Place:
    """Where commands run, and what they need."""

    on: str
    folder: Path
    enter: Callable[[list[str]], list[str]]
    variables: dict[str, str]
    #: What must be gone when a job is over, as sentences.
    left: Callable[[], list[str]]

    def train(self, name: str, *words: object, on: str | None = None) -> dict[str, Any]:
        command = [sys.executable, "-m", "velodrome", "train", *map(str, (*JOB, *words)), "--json", "--name", name,
                   "--runs", str(self.folder / "runs"), *(["--on", on] if on else [])]
        done = subprocess.run(
            self.enter(command), cwd=self.folder, capture_output=True, text=True, timeout=600,
            env={**os.environ, "NO_COLOR": "1", **self.variables},
        )
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return found


def _plain(words: list[str]) -> list[str]:
    return words


def _groups() -> list[str]:
    return [str(path) for path in [*GROUPS.glob(f"{PREFIX}*"), *GROUPS.glob(f"*/{PREFIX}*")]
            if f"-{os.getpid()}-" in path.name]


@contextmanager
def emulated(folder: Path) -> Iterator[Place]:
    yield Place("emulated:nodes=3", folder, _plain, {}, _groups)


@contextmanager
def over_ssh(folder: Path) -> Iterator[Place]:
    (folder / "hosts").mkdir()
    with sshd.ssh_hosts(folder / "hosts") as hosts:
        variables = {"VELODROME_CLUSTERS": str(hosts.home / "clusters.yaml")}

        def left() -> list[str]:
            lines = [line for name in hosts.names for line in hosts.command_lines(name)]
            sockets = [str(path) for path in Path("/tmp").glob("velodrome-ssh-*/*")]
            return [line for line in lines if "velodrome" in line] + sockets

        yield Place("lab", folder, hosts.controller.enter, variables, left)


@contextmanager
def on_slurm(folder: Path) -> Iterator[Place]:
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    before, os.environ["PATH"] = os.environ["PATH"], path
    running = slurm.Slurm(nodes=2)
    try:
        yield Place("slurm:time=20,nodes=2", folder, _plain, running.environment, running.jobs)
    finally:
        running.close()
        os.environ["PATH"] = before


@contextmanager
def on_ray(folder: Path) -> Iterator[Place]:
    (folder / "hosts").mkdir()
    with ray_hosts.ray_hosts(folder / "hosts") as hosts:
        variables = {"VELODROME_CLUSTERS": str(hosts.home / "clusters.yaml")}

        def left() -> list[str]:
            return [line for node in hosts.nodes for line in hosts.workers(node.name).values()]

        yield Place("farm", folder, hosts.controller.enter, variables, left)


@contextmanager
def on_k8s(folder: Path) -> Iterator[Place]:
    with k8s_scene.running(folder / "clusters.yaml") as kube:
        yield Place(k8s_scene.NAME, folder, _plain, kube.variables, kube.left)


def _without_root() -> str:
    able = sys.platform == "linux" and os.geteuid() == 0 and not missing_tools()
    return "" if able else "emulated hosts need Linux, root, iproute2 and util-linux"


PLACES = {
    "emulated": (emulated, _without_root()), "ssh": (over_ssh, sshd.unavailable()),
    "slurm": (on_slurm, ", ".join(slurm.missing())), "ray": (on_ray, ray_hosts.unavailable()),
    "k8s": (on_k8s, k8s_scene.server.unavailable()),
}


@pytest.fixture(scope="module", params=[
    pytest.param(name, marks=pytest.mark.skipif(bool(why), reason=why or "available"))
    for name, (_, why) in PLACES.items()
])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with ExitStack() as stack:
        yield stack.enter_context(PLACES[request.param][0](tmp_path_factory.mktemp(request.param)))


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The run of a strategy on this machine, which is made once for all launchers."""
    home = Place("local", tmp_path_factory.mktemp("here"), _plain, {}, list)
    made: dict[str, Path] = {}

    def run(name: str, *words: object) -> Path:
        if name not in made:
            made[name] = Path(home.train(name, *words)["path"])
        return made[name]

    return run


def distance(one: Path, other: Path) -> float:
    """The largest relative distance of two runs' weights, as their last checkpoints have them."""
    first, second = (load_file(path / "checkpoints" / "epoch-0002.safetensors") for path in (one, other))
    names = [name for name in first if not name.startswith("generators")]
    assert names
    norm = np.linalg.norm
    return max(float(norm(first[name].astype("f8") - second[name].astype("f8"))
                     / (1e-12 + norm(first[name].astype("f8")))) for name in names)


@pytest.mark.parametrize(("engine", "strategy"), STRATEGIES, ids=[f"{engine}-{name}" for engine, name in STRATEGIES])
def test_a_strategy_on_several_hosts(place: Place, here: Callable[..., Path], engine: str, strategy: str) -> None:
    workers = 1 if strategy == "single" else 2
    words = ["--engine", engine, "--strategy", strategy, "--workers", workers]
    words += ["--servers", 1] if strategy == "parameter-server" else []
    words += ["--sync-every", 5] if strategy in ("local-sgd", "diloco") else []
    name = f"{engine}-{strategy}"
    result = place.train(name, *words, on=place.on)
    path = Path(result["path"])
    assert result["status"] == "finished"
    checked = subprocess.run(
        [sys.executable, "-m", "velodrome", "runs", "check", name, "--runs", str(path.parent)], capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    if strategy not in ONE_PROCESS:
        assert len({node["host"] for node in result["nodes"]}) >= 2
        moved = sum(node["network_bytes"]["out"] for node in result["nodes"])
        assert moved > 4 * result["parameters"], "nothing crossed the network"
    for node in result["nodes"]:
        assert node["memory_bytes"]["max"] > 0
        assert node["cpu_percent"]["mean"] is not None
    assert all(host["cpu"]["seconds"] > 0 for host in result["hosts"])
    assert result["launcher"] == place.on.partition(":")[0] or place.on in ("lab", "farm", "kube")
    if strategy not in NOT_SYNCHRONOUS:
        assert distance(here(name, *words), path) < 1e-5
    else:
        assert result["test"]["accuracy"] > 0.2
    assert place.left() == []
