"""The pages about launchers, from nothing to a first race on two hosts, on real hosts: namespaces with addresses, names
and, where the launcher has one, a daemon of their own. Samples marked `<!-- real: LAUNCHER -->` run here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from samples import ROOT, USER_PAGES, blocks

from velodrome.clusters.emulated.network import missing_tools

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "servers"))
import ray_hosts
import slurm
import sshd

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("real hosts")]
LIMIT = 600
#: Turns a command into one that runs where the user of the page sits.
Enter = Callable[[list[str]], list[str]]


@contextmanager
def emulated(folder: Path) -> Iterator[tuple[Enter, dict[str, str], dict[str, str]]]:
    yield lambda words: words, {}, {}


@contextmanager
def over_ssh(folder: Path) -> Iterator[tuple[Enter, dict[str, str], dict[str, str]]]:
    """Hosts that `ssh host1` and `ssh host2` reach, by the user's own configuration; their python3 has Velodrome."""
    with sshd.ssh_hosts(folder / "hosts") as hosts:
        config = (hosts.home / "config").read_text()
        for number, name in enumerate(hosts.names, 1):
            config = config.replace(f"Host {name}\n", f"Host host{number}\n")
        own = folder / "dot-ssh"
        own.mkdir(mode=0o700)
        (own / "config").write_text(config)
        (own / "config").chmod(0o600)
        home = Path("/root/.ssh")
        home.mkdir(mode=0o700, exist_ok=True)
        hosts.controller.run("mount", "--bind", str(own), str(home))
        python = folder / "python3"
        python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)
        asked = hosts.controller.enter(["ssh", "host1", "command -v python3"])  # a shell's own files may decide
        found = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True).stdout.strip()
        for node in hosts.nodes:
            node.run("mount", "--bind", str(python), found)
        yield hosts.controller.enter, {}, {}


@contextmanager
def on_slurm(folder: Path) -> Iterator[tuple[Enter, dict[str, str], dict[str, str]]]:
    (folder / "experiments").mkdir()
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    before, os.environ["PATH"] = os.environ["PATH"], path
    running = slurm.Slurm(nodes=2)
    try:
        yield lambda words: words, {**running.environment, "HOME": str(folder)}, {}
    finally:
        running.close()
        os.environ["PATH"] = before


@contextmanager
def on_ray(folder: Path) -> Iterator[tuple[Enter, dict[str, str], dict[str, str]]]:
    with ray_hosts.ray_hosts(folder / "hosts") as hosts:
        yield hosts.controller.enter, {}, {"10.0.0.5:6379": hosts.address}


def _needs_root() -> str:
    able = sys.platform == "linux" and os.geteuid() == 0 and not missing_tools()
    return "" if able else "emulated hosts need Linux, root, iproute2 and util-linux"


KINDS = {
    "emulated": (emulated, _needs_root()),
    "ssh": (over_ssh, sshd.unavailable()),
    "slurm": (on_slurm, ", ".join(slurm.missing())),
    "ray": (on_ray, ray_hosts.unavailable()),
}


def test_every_launcher_of_several_hosts_has_a_page_with_samples_that_run_on_it() -> None:
    found = {block.real: page.stem for page in USER_PAGES for block in blocks(page) if block.real}
    assert found == {kind: kind for kind in KINDS}


@pytest.mark.parametrize("kind", [
    pytest.param(kind, marks=pytest.mark.skipif(bool(why), reason=why or "available"))
    for kind, (_, why) in KINDS.items()
])
def test_a_page_runs_on_real_hosts_from_nothing_to_a_first_race(kind: str, tmp_path: Path) -> None:
    page = ROOT / "docs" / "how-to" / f"{kind}.md"
    (tmp_path / "hosts").mkdir()
    with ExitStack() as stack:
        enter, variables, replaced = stack.enter_context(KINDS[kind][0](tmp_path))
        environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **variables}
        work = tmp_path / "work"
        work.mkdir()
        ran = [block for block in blocks(page) if block.real == kind]
        for block in ran:
            text = block.text
            for before, after in replaced.items():
                text = text.replace(before, after)
            done = subprocess.run(
                enter([shutil.which("bash") or "bash", "-euo", "pipefail", "-c", text]), cwd=work, env=environment,
                stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT,
            )
            assert done.returncode == 0, f"{page.name}, line {block.line}:\n{text}\n{done.stdout}\n{done.stderr}"
        assert any("velodrome race" in block.text for block in ran)
    assert [*tmp_path.glob("*/runs/*/race.yaml")], "no race was stored"
