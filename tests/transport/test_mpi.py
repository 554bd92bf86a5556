"""MPI without a launcher: real ranks find one another, add up, and leave no process and no memory behind."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path

import pytest

from velodrome.catalog import segments as segments_of

pytest.importorskip("mpi4py")
pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("secret")]

#: What a neighbour may try: silence, a rank without a proof, the protocol of MPICH, anything, a line without an end.
STRANGE = (b"", b"velodrome-mpi-2 liveness 1\n", b"liveness 1 00 00\n", b"cmd=abort exitcode=1\ncmd=finalize\n",
           os.urandom(5000), b"a" * 100_000)
RANK = Path(__file__).with_name("rank.py")


def free_port(host: str = "127.0.0.1") -> int:
    with socket.create_server((host, 0)) as server:
        return int(server.getsockname()[1])


def start(hosts: list[str], scenario: str, *, ranks: list[int] | None = None, seconds: float = 100, port: int = 0):
    port = port or free_port(hosts[0])
    # Without mpich's own folder on PATH: nothing but the library may be needed.
    environment = os.environ | {"PATH": "/usr/bin:/bin"}
    return [
        subprocess.Popen(
            [sys.executable, str(RANK), str(rank), ",".join(hosts), str(port), str(seconds), scenario],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
        )
        for rank in (range(len(hosts)) if ranks is None else ranks)
    ]


def finish(processes, code: int | None = 0) -> list[dict]:
    found = []
    for process in processes:
        try:
            output, _ = process.communicate(timeout=280)
        except subprocess.TimeoutExpired:
            for other in processes:
                other.kill()
            raise
        if code is not None:
            assert process.returncode == code, output
        lines = output.strip().splitlines()
        assert all(line.startswith("{") for line in lines), output
        found.append(json.loads(lines[-1]) if lines else {})
    return found


def segments() -> set[str]:
    return {path.name for path in Path("/dev/shm").glob("mpich_shm_*")}


def servers(seconds: float) -> list[str]:
    """The rendezvous servers of this test, recognised by a time limit that no other has."""
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    found = [line for line in listed.splitlines() if "velodrome.transport.rendezvous_server" in line]
    return [line for line in found if f"--seconds {seconds}" in line]


@pytest.mark.parametrize(
    "hosts",
    [
        pytest.param(["127.0.0.1"], id="one-rank"),
        pytest.param(["127.0.0.1"] * 2, id="two-on-one-host"),
        pytest.param(["127.0.0.1"] * 3, id="three-on-one-host"),
        pytest.param(["127.0.0.1", "127.0.0.2"], id="two-hosts"),
        pytest.param(["127.0.0.2", "127.0.0.3", "127.0.0.2"], id="two-hosts-interleaved"),
    ],
)
def test_sums_and_broadcasts_are_right_on_one_host_and_over_the_network(hosts):
    before = segments()
    found = finish(start(hosts, "sums"))
    size = len(hosts)
    assert segments() <= before
    for each in found:
        shares = size > 1 and len(set(hosts)) == 1
        assert each["seen"] == ([float(rank + 1) for rank in range(size)] if shares else None)
        assert each["whole"] == [sum(i + rank for rank in range(size)) for i in range(3)]
        assert each["single"] == size * (size + 1) / 2
        assert each["shared"] == size - 1
        assert all(address.startswith("127.") for address in each["listening"]), "listens beyond the loopback"


def test_the_name_of_mpichs_segment_is_what_we_expect():
    """Fails when MPICH changes the hash that `catalog/segments.py` copies."""
    for each in finish(start(["127.0.0.1"] * 2, "named")):
        assert len(each["segments"]) == 1
        assert fnmatch(each["segments"][0], segments_of.pattern(each["job"]))


def test_nothing_is_left_behind_even_if_mpich_names_its_segment_otherwise():
    before = segments()
    found = finish(start(["127.0.0.1"] * 2, "unknown-hash"))
    assert [each["single"] for each in found] == [3.0, 3.0]
    assert segments() <= before


def test_a_rank_that_waits_in_a_sum_lets_its_other_threads_run(tmp_path, monkeypatch):
    monkeypatch.setenv("BEATS", str(tmp_path / "beats"))
    assert [each["whole"] for each in finish(start(["127.0.0.1"] * 2, "late"))] == [2.0, 2.0]


def test_ranks_join_whatever_a_stranger_sends_to_their_rendezvous() -> None:
    """Somebody who can connect, and knows the protocol, cannot join, end or fill it."""
    port, over = free_port(), threading.Event()

    def attack() -> None:
        links = []
        for number in itertools.count():
            if over.is_set():
                break
            with suppress(OSError):
                links.append(socket.create_connection(("127.0.0.1", port), 1))
                links[-1].sendall(STRANGE[number % len(STRANGE)])
            time.sleep(0.001)
            if len(links) > 400:
                links.pop(0).close()
        for link in links:
            link.close()

    thread = threading.Thread(target=attack)
    thread.start()
    try:
        found = finish(start(["127.0.0.1"] * 2, "sums", port=port))
    finally:
        over.set()
        thread.join()
    assert [one["single"] for one in found] == [3.0, 3.0]


def test_a_rank_that_does_not_join_is_named_in_time():
    begin = time.monotonic()
    found = finish(start(["127.0.0.1", "127.0.0.2", "127.0.0.3"], "sums", ranks=[0, 2], seconds=2))
    assert time.monotonic() - begin < 60
    for each in found:
        assert each["error"] == "RunFailed"
        assert "worker 1 on 127.0.0.2 did not join" in each["message"]


def test_a_missing_rank_0_is_named_by_the_others():
    (found,) = finish(start(["127.0.0.1", "127.0.0.1"], "sums", ranks=[1], seconds=1))
    assert found["error"] == "RunFailed"
    assert "worker 0 on 127.0.0.1 did not join" in found["message"]


def test_a_taken_port_is_reported_by_rank_0():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        (found,) = finish(start(["127.0.0.1"] * 2, "sums", ranks=[0], port=taken.getsockname()[1]))
    assert found["error"] == "PortTaken"


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("hosts", [["127.0.0.1", "127.0.0.1"], ["127.0.0.1", "127.0.0.2"]], ids=["host", "network"])
def test_a_killed_rank_ends_the_other_and_leaves_nothing(hosts, victim):
    before = segments()
    seconds = 30 + os.getpid() / 2**22
    processes = start(hosts, "hang", seconds=seconds)
    for process in processes:
        assert json.loads(process.stdout.readline())["ready"]
    assert segments() <= before
    processes[victim].send_signal(signal.SIGKILL)
    processes[victim].communicate()
    output, _ = processes[1 - victim].communicate(timeout=280)
    assert processes[1 - victim].returncode != 0
    assert f"lost worker {victim} on {hosts[victim]}" in output or "lost the others in MPI" in output
    assert segments() <= before
    deadline = time.monotonic() + 60
    while servers(seconds) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not servers(seconds)


def test_a_rank_that_fails_by_itself_does_not_wait_for_the_others():
    first, second = start(["127.0.0.1"] * 2, "fail")
    assert second.wait(100) == 5
    assert first.wait(100) == 3
    assert "lost worker 1" in first.communicate()[0]
    second.communicate()
