"""Who listens where while a job of this machine trains: what docs/reference/ports.md states, and nothing on a network.

Jobs run in the tests' own network namespace; a neighbour in another one, connected by a pair of virtual interfaces,
tries every port that it could find.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Any

import pytest
from scene import LONG, Scene, training

from velodrome.clusters import environments
from velodrome.training.listening import EXPOSED

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "docs"), str(ROOT / "tests" / "servers")]
import engine_environments  # noqa: E402
from engine_matrix import Row, rows  # noqa: E402

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
PAGE = ROOT / "docs" / "reference" / "ports.md"
#: Rows that the quick tests train; the others are slow.
QUICK = {"tensorflow/parameter-server", "torch/ddp"}
OURS, THEIRS = "10.213.71.1", "10.213.71.2"
#: The neighbour: reads ports, and answers which of them it can connect to at our address.
NEIGHBOUR = """
import json, socket, sys
print("ready", flush=True)
for line in sys.stdin:
    reached = []
    for port in json.loads(line):
        try:
            socket.create_connection((sys.argv[1], port), timeout=10).close()
            reached.append(port)
        except ConnectionRefusedError:
            pass
    print(json.dumps(reached), flush=True)
"""


class Neighbour:
    """A process in another network namespace, which reaches ours over one link."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(["unshare", "--net", sys.executable, "-c", NEIGHBOUR, OURS],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"
        pid = str(self.process.pid)
        for words in (["link", "add", "near", "type", "veth", "peer", "name", "far", "netns", pid],
                      ["addr", "add", f"{OURS}/24", "dev", "near"], ["link", "set", "near", "up"],
                      ["route", "add", "default", "via", THEIRS]):
            subprocess.run(["ip", *words], check=True)
        for words in (["addr", "add", f"{THEIRS}/24", "dev", "far"], ["link", "set", "far", "up"]):
            subprocess.run(["nsenter", "-t", pid, "-n", "ip", *words], check=True)

    def reaches(self, ports: list[int]) -> list[int]:
        """Those of the ports that it can connect to; the others refuse it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(ports) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        self.process.kill()  # its namespace ends with it, and the link with that
        self.process.communicate()


@pytest.fixture(scope="module")
def neighbour() -> Iterator[Neighbour]:
    alone = [name for _, name in socket.if_nameindex()] == ["lo"]
    if not alone or not all(map(shutil.which, ("ip", "unshare", "nsenter"))):
        pytest.skip("a network of our own, and a neighbour in it, need root, iproute2 and util-linux")
    found = Neighbour()
    yield found
    found.close()


def listeners(process: int | str = "self") -> dict[tuple[str, int], int]:
    """Every listening socket of a process's network namespace: its address and port, and its inode."""
    found = {}
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process}/net", name).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A":
                address, port = words[1].split(":")
                raw = b"".join(bytes.fromhex(address)[at : at + 4][::-1] for at in range(0, len(address) // 2, 4))
                host = ip_address(raw)
                if isinstance(host, IPv6Address) and host.ipv4_mapped:
                    host = host.ipv4_mapped
                found[str(host), int(port, 16)] = int(words[9])
    return found


def who(inodes: dict[int, tuple[str, int]]) -> dict[tuple[str, int], str]:
    """Which process each socket belongs to: its role in the job, or what it is."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            for descriptor in (process / "fd").iterdir():
                target = str(descriptor.readlink())
                if target.startswith("socket:[") and (place := inodes.get(int(target[8:-1]))):
                    role = re.search(r"--role (\S+)", line)
                    server = "velodrome.transport.rendezvous_server" in line
                    found[place] = "rendezvous" if server else role[1] if role else line
    return found


def stated(name: str) -> set[str]:
    """Who listens in a local job of a row, as the page has it."""
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| ") and name in cells[0].replace("`", "").split(", "):
            return set(cells[1].split(", "))
    raise AssertionError(f"{PAGE.name} has no row for {name}")


def observe(scene: Scene, process: subprocess.Popen[str], before: set[tuple[str, int]]) -> dict[tuple[str, int], str]:
    """Who listens until the job trains, and for a moment longer."""
    found: dict[tuple[str, int], str] = {}
    deadline = time.monotonic() + 200
    trains = False
    while not trains:
        trains = training(scene.events())
        places = {place: inode for place, inode in listeners().items() if place not in before and place not in found}
        if places:
            found |= who({inode: place for place, inode in places.items()})
        assert process.poll() is None, process.stdout.read() if process.stdout else ""
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def check(scene: Scene, words: list[str], name: str | None, neighbour: Neighbour) -> None:
    before = set(listeners())
    process = scene.start(*words)
    found = observe(scene, process, before)
    assert found, "nobody listens"
    assert {host for host, _ in found} == {"127.0.0.1"}, found
    assert name is None or set(found.values()) <= stated(name), found
    ports = sorted(port for _, port in found)
    assert neighbour.reaches(ports) == []
    for port in ports:  # not from this machine either, at its address of the network
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((OURS, port), timeout=10)
    for port in {port for _, port in listeners()} & set(ports):  # some were for the start only
        with suppress(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=10).close()
    with socket.create_server((OURS, 0)) as open_port:
        number = open_port.getsockname()[1]
        assert neighbour.reaches([number]) == [number], "the neighbour cannot reach anything at all"
    warnings = [event["message"] for event in scene.events() if event["kind"] == "warning"]
    assert not [one for one in warnings if "network interfaces" in one]
    process.terminate()
    process.wait(60)
    scene.until_gone()


@pytest.mark.parametrize("row", [
    pytest.param(row, id=row.name, marks=[] if row.name in QUICK else [pytest.mark.slow])
    for row in rows() if row.strategy.listens
])
def test_a_local_job_listens_on_loopback_and_as_the_page_states(
    scene: Scene, row: Row, neighbour: Neighbour, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environments.FOLDER, str(engine_environments.HOME))
    if reason := engine_environments.unavailable(row.engine, row.strategy):
        pytest.skip(reason)
    words = ["train", *row.words, "--dataset", "digits", *LONG, "--name", scene.name, "--runs", str(scene.runs)]
    check(scene, [str(word) for word in words], row.name, neighbour)


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "example"), [("torch", "script_ddp.py"), ("tensorflow", "script_tensorflow.py")])
def test_a_script_of_the_users_own_listens_on_loopback(
    scene: Scene, engine: str, example: str, neighbour: Neighbour
) -> None:
    script = ROOT / "src" / "velodrome" / "example_files" / example
    words: list[Any] = ["train", "--script", script, "--script-args", "--epochs 5000", "--engine", engine, "--workers",
                        2, "--name", scene.name, "--runs", scene.runs]
    check(scene, [str(word) for word in words], "script", neighbour)


#: Trains inside the command, on a system on which frameworks can or cannot be made to listen at one address.
DEBUG = """
import sys
from velodrome.cli.main import main
from velodrome.training import listening
if sys.argv.pop(1) == "cannot":
    listening._JUMP_SLOT = {}
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("able", ["can", "cannot"])
def test_where_a_framework_listens_everywhere_after_all_the_job_trains_and_warns_once(scene: Scene, able: str) -> None:
    words = scene.words("tensorflow", "multi-worker-mirrored", "--dataset", "digits", "--epochs", 1, "--on", "debug",
                        workers=1)
    done = subprocess.run([sys.executable, "-c", DEBUG, able, *words], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    # The framework's sockets are looked at, and not whether their calls were redirected.
    warned = [event["message"] for event in scene.events() if event["kind"] == "warning"]
    assert warned == ([] if able == "can" else [EXPOSED])
    assert scene.result()["status"] == "finished"


@pytest.mark.slow
def test_a_ray_cluster_of_its_own_is_on_loopback(scene: Scene, neighbour: Neighbour) -> None:
    pytest.importorskip("ray")
    check(scene, scene.words("torch", "ddp", "--dataset", "digits", *LONG, "--on", "ray"), None, neighbour)


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "strategy"), [
    ("tensorflow", "multi-worker-mirrored"), ("tensorflow", "parameter-server"), ("torch", "ddp"),
    ("torch", "allreduce"),
])
def test_on_several_hosts_each_process_listens_at_the_address_of_its_host(
    velodrome: Any, scene: Scene, engine: str, strategy: str
) -> None:
    words = ["--engine", engine, "--strategy", strategy, "--workers", 2, "--dataset", "digits", *LONG]
    done = velodrome("plan", *words, "--hosts", "127.0.0.2,127.0.0.3", "--runs", scene.runs, "--name", scene.name,
                     "--python", sys.executable, "--json")
    processes = done.json()["processes"]
    for process in processes:
        scene.started.append(subprocess.Popen(["bash", "-c", process["command"]], stdin=subprocess.DEVNULL,
                                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    deadline = time.monotonic() + 200
    while not any('"progress"' in file.read_text() for file in scene.path.glob("events-*.jsonl")):
        assert all(process.poll() is None for process in scene.started)
        assert time.monotonic() < deadline
        time.sleep(0.1)
    found = who({inode: place for place, inode in listeners().items()})
    # Gloo and MPICH choose an interface, whose first address is 127.0.0.1.
    more = set() if engine == "tensorflow" else {"127.0.0.1"}
    if engine == "tensorflow":
        assert len(found) == len(processes)
    assert {host for host, _ in found} <= {"127.0.0.2", "127.0.0.3"} | more, found
    for process in scene.started:
        process.terminate()
        process.wait(60)
