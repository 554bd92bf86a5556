"""`velodrome clusters prepare` on real hosts over SSH that reach no package index, and what `doctor` finds later."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "servers"))
import sshd
import wheelhouse

pytestmark = [
    pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900),
    pytest.mark.skipif(bool(sshd.unavailable()), reason=sshd.unavailable() or "available"),
    pytest.mark.skipif(bool(wheelhouse.unavailable()), reason=wheelhouse.unavailable() or "available"),
]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sshd.Hosts]:
    with sshd.ssh_hosts(tmp_path_factory.mktemp("prepare"), disk="1500m") as made:
        yield made


def command(hosts: sshd.Hosts, *words: object, code: int = 0) -> dict[str, Any]:
    process = hosts.velodrome(*words, "--json")
    out, errors = process.communicate(timeout=600)
    assert process.returncode == code, f"{out}{errors}"
    found: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    return found


def test_hosts_without_a_package_index_get_an_environment_that_is_verified_later(hosts: sshd.Hosts) -> None:
    # The interpreter that makes the environment is named; what trains afterwards is what was made.
    hosts.write_clusters(python=sys.executable)
    words = ["clusters", "prepare", "lab", "--engine", "none", "--wheelhouse", wheelhouse.folder()]
    made = command(hosts, *words)
    assert [host["changed"] for host in made["hosts"]] == [True, True]
    assert len({host["digest"] for host in made["hosts"]}) == 1
    assert made["pins"]["numpy"]
    python = made["hosts"][0]["python"]
    script = "import numpy, velodrome.training.__main__; print(numpy.__version__)"
    for node in hosts.nodes:
        node.run(python, "-c", script)
    # The same command again changes nothing.
    assert [host["changed"] for host in command(hosts, *words)["hosts"]] == [False, False]
    # A file that somebody changed is found by its hash, and named with its host.
    damaged = f"{hosts.disk}/velodrome/environment/lib/python{sys.version_info.major}.{sys.version_info.minor}"
    hosts.nodes[1].run("sh", "-c", f"echo >> {damaged}/site-packages/numpy/__init__.py")
    found = command(hosts, "doctor", "--on", "lab", "--engine", "torch", code=1)
    sentences = [str(finding["sentence"]) for finding in found["findings"]]
    assert [sentence for sentence in sentences if "not the one that was prepared" in sentence] == [
        f"host '{hosts.names[1]}': its environment is not the one that was prepared: numpy/__init__.py was changed; "
        "run `velodrome clusters prepare` again"
    ]
    assert [host["changed"] for host in command(hosts, *words)["hosts"]] == [False, True]


def test_a_folder_without_a_wheel_is_refused(hosts: sshd.Hosts, tmp_path: Path) -> None:
    process = hosts.velodrome("clusters", "prepare", "lab", "--engine", "none", "--wheelhouse", tmp_path)
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 2
    assert "has no wheel for" in errors
    assert "pip download" in errors
