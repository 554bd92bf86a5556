"""One node on this machine: a network namespace with its own address and name, held by a process, and a control group
that limits its CPU and memory, of the generation that this kernel has.

A controller that was killed leaves control groups and a folder behind, found by their names. The kernel removes
namespaces, interfaces and mounts with the last process in them.
"""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from velodrome.clusters.emulated import EmulatedCluster
from velodrome.clusters.interrupts import rollback
from velodrome.errors import BadRequest, VelodromeError

#: What a helper prints first.
READY = "ready"
#: Both take milliseconds on an idle machine.
_START_SECONDS, _RUN_SECONDS = 30.0, 30.0
#: What a holder does: it takes its name, sees its own table of hosts, reports that it is there, and waits for the end.
_HOLD = 'hostname "$1" && { [ -z "$2" ] || mount --bind "$2" /etc/hosts; } && echo ready && exec cat > /dev/null'


class Helper:
    """A process of the emulation: it prints a line when it is ready, and ends when its standard input closes."""

    def __init__(self, words: Sequence[str], failed: str) -> None:
        """`failed` begins the sentence if it does not do what it should."""
        self._failed = failed
        self._popen = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
            cwd="/",
        )

    @property
    def pid(self) -> int:
        return self._popen.pid

    def expect(self, word: str, seconds: float) -> None:
        """Wait for a line; `VelodromeError` if it is another one or does not come in time."""
        assert self._popen.stdout is not None
        assert self._popen.stderr is not None
        in_time = select.select([self._popen.stdout], [], [], seconds)[0]
        if in_time and self._popen.stdout.readline() == f"{word}\n".encode():
            return
        self._popen.kill()
        if in_time:
            printed = self._popen.stderr.read().decode(errors="replace").strip()
            reason = printed.rpartition("\n")[2] or "its process ended at once"
        else:
            what = "start" if word == READY else "answer"
            reason = f"its process did not {what} within {seconds:g} s; is this machine busy?"
        raise VelodromeError(f"{self._failed}: {reason}")

    def tell(self, line: str, seconds: float) -> None:
        """Send a line, and wait until it is done."""
        assert self._popen.stdin is not None
        try:
            self._popen.stdin.write(f"{line}\n".encode())
            self._popen.stdin.flush()
        except OSError as error:
            raise VelodromeError(f"{self._failed}: its process is gone") from error
        self.expect("done", seconds)

    def close(self) -> None:
        assert self._popen.stdin is not None
        with suppress(OSError):
            self._popen.stdin.close()
        try:
            self._popen.wait(2.0)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        for stream in (self._popen.stdout, self._popen.stderr):
            if stream is not None:
                stream.close()


class Node:
    """One namespace and the process that holds it."""

    def __init__(self, name: str, address: str, hosts: Path | None) -> None:
        self.name, self.address = name, address
        self._holder = Helper(
            ["unshare", "--net", "--uts", "--mount", "sh", "-c", _HOLD, "sh", name, str(hosts or "")],
            f"{name} cannot be emulated",
        )
        self.close = self._holder.close

    def wait_until_ready(self) -> None:
        """Wait for the first process; `VelodromeError` if it fails or does not come in time."""
        self._holder.expect(READY, _START_SECONDS)

    def enter(self, words: Sequence[str]) -> list[str]:
        """A command that runs inside the node, as the process that starts it."""
        return ["nsenter", f"--target={self._holder.pid}", "--net", "--uts", "--mount", "--wd=.", "--", *words]

    def run(self, *words: str) -> None:
        _run(self.enter(words))

    @property
    def pid(self) -> int:
        return self._holder.pid

    def traffic(self) -> dict[str, int]:
        """Bytes that the node has received, sent and kept on loopback so far, by its own counters."""
        totals = {"in": 0, "out": 0, "loopback": 0}
        for line in Path(f"/proc/{self.pid}/net/dev").read_text().splitlines()[2:]:
            name, _, counters = line.partition(":")
            received, sent = (int(number) for number in counters.split()[:9:8])
            if name.strip() == "lo":
                totals["loopback"] += received
            else:
                totals["in"], totals["out"] = totals["in"] + received, totals["out"] + sent
        return totals


def _run(words: Sequence[str]) -> None:
    command = " ".join(words[words.index("--") + 1 :] if "--" in words else words)
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_RUN_SECONDS)
    except subprocess.TimeoutExpired:
        raise VelodromeError(f"the emulated cluster cannot be changed: {command}: it did not end within "
                             f"{_RUN_SECONDS:g} s; is this machine busy?") from None
    if done.returncode:
        raise VelodromeError(f"the emulated cluster cannot be created: {command}: {done.stderr.strip()}")


GROUPS = Path("/sys/fs/cgroup")
PREFIX = "velodrome-"
_FOLDER = "velodrome-nodes-"
_REMOVE_SECONDS = 3.0


def _since(pid: int) -> str:
    """When a process began, by the kernel's count; empty if there is none. A number of a process is used again."""
    with suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return ""


@cache
def _mark(pid: int) -> str:
    return f"{pid}-{_since(pid)}"


def group_name(node: str) -> str:
    """The name of a control group of this controller."""
    return f"{PREFIX}{_mark(os.getpid())}-{node}"


def folder_prefix() -> str:
    """What the name of a temporary folder of this controller begins with."""
    return f"{_FOLDER}{_mark(os.getpid())}-"


def _is_orphan(mark: str) -> bool:
    pid, since = (*mark.split("-"), "")[:2]
    return pid.isdigit() and (not since or _since(int(pid)) != since)


def remove_group(folder: Path) -> None:
    """Remove a control group; its last processes may need a moment to end."""
    deadline = time.monotonic() + _REMOVE_SECONDS
    while folder.exists():
        with suppress(OSError):
            folder.rmdir()
            return
        if time.monotonic() > deadline:
            return
        time.sleep(0.05)


def clean(groups: Path = GROUPS, folders: Path | None = None) -> list[str]:
    """Remove what controllers that are gone have left behind; the names of what was removed."""
    removed = []
    for folder in [*groups.glob(f"{PREFIX}*"), *groups.glob(f"*/{PREFIX}*")]:
        if _is_orphan(folder.name.removeprefix(PREFIX)):
            remove_group(folder)
            removed += [] if folder.exists() else [f"control group {folder.name}"]
    for folder in (folders or Path(tempfile.gettempdir())).glob(f"{_FOLDER}*"):
        if _is_orphan(folder.name.removeprefix(_FOLDER)):
            shutil.rmtree(folder, ignore_errors=True)
            removed += [] if folder.exists() else [f"folder {folder}"]
    return sorted(set(removed))


_PERIOD = 100_000
#: The kernel grants no less than this in a period.
_LEAST_QUOTA = 1000


class Limits:
    """The control groups of the nodes of one controller."""

    def __init__(self, cluster: EmulatedCluster, nodes: Sequence[str], root: Path = GROUPS) -> None:
        self._cluster, self._root = cluster, root
        self._folders: dict[str, list[Path]] = {node: [] for node in nodes}
        controllers = [name for name, limit in (("cpu", cluster.cpu), ("memory", cluster.memory)) if limit is not None]
        with rollback(self.close):
            for node in nodes if controllers else ():
                self._folders[node] = _create(root, group_name(node), controllers, cluster)

    @property
    def limited_by(self) -> str | None:
        """What limits the nodes; None if nothing does."""
        if self._cluster.cpu is None and self._cluster.memory is None:
            return None
        return "cgroup v2" if _is_v2(self._root) else "cgroup v1"

    def prepare_slowing(self, node: str) -> None:
        """Give a node a control group by which it can be slowed down; processes that start later belong to it."""
        if self._cpu_folder(node) is None:
            self._folders[node] += _create(self._root, group_name(node), ["cpu"], self._cluster)

    def slow(self, node: str, factor: float, cores: float) -> None:
        """Give a node a fraction of the time of the cores that it has: its own limit, or those that it uses."""
        folder = self._cpu_folder(node)
        assert folder is not None, "prepare_slowing was called"
        _set_quota(folder, (self._cluster.cpu or cores) / factor)

    def restore(self, node: str) -> None:
        """Give a node the time of its cores that it had at first."""
        folder = self._cpu_folder(node)
        if folder is not None:
            _set_quota(folder, self._cluster.cpu)

    def _cpu_folder(self, node: str) -> Path | None:
        files = ("cpu.max", "cpu.cfs_quota_us")
        return next((folder for folder in self._folders[node] if any((folder / file).exists() for file in files)), None)

    def groups_of(self, node: str) -> tuple[str, ...]:
        """The files into which a process of a node writes its number."""
        return tuple(str(folder / "cgroup.procs") for folder in self._folders[node])

    def enter(self, node: str, words: Sequence[str]) -> list[str]:
        """A command that runs within a node's limits, as the process that starts it."""
        groups = self.groups_of(node)
        if not groups:
            return list(words)
        script = 'while [ "$1" != -- ]; do echo $$ > "$1" || exit 1; shift; done; shift; exec "$@"'
        return ["sh", "-c", script, "sh", *groups, "--", *words]

    def memory_kills(self, node: str) -> int:
        """How many processes of a node the kernel has ended because of its memory limit, in all runs so far."""
        kills = 0
        for folder in self._folders[node]:
            for file in ("memory.oom_control", "memory.events"):
                with suppress(OSError, ValueError):
                    fields = dict(line.split() for line in (folder / file).read_text().splitlines())
                    kills = max(kills, int(fields.get("oom_kill", 0)))
        return kills

    def close(self) -> None:
        for folder in (folder for folders in self._folders.values() for folder in folders):
            remove_group(folder)
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
            remove_group(folder)
        raise BadRequest(
            f"--on emulated: cpu and memory limits need control groups that can be written ({error}); leave them out"
        ) from error
    return folders


def _places(root: Path, name: str, controllers: Sequence[str]) -> list[Path]:
    """One folder for both controllers in version 2, one each in version 1."""
    if _is_v2(root):
        available = (root / "cgroup.controllers").read_text().split()
        if missing := [controller for controller in controllers if controller not in available]:
            raise BadRequest(f"--on emulated: this kernel cannot limit {' and '.join(missing)}; leave it out")
        with suppress(OSError):
            (root / "cgroup.subtree_control").write_text(" ".join(f"+{controller}" for controller in controllers))
        return [root / name]
    if missing := [controller for controller in controllers if not (root / controller).is_dir()]:
        raise BadRequest(f"--on emulated: this kernel cannot limit {' and '.join(missing)}; leave it out")
    return [root / controller / name for controller in controllers]


def _is_v2(root: Path) -> bool:
    return (root / "cgroup.controllers").exists()


def _has(folder: Path, controller: str) -> bool:
    return any(folder.glob(f"{controller}.*"))


def _limit(folder: Path, controller: str, cluster: EmulatedCluster) -> None:
    if controller == "cpu":
        _set_quota(folder, cluster.cpu)
    else:
        file = folder / "memory.max"
        (file if file.exists() else folder / "memory.limit_in_bytes").write_text(str(cluster.memory))


def _set_quota(folder: Path, cpu: float | None) -> None:
    """Limit a group to the time of so many cores; None for no limit."""
    quota = None if cpu is None else max(_LEAST_QUOTA, int(cpu * _PERIOD))
    if (folder / "cpu.max").exists():
        (folder / "cpu.max").write_text(f"{'max' if quota is None else quota} {_PERIOD}")
    else:
        (folder / "cpu.cfs_period_us").write_text(str(_PERIOD))
        (folder / "cpu.cfs_quota_us").write_text(str(-1 if quota is None else quota))
