"""Emulated hosts reach storage outside of the cluster over their own links; the machine's network stays as it was."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from velodrome.clusters.emulated import EmulatedCluster
from velodrome.clusters.emulated.network import Network, check_storage, missing_tools, names_of_machine, storage_of
from velodrome.clusters.emulated.node import Node
from velodrome.errors import BadRequest, Unavailable

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "servers"))
import hdfs as server

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
needs_root = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0 or bool(missing_tools()) or not Path("/usr/sbin/iptables").exists(),
    reason="a gateway needs Linux, root, iproute2, util-linux and iptables",
)
_SERVE = """
import socket
with socket.create_server(("10.79.0.2", 4711)) as listener:
    print("ready", flush=True)
    while True:
        link, (peer, _) = listener.accept()
        with link:
            size = 0
            while data := link.recv(1 << 16):
                size += len(data)
            link.sendall(f"{size} from {peer}".encode())
"""
_ASK = """
import socket
with socket.create_connection(("10.79.0.2", 4711), timeout=10) as link:
    link.sendall(bytes(3_000_000))
    link.shutdown(socket.SHUT_WR)
    print(link.recv(100).decode())
"""
_REFUSED = """
import socket
try:
    with socket.create_connection(("10.79.0.2", 9), timeout=10) as link:
        print(repr(link.recv(10)))
except ConnectionError as error:
    print(type(error).__name__)
"""


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Node]:
    with server.storage_host(tmp_path) as host:
        yield host


def inside(node: Node, script: str) -> str:
    words = node.enter([sys.executable, "-c", script])
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    return (done.stdout or done.stderr).strip()


def routes() -> list[str]:
    """Where this machine sends packets; whether a link carries any yet, which changes by itself, is left out."""
    lines = subprocess.run(["ip", "route"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line.removesuffix(" ").removesuffix(" linkdown") for line in lines]


@needs_root
@pytest.mark.parametrize("latency", [None, 0.002], ids=["bridge", "with latency"])
def test_nodes_reach_a_server_outside_over_their_own_links(storage: Node, latency: float | None) -> None:
    words = storage.enter([sys.executable, "-c", _SERVE])
    before = routes()
    network = Network(EmulatedCluster(nodes=2, latency=latency))
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as outside:
        try:
            assert outside.stdout is not None
            assert outside.stdout.readline() == "ready\n"
            assert "unreachable" in inside(network.nodes[1], _ASK)
            network.open_gateway()
            network.open_gateway()  # once is enough
            # The server sees this machine, and the node's own counter has what it sent.
            assert inside(network.nodes[1], _ASK) == "3000000 from 10.79.0.1"
            assert network.nodes[1].traffic()["out"] > 3_000_000
            assert network.nodes[0].traffic()["out"] < 100_000
            assert inside(network.nodes[0], _REFUSED) == "ConnectionResetError"
            assert routes() == before
        finally:
            network.close()
            outside.kill()


@needs_root
@pytest.mark.slow
@pytest.mark.skipif(bool(server.unavailable()), reason=server.unavailable() or "available")
def test_workers_read_their_files_from_a_real_hdfs(
    velodrome: Any, runs: Path, no_strays: None, storage: Node, tmp_path: Path
) -> None:
    (tmp_path / "hdfs").mkdir()
    with server.hdfs(tmp_path / "hdfs", 1, storage) as cluster:
        url = f"{cluster.hdfs}/data/digits"
        done = velodrome("data", "shard", "digits", "--shards", 4, "--to", url, "--encoding", "raw")
        assert done.code == 0, done.text
        job = ["--dataset", f"shards:{url}", "--engine", "torch", "--strategy", "ddp", "--workers", 2, "--epochs", 2,
               "--optimizer", "sgd", "--runs", runs, "--json"]
        found = []
        for name, on in (("here", "local"), ("there", "emulated:nodes=2")):
            done = velodrome("train", *job, "--name", name, "--on", on)
            assert done.code == 0, done.text
            found.append(done.json())
    here, there = found
    assert there["test"]["correct"] == here["test"]["correct"]
    moved = 4 * there["parameters"] * there["steps"]
    assert all(host["network_bytes"]["in"] > moved / 2 + 50_000 for host in there["hosts"])


@pytest.mark.unit
def test_storage_that_nodes_cannot_reach_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert storage_of("shards:hdfs://namenode:9000/data") == "hdfs://namenode:9000/data"
    assert storage_of("shards:/data/mnist") is None
    assert storage_of("mnist") is None
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/sbin/{name}")
    check_storage("hdfs://namenode:9000/data")
    for url in ("hdfs://127.0.0.1:9000/data", "webhdfs://localhost/data"):
        with pytest.raises(BadRequest, match="is an address of loopback"):
            check_storage(url)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:5000")
    with pytest.raises(BadRequest, match=r"'http://127\.0\.0\.1:5000' is an address of loopback"):
        check_storage("s3://bucket/data")
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(Unavailable, match="with iptables only: install it"):
        check_storage("hdfs://namenode:9000/data")


@pytest.mark.unit
def test_nodes_know_the_names_that_this_machine_has_a_table_of(tmp_path: Path) -> None:
    table = tmp_path / "hosts"
    table.write_text("127.0.0.1 localhost\n# none\n::1 ip6\n10.1.2.3 namenode  # storage\n\n")
    assert names_of_machine(table) == "10.1.2.3 namenode  # storage\n"
