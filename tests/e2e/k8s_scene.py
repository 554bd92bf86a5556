"""Fixtures of the tests on a real Kubernetes with two nodes."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from velodrome.clusters.k8s.api import Api
from velodrome.clusters.k8s.manifests import MANAGED, MANAGER

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "servers"))
import kubernetes_cluster as server
import kubernetes_environment

MARKS = [
    pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("k8s"),
    pytest.mark.skipif(bool(server.unavailable()), reason=server.unavailable() or "available"),
]
#: How the cluster of the tests is called in clusters.yaml.
NAME = "kube"


class Kube:
    """The cluster as tests use it."""

    def __init__(self, running: server.Kubernetes, file: Path) -> None:
        self.running, self._file = running, file
        self.variables = {"KUBECONFIG": str(running.kubeconfig), "VELODROME_CLUSTERS": str(file)}
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("KUBECONFIG", str(running.kubeconfig))
            self.api = Api.connect(None, None)
        self.define()

    def define(self, **fields: Any) -> None:
        """Let `kube` in clusters.yaml have these options too."""
        self._file.write_text(yaml.safe_dump({NAME: kubernetes_environment.cluster(**fields)}))

    def do(self, line: str) -> None:
        self.running.do(line)

    def pods(self) -> dict[str, Any]:
        """The pods of runs, by the name of their process."""
        return {pod["metadata"]["labels"]["velodrome/pod"]: pod for pod in self.api.list("Pod", f"{MANAGED}={MANAGER}")}

    def node_of(self, pod: str) -> str:
        return str(self.pods()[pod]["spec"]["nodeName"])

    def left(self) -> list[str]:
        """What is there of runs."""
        kinds = ("Job", "Service", "ConfigMap", "NetworkPolicy", "Pod")
        return [f"{kind} {item['metadata']['name']}" for kind in kinds
                for item in self.api.list(kind, f"{MANAGED}={MANAGER}")]

    def pid(self, run: str, role: str, rank: int) -> int:
        """A process of a run, as this machine numbers it."""
        wanted = f" --run {run} --role {role} --rank {rank} "
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if wanted in line and self.running.folder.name in (entry / "cgroup").read_text():
                    return int(entry.name)
        raise LookupError(wanted)

    def send(self, number: signal.Signals, run: str, role: str, rank: int) -> Callable[[], None]:
        return lambda: os.kill(self.pid(run, role, rank), number)

    def delete_pod(self, pod: str, grace: int = 1) -> None:
        self.api.delete("Pod", self.pods()[pod]["metadata"]["name"], grace=grace)


@contextmanager
def running(file: Path) -> Iterator[Kube]:
    """A cluster, defined in a clusters.yaml; nothing of it is left."""
    server.remove_leftovers()
    cluster = server.Kubernetes()
    try:
        yield Kube(cluster, file)
    finally:
        cluster.close()
    assert not cluster.folder.exists()


@pytest.fixture(scope="module")
def kube_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kube]:
    with running(tmp_path_factory.mktemp("k8s") / "clusters.yaml") as kube:
        yield kube


@pytest.fixture
def kube(kube_cluster: Kube, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kube]:
    """Nothing of a run is left in the cluster."""
    cluster = kube_cluster
    for name, value in cluster.variables.items():
        monkeypatch.setenv(name, value)
    cluster.define()
    yield cluster
    deadline = time.monotonic() + 30
    while left := cluster.left():
        assert time.monotonic() < deadline, f"left: {left}"
        time.sleep(0.2)
