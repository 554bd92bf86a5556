"""CPU and memory limits of emulated nodes: a control group for each, of the generation that this kernel has."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from velodrome.cluster.emulated.request import EmulatedCluster
from velodrome.errors import BadRequest

ROOT = Path("/sys/fs/cgroup")
PREFIX = "velodrome-"
_PERIOD = 100_000
_REMOVE_SECONDS = 3.0


class Limits:
    """The control groups of the nodes of one controller."""

    def __init__(self, cluster: EmulatedCluster, nodes: Sequence[str], root: Path = ROOT) -> None:
        self._folders: dict[str, list[Path]] = {node: [] for node in nodes}
        controllers = [name for name, limit in (("cpu", cluster.cpu), ("memory", cluster.memory)) if limit is not None]
        try:
            for node in nodes if controllers else ():
                self._folders[node] = _create(root, f"{PREFIX}{os.getpid()}-{node}", controllers, cluster)
        except BaseException:
            self.close()
            raise

    def enter(self, node: str, words: Sequence[str]) -> list[str]:
        """A command that runs within a node's limits, as the process that starts it."""
        folders = [str(folder / "cgroup.procs") for folder in self._folders[node]]
        if not folders:
            return list(words)
        script = 'while [ "$1" != -- ]; do echo $$ > "$1" || exit 1; shift; done; shift; exec "$@"'
        return ["sh", "-c", script, "sh", *folders, "--", *words]

    def memory_exceeded(self, node: str) -> bool:
        """Whether the kernel ended a process of a node because of its memory limit."""
        for folder in self._folders[node]:
            for file in ("memory.oom_control", "memory.events"):
                with suppress(OSError, ValueError):
                    fields = dict(line.split() for line in (folder / file).read_text().splitlines())
                    if int(fields.get("oom_kill", 0)):
                        return True
        return False

    def close(self) -> None:
        for folder in (folder for folders in self._folders.values() for folder in folders):
            _remove(folder)
        self._folders = {node: [] for node in self._folders}


def _create(root: Path, name: str, controllers: Sequence[str], cluster: EmulatedCluster) -> list[Path]:
    folders = []
    try:
        for folder in _places(root, name, controllers):
            folder.mkdir(exist_ok=True)
            folders.append(folder)
        for controller in controllers:
            _limit(next(folder for folder in folders if _has(folder, controller)), controller, cluster)
    except OSError as error:
        for folder in folders:
            _remove(folder)
        raise BadRequest(
            f"--on emulated: cpu and memory limits need control groups that can be written ({error}); leave them out"
        ) from error
    return folders


def _places(root: Path, name: str, controllers: Sequence[str]) -> list[Path]:
    """One folder for both controllers in version 2, one each in version 1."""
    if (root / "cgroup.controllers").exists():
        available = (root / "cgroup.controllers").read_text().split()
        if missing := [controller for controller in controllers if controller not in available]:
            raise BadRequest(f"--on emulated: this kernel cannot limit {' and '.join(missing)}; leave it out")
        with suppress(OSError):
            (root / "cgroup.subtree_control").write_text(" ".join(f"+{controller}" for controller in controllers))
        return [root / name]
    if missing := [controller for controller in controllers if not (root / controller).is_dir()]:
        raise BadRequest(f"--on emulated: this kernel cannot limit {' and '.join(missing)}; leave it out")
    return [root / controller / name for controller in controllers]


def _has(folder: Path, controller: str) -> bool:
    return any(folder.glob(f"{controller}.*"))


def _limit(folder: Path, controller: str, cluster: EmulatedCluster) -> None:
    if controller == "cpu":
        assert cluster.cpu is not None
        quota = max(1000, int(cluster.cpu * _PERIOD))
        if (folder / "cpu.max").exists():
            (folder / "cpu.max").write_text(f"{quota} {_PERIOD}")
        else:
            (folder / "cpu.cfs_period_us").write_text(str(_PERIOD))
            (folder / "cpu.cfs_quota_us").write_text(str(quota))
    else:
        file = folder / "memory.max"
        (file if file.exists() else folder / "memory.limit_in_bytes").write_text(str(cluster.memory))


def _remove(folder: Path) -> None:
    """Remove a control group; its last processes may need a moment to end."""
    deadline = time.monotonic() + _REMOVE_SECONDS
    while folder.exists():
        with suppress(OSError):
            folder.rmdir()
            return
        if time.monotonic() > deadline:
            return
        time.sleep(0.05)


def clean(root: Path = ROOT) -> list[str]:
    """Remove the groups of controllers that have ended without removing them; what was removed."""
    removed = []
    for folder in [*root.glob(f"{PREFIX}*"), *root.glob(f"*/{PREFIX}*")]:
        pid = folder.name.removeprefix(PREFIX).partition("-")[0]
        if pid.isdigit() and not Path("/proc", pid).exists():
            _remove(folder)
            removed += [] if folder.exists() else [folder.name]
    return sorted(set(removed))
