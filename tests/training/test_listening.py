"""Frameworks that would listen on all interfaces listen at the address of the plan."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from velodrome.training import listening
from velodrome.transport.sockets import listening_address

#: Opens a server of a framework inside and outside the block, and prints whether each is exposed.
SCENE = """
import json, socket, sys
from velodrome.training import listening

def free():
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return trial.getsockname()[1]

def tensorflow(port):
    import tensorflow as tf
    cluster = tf.train.ClusterSpec({"worker": [f"127.0.0.1:{port}"]})
    return tf.distribute.Server(cluster, job_name="worker", task_index=0)

def torch(port):
    import torch.distributed
    return torch.distributed.TCPStore("127.0.0.1", port, 1, is_master=True, wait_for_workers=False)

first, second, third = free(), free(), free()
start = globals()[sys.argv[1]]
with listening.listening_at("127.0.0.1"):
    inside = start(first)
    with socket.create_server(("", second)):
        users_own = listening.is_exposed(second)
socket.create_connection(("127.0.0.1", first), 20).close()
outside = start(third)
print(json.dumps([listening.is_exposed(first), users_own, listening.is_exposed(third)]), flush=True)
import os
os._exit(0)
"""


@pytest.mark.integration
@pytest.mark.parametrize("framework", ["tensorflow", "torch"])
def test_a_framework_listens_at_the_address_inside_the_block_alone(framework: str) -> None:
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    done = subprocess.run([sys.executable, "-c", SCENE, framework], capture_output=True, text=True, timeout=200,
                          env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [False, True, True], "inside; a server of the user's own; outside"


@pytest.mark.parametrize(
    ("package", "libraries"),
    [("tensorflow", ["libtensorflow_cc.so.2", "libtensorflow_framework.so.2"]), ("torch", ["lib/libtorch_cpu.so"])],
)
def test_the_libraries_of_a_framework_call_bind_through_an_entry_that_can_be_redirected(
    package: str, libraries: list[str]
) -> None:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed")
    for library in libraries:
        assert listening.bind_entries(Path(spec.origin).parent / library), library


def test_what_is_no_library_has_no_entries(tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("GROUP ( libc.so.6 )" * 10)
    assert listening.bind_entries(tmp_path / "text.so") == []


def _ipv4(host: str) -> bytes:
    return struct.pack("=H", socket.AF_INET) + struct.pack(">H", 80) + socket.inet_aton(host) + bytes(8)


def _ipv6(host: str) -> bytes:
    packed = socket.inet_pton(socket.AF_INET6, host)
    return struct.pack("=H", socket.AF_INET6) + struct.pack(">HI", 80, 7) + packed + struct.pack("=I", 3)


@pytest.mark.parametrize(
    ("asked", "host", "both", "given"),
    [
        pytest.param(_ipv4("0.0.0.0"), "127.0.0.1", False, _ipv4("127.0.0.1"), id="any"),
        pytest.param(_ipv4("10.0.0.7"), "127.0.0.1", False, _ipv4("10.0.0.7"), id="named"),
        pytest.param(_ipv6("::"), "10.0.0.7", True, _ipv6("::ffff:10.0.0.7"), id="both-stacks"),
        pytest.param(_ipv6("::"), "127.0.0.1", False, _ipv6("::1"), id="ipv6-only"),
        pytest.param(_ipv6("::"), "fd00::7", True, _ipv6("fd00::7"), id="host-of-ipv6"),
        pytest.param(_ipv4("0.0.0.0"), "fd00::7", False, _ipv4("127.0.0.1"), id="ipv4-on-host-of-ipv6"),
        pytest.param(struct.pack("=H", socket.AF_UNIX) + b"/a\0", "127.0.0.1", False,
                     struct.pack("=H", socket.AF_UNIX) + b"/a\0", id="unix"),
    ],
)
def test_any_address_becomes_that_of_the_host_and_others_stay(
    asked: bytes, host: str, both: bool, given: bytes
) -> None:
    assert listening.with_host(asked, host, lambda: both) == given


def test_only_an_address_of_this_machine_is_listened_at() -> None:
    assert listening_address("127.0.0.1") == "127.0.0.1"
    assert listening_address("127.0.0.9") == "127.0.0.9"
    assert listening_address("203.0.113.5") == ""
    assert listening_address("localhost") == "", "a name may have another address on other hosts"
