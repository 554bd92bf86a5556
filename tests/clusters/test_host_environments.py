"""The environment of a host: made anew after an upgrade of Velodrome, and only replaced by one that is complete."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from velodrome.clusters.environments import hosts
from velodrome.clusters.remote.link import HostError, Ran

pytestmark = pytest.mark.integration  # environments are made


class Here:
    """A host that is a folder of this machine; packages are not really installed there."""

    host = "here"

    def __init__(self, root: Path, python: str) -> None:
        self.root, self.commands, self.broken = root, list[list[str]](), False
        self.facts = {"root": str(root), "interpreter": python, "python": sys.version.split()[0],
                      "base": os.path.realpath(sys.executable)}

    def put(self, source: Path | bytes, path: str) -> str:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_bytes(source if isinstance(source, bytes) else source.read_bytes())
        return str(self.root / path)

    def run(self, words: list[str], **fields: Any) -> Ran:
        self.commands.append(words)
        if words[1:3] == ["-m", "pip"]:
            return Ran(1, errors="no such package") if self.broken else Ran(0)
        if words[1:3] == ["-m", "venv"]:
            words = [*words, "--without-pip"]
        done = subprocess.run(words, capture_output=True, text=True)
        return Ran(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def host(tmp_path: Path) -> Any:
    """A host whose agent runs from the environment that was prepared."""
    return Here(tmp_path / "root", f"{tmp_path}/root/environment/bin/python")


def prepare(host: Any, tmp_path: Path) -> bool:
    wheel = tmp_path / "velodrome.whl"
    wheel.write_bytes(b"")
    found = hosts.prepare(host, {"numpy": "2.0.0"}, None, wheel)
    assert found["python"] == f"{host.root}/environment/bin/python"
    assert not [*host.root.glob("wheels/*")]
    return bool(found["changed"])


def test_an_environment_is_made_once_and_again_when_velodrome_was_changed(
    host: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert prepare(host, tmp_path)
    assert not prepare(host, tmp_path)
    first = (host.root / "environment").resolve()
    monkeypatch.setattr(hosts, "training_side_digest", lambda: "another")
    assert prepare(host, tmp_path)
    assert (host.root / "environment").resolve() != first
    assert not first.exists()
    assert len([*(host.root / "environments").iterdir()]) == 1
    record = json.loads((host.root / "environment" / "environment.json").read_text())
    assert record["velodrome"] == "another"
    subprocess.run([f"{host.root}/environment/bin/python", "-c", "pass"], check=True)


def test_the_environment_in_use_stays_while_a_new_one_is_made_and_if_that_fails(host: Any, tmp_path: Path) -> None:
    prepare(host, tmp_path)
    first = (host.root / "environment").resolve()
    (host.root / "environment" / "environment.json").unlink()
    host.broken = True
    with pytest.raises(HostError, match="'here' cannot install the packages: no such package"):
        prepare(host, tmp_path)
    assert (host.root / "environment").resolve() == first
    assert [*(host.root / "environments").iterdir()] == [first]
    made = next(words for words in reversed(host.commands) if words[1:3] == ["-m", "venv"])
    assert not made[0].startswith(str(host.root))


def test_a_folder_where_the_link_belongs_is_replaced(host: Any, tmp_path: Path) -> None:
    (host.root / "environment" / "bin").mkdir(parents=True)
    assert prepare(host, tmp_path)
    assert (host.root / "environment").is_symlink()
    assert len([*(host.root / "environments").iterdir()]) == 1
