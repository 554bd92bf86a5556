"""`velodrome doctor` finds each fault of a host, which is made for real, and names host, cause and way out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "servers"))
import sshd
import wrong_clock

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(sshd.unavailable()), reason=sshd.unavailable() or "available"),
]
JOB = ("--engine", "torch", "--strategy", "ddp", "--workers", 2)


@pytest.fixture(autouse=True)
def as_new(hosts: sshd.Hosts) -> None:
    hosts.write_config()
    hosts.write_clusters()


def doctor(hosts: sshd.Hosts, *words: object, cwd: Path | None = None, code: int = 1) -> dict[str, Any]:
    process = hosts.velodrome("doctor", "--on", "lab", "--json", *(words or JOB), cwd=cwd)
    out, errors = process.communicate(timeout=200)
    assert process.returncode == code, f"{out}{errors}"
    return json.loads(out.strip().splitlines()[-1])


def refused(hosts: sshd.Hosts, runs: Path) -> str:
    """What a job says that must not start."""
    process = hosts.velodrome("train", "--on", "lab", *JOB, "--epochs", 1, "--runs", runs)
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 2, errors
    assert not [*runs.iterdir()]
    return errors


def only(found: dict[str, Any], check: str) -> str:
    assert [finding["check"] for finding in found["findings"]] == [check], found["findings"]
    return str(found["findings"][0]["sentence"])


def wrapper(hosts: sshd.Hosts, *lines: str) -> None:
    """An interpreter on each host's own disk; on the second host it does something before it starts."""
    for node in hosts.nodes:
        more = lines if node is hosts.nodes[1] else ()
        text = "\n".join(["#!/bin/sh", *more, f'exec {sys.executable} "$@"'])
        node.run("sh", "-c", f'cat > {hosts.disk}/python <<"E"\n{text}\nE\nchmod +x {hosts.disk}/python')
    hosts.write_clusters(python=str(hosts.disk / "python"))


def test_hosts_that_work_have_no_finding_and_their_network_is_measured(hosts: sshd.Hosts) -> None:
    found = doctor(hosts, *JOB, "--measure", code=0)
    assert found["ok"]
    assert found["findings"] == []
    assert {(pair["from"], pair["to"]) for pair in found["pairs"]} == {("node2", "node3"), ("node3", "node2")}
    assert all(pair["bandwidth"] > 1e6 and 0 < pair["round_trip"] < 1 for pair in found["pairs"])


def test_a_host_that_cannot_be_reached(hosts: sshd.Hosts) -> None:
    hosts.crash("node3")
    try:
        sentence = only(doctor(hosts), "reachable")
    finally:
        hosts.start("node3")
    assert sentence == "host 'node3': it refuses connections; see whether sshd is running there, on that port"


def test_a_name_that_leads_a_peer_to_itself(hosts: sshd.Hosts) -> None:
    hosts.write_clusters(addresses={"node3": "worker-b"})
    own = hosts.home / "hosts-node2"
    own.write_text("127.0.0.1 localhost\n127.0.1.1 worker-b\n")
    hosts.node("node2").run("mount", "--bind", str(own), "/etc/hosts")
    try:
        found = doctor(hosts)
    finally:
        hosts.node("node2").run("umount", "/etc/hosts")
    sentences = [finding["sentence"] for finding in found["findings"] if finding["check"] == "names"]
    assert sentences == ["host 'node2': 'worker-b', the address of 'node3', resolves there to 127.0.1.1, which is the "
                         "host itself; correct its /etc/hosts, or set addresses: {node3: ADDRESS} in clusters.yaml"]


def test_a_name_that_no_peer_knows(hosts: sshd.Hosts) -> None:
    hosts.write_clusters(addresses={"node3": "worker-c.invalid"})
    sentences = [finding["sentence"] for finding in doctor(hosts)["findings"] if finding["check"] == "names"]
    assert sentences == ["host 'node2': it cannot resolve 'worker-c.invalid', the address of 'node3'; add it to its "
                         "/etc/hosts, or set addresses: {node3: ADDRESS}"]


def test_workers_that_cannot_connect_to_each_other(hosts: sshd.Hosts) -> None:
    hosts.node("node2").run("ip", "route", "add", "unreachable", f"{hosts.node('node3').address}/32")
    try:
        found = doctor(hosts)
    finally:
        hosts.node("node2").run("ip", "route", "del", "unreachable", f"{hosts.node('node3').address}/32")
    first = [finding for finding in found["findings"] if finding["host"] == "node2"]
    assert [finding["check"] for finding in first] == ["network"]
    assert first[0]["sentence"].startswith("host 'node2': it cannot connect to 'node3' at 10.77.0.3:")
    assert "No route to host; open ports 20000 to 32000 between the hosts in the firewall" in first[0]["sentence"]


def test_a_host_without_free_ports(hosts: sshd.Hosts) -> None:
    script = (
        "import resource, socket, sys\nresource.setrlimit(resource.RLIMIT_NOFILE, (20000, 20000))\n"
        "held = [socket.create_server(('', port)) for port in range(20000, 32000)]\nprint('ready', flush=True)\n"
        "sys.stdin.read()"
    )
    words = hosts.node("node3").enter([sys.executable, "-c", script])
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        try:
            sentence = only(doctor(hosts), "ports")
        finally:
            holder.kill()
    assert sentence == "host 'node3': only 0 ports between 20000 and 32000 are free; end the programs that listen there"


def test_another_version_on_one_host(hosts: sshd.Hosts, tmp_path: Path) -> None:
    other = hosts.home / "other" / "numpy-9.9.9.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 9.9.9\n")
    wrapper(hosts, f"export PYTHONPATH={other.parent}")
    sentence = only(doctor(hosts), "versions")
    assert sentence.startswith("host 'node3': it has numpy 9.9.9, and the others")
    assert "it has numpy 9.9.9" in refused(hosts, tmp_path)


def test_an_interpreter_that_cannot_train(hosts: sshd.Hosts, tmp_path: Path) -> None:
    hosts.write_clusters(python="/usr/bin/python3")
    found = doctor(hosts)
    assert {finding["host"] for finding in found["findings"]} == {"node2", "node3"}
    assert "interpreter '/usr/bin/python3' cannot train" in found["findings"][0]["sentence"]
    assert "cannot train" in refused(hosts, tmp_path)


@pytest.mark.skipif(bool(wrong_clock.unavailable()), reason=wrong_clock.unavailable() or "available")
def test_a_clock_that_is_an_hour_ahead(hosts: sshd.Hosts, tmp_path: Path) -> None:
    wrapper(hosts, f"export LD_PRELOAD={wrong_clock.build(hosts.home)}")
    sentence = only(doctor(hosts), "clock")
    assert sentence.startswith("host 'node3': its clock is 36")
    assert sentence.endswith("s ahead of this machine's; synchronize both with NTP (timedatectl set-ntp true)")
    assert "its clock is" in refused(hosts, tmp_path)


def test_a_full_disk(hosts: sshd.Hosts, tmp_path: Path) -> None:
    hosts.node("node3").run("sh", "-c", f"head -c 250M /dev/zero > {hosts.disk}/full")
    try:
        sentence = only(doctor(hosts), "disk")
        assert "a run needs 100.0 MiB" in refused(hosts, tmp_path)
    finally:
        hosts.node("node3").run("rm", "-f", f"{hosts.disk}/full")
    assert sentence.startswith(f"host 'node3': {hosts.disk}/velodrome has ")


def test_more_processes_than_a_host_has_memory_for(hosts: sshd.Hosts) -> None:
    found = doctor(hosts, "--engine", "torch", "--strategy", "ddp", "--workers", 1000, "--batch-size", 1000)
    assert {finding["check"] for finding in found["findings"]} == {"memory"}
    assert "of memory, but" in found["findings"][0]["sentence"]
    assert found["findings"][0]["sentence"].endswith("are free; place fewer processes there")


def test_data_that_only_the_controller_has(hosts: sshd.Hosts) -> None:
    rows = "\n".join(f"{number},{number % 2}" for number in range(200))
    (hosts.disk / "rows.csv").write_text(f"x,y\n{rows}\n")  # below the disk that each host has of its own
    try:
        found = doctor(hosts, *JOB, "--dataset", f"path:{hosts.disk}/rows.csv?target=y", "--task", "binary")
    finally:
        (hosts.disk / "rows.csv").unlink()
    assert {finding["check"] for finding in found["findings"]} == {"data"}
    assert {finding["host"] for finding in found["findings"]} == {"node2", "node3"}


def test_a_module_that_cannot_be_imported_there(hosts: sshd.Hosts, tmp_path: Path) -> None:
    (tmp_path / "mynets.py").write_text("import no_such_library_4711\n\ndef net(input_shape, classes): ...\n")
    found = doctor(hosts, *JOB, "--model", "mynets:net", cwd=tmp_path)
    assert [finding["sentence"] for finding in found["findings"]] == [
        f"host '{name}': it cannot import 'mynets': ModuleNotFoundError: No module named 'no_such_library_4711'; "
        "install what is missing there, or set code to the folder of your code" for name in ("node2", "node3")
    ]


def test_this_machine_is_examined_too(hosts: sshd.Hosts) -> None:
    process = hosts.velodrome("doctor", "--json", *JOB)
    out, errors = process.communicate(timeout=100)
    assert process.returncode == 0, f"{out}{errors}"
    assert json.loads(out)["ok"]
    process = hosts.velodrome("clusters", "check", "lab", "--json", PATH=os.environ["PATH"])
    out, _ = process.communicate(timeout=100)
    assert json.loads(out.strip().splitlines()[-1])["findings"] == []
