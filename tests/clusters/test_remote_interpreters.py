"""A host trains with an engine in the environment that was installed there, if that belongs to this version."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from velodrome.api import clusters
from velodrome.catalog import registry
from velodrome.clusters import environments
from velodrome.clusters.environments import hosts
from velodrome.clusters.launcher import Launcher
from velodrome.clusters.remote import RemoteOptions, channels, checks
from velodrome.clusters.remote.launcher import RemoteLauncher
from velodrome.clusters.ssh.launcher import SshChannel
from velodrome.job.job import Job

MXNET = registry.engine("mxnet")
JOB = Job(engine="mxnet", strategy="single")
WAY_OUT = (
    "run `velodrome engines install mxnet` on that host, or set interpreters: {mxnet: PATH} in clusters.yaml"
)


class ChildLauncher(RemoteLauncher):
    """A launcher whose only host is this machine; the agent is a child of this process."""

    name = "child"

    def hosts(self) -> list[str]:
        return ["here"]

    def part(self, hosts: Sequence[str]) -> Launcher:
        raise NotImplementedError

    def open_channel(self, host: str, session: str) -> SshChannel:
        return SshChannel(host, [sys.executable, *channels.agent_words(session, 30.0, self.options.root)])


Open = Callable[..., ChildLauncher]


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Open]:
    """Opens a launcher with options, and connects it."""
    made: list[ChildLauncher] = []

    def opened(**options: Any) -> ChildLauncher:
        found = ChildLauncher(RemoteOptions.model_validate({"root": str(tmp_path / "root"), **options}))
        made.append(found)
        found.connect(["here"])
        return found

    yield opened
    for one in made:
        one.close()


def findings(launcher: ChildLauncher) -> list[str]:
    return [one.sentence for one in checks.versions([*launcher.links.values()], JOB, launcher.interpreter)]


def make_environment(folder: Path, **other: str) -> Path:
    """An environment of MXNet in a folder; its interpreter."""
    python = folder / "mxnet" / "bin" / "python"
    python.parent.mkdir(parents=True)
    answer = {"interpreter": str(python), "python": "3.11.0", "modules": ["mxnet"], "folders": [],
              "versions": {"velodrome-worker": metadata.version("velodrome")}}
    python.write_text(f"#!/bin/sh\necho '{json.dumps(answer)}'\n")
    python.chmod(0o755)
    record = {**environments.record_of(MXNET), **other}
    (folder / "mxnet" / environments.RECORD).write_text(json.dumps(record))
    return python


@pytest.mark.integration
def test_the_environment_that_is_installed_on_a_host_trains(
    launcher: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environments.FOLDER, str(tmp_path))
    python = make_environment(tmp_path)
    opened = launcher(python="/no/such/python")
    assert opened.pythons([*opened.links.values()], MXNET) == {"here": str(python)}
    assert findings(opened) == []
    # Engines that share Velodrome's environment, and those for which an interpreter is named, have that.
    assert opened.interpreter(opened.links["here"], registry.engine("torch")).path == "/no/such/python"
    named = launcher(interpreters={"mxnet": "~/mxnet/bin/python"})
    assert named.interpreter(named.links["here"], MXNET).path == str(Path("~/mxnet/bin/python").expanduser())


@pytest.mark.integration
def test_an_environment_of_another_version_is_refused(
    launcher: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environments.FOLDER, str(tmp_path))
    make_environment(tmp_path, training_side="another")
    assert findings(launcher()) == [
        f"host 'here': its environment '{tmp_path}/mxnet' was made by another version of Velodrome; {WAY_OUT}"
    ]


@pytest.mark.integration
def test_a_host_without_the_environment_is_refused_with_the_command_that_installs_it(
    launcher: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environments.FOLDER, str(tmp_path))
    opened = launcher()
    assert findings(opened) == [
        f"host 'here': {sys.executable} has no package 'mxnet', which mxnet/single needs; {WAY_OUT}"
    ]
    # Damaged: the interpreter that is gone is named. Interrupted: without its record it is not used.
    python = make_environment(tmp_path)
    python.unlink()
    assert findings(opened) == [
        f"host 'here': interpreter '{python}' cannot train: {python}: No such file or directory; {WAY_OUT}"
    ]
    (tmp_path / "mxnet" / environments.RECORD).unlink()
    assert opened.interpreter(opened.links["here"], MXNET).path == sys.executable


@pytest.mark.integration
@pytest.mark.parametrize("value", [None, "", "~/somewhere", "/srv/environments"])
def test_hosts_and_this_machine_find_environments_in_the_same_place(
    launcher: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    if value is None:
        monkeypatch.delenv(environments.FOLDER, raising=False)
    else:
        monkeypatch.setenv(environments.FOLDER, value)
    assert launcher().links["here"].facts["environments"] == str(environments.folder())


@pytest.mark.integration
def test_the_cluster_may_name_the_folder_of_environments(
    launcher: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environments.FOLDER, str(tmp_path / "other"))
    python = make_environment(tmp_path)
    opened = launcher(environment={environments.FOLDER: str(tmp_path)})
    assert opened.interpreter(opened.links["here"], MXNET).path == str(python)


@pytest.mark.unit
def test_preparing_hosts_names_the_engines_that_must_be_installed_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, velodrome: Any
) -> None:
    prepared: list[Any] = []
    monkeypatch.setattr(ChildLauncher, "hosts", lambda self: [])
    monkeypatch.setattr(
        clusters, "open_launcher", lambda name: nullcontext(ChildLauncher(RemoteOptions.model_validate({})))
    )
    monkeypatch.setattr(hosts, "prepare_all", lambda links, engines, wheels: prepared.append(engines) or [])
    found = clusters.prepare("lab", engines=["torch", "mxnet", "horovod"])
    assert prepared == [["torch"]]
    assert found["to_install"] == [
        "velodrome engines install mxnet", "velodrome engines install horovod --framework torch",
        "velodrome engines install horovod --framework tensorflow",
    ]
    assert velodrome("clusters", "prepare", "lab", "--engine", "mxnet").out.splitlines()[-1] == (
        "not prepared, because they need an environment of their own: run `velodrome engines install mxnet` on each "
        "host"
    )
    assert "not prepared" not in velodrome("clusters", "prepare", "lab", "--engine", "torch").out
