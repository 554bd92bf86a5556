"""A real Kubernetes of two nodes on this machine: etcd, API server, controller manager, scheduler, and on each node a
kubelet with containerd and runc.

All of it lives in namespaces of its own: processes, mounts, and a network for each node. A guardian outside starts it,
and when its standard input closes, in whatever way the tests ended, it ends everything and removes the control groups.
`make k8s` builds it first (`kubernetes_build.py`).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from kubernetes_build import prepare, unavailable

#: What is started so ends with the process that starts it, even if that is killed.
_WITH_US = ("setpriv", "--pdeathsig", "KILL")
_CGROUPS = Path("/sys/fs/cgroup")
_CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "systemd", "hugetlb",
                "net_cls", "net_prio", "perf_event", "rdma", "misc")
_NODES = ("n1", "n2")
_PREFIX = "velodrome-k8s-"
_UP_SECONDS = 240.0


class Kubernetes:
    """A running cluster; `kubeconfig` is an administrator's."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self.folder.chmod(0o755)
        self._guardian = subprocess.Popen(
            [sys.executable, "-P", __file__, "guard", str(self.folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, start_new_session=True, env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        )
        self.port = int(json.loads(self._answer())["port"])
        self.kubeconfig = self.folder / "keys" / "admin.kubeconfig"
        self.user_kubeconfig = self.folder / "keys" / "user.kubeconfig"

    def _answer(self) -> str:
        assert self._guardian.stdout is not None
        if not (line := self._guardian.stdout.readline()):
            output = self.folder / "output.log"
            raise RuntimeError("Kubernetes did not come up: " + (output.read_text()[-3000:] if output.exists() else ""))
        return line

    def do(self, line: str) -> None:
        """Do something to the cluster, as `Inside.obey` reads it."""
        assert self._guardian.stdin is not None
        self._guardian.stdin.write(f"{line}\n")
        self._guardian.stdin.flush()
        if (answer := self._answer().strip()) != "done":
            raise RuntimeError(f"{line}: {answer}")

    def close(self) -> None:
        assert self._guardian.stdin is not None
        self._guardian.stdin.close()
        self._guardian.wait(120)


def _groups(folder: Path) -> list[Path]:
    """The control groups of the nodes."""
    return [_CGROUPS / controller / f"{folder.name}-{node}" for controller in _CONTROLLERS for node in _NODES
            if (_CGROUPS / controller).is_dir()]


def _make_groups(folder: Path) -> None:
    for group in _groups(folder):
        group.mkdir(exist_ok=True)
        for name in ("cpuset.cpus", "cpuset.mems"):
            if (own := group / name).exists():
                own.write_text((group.parent / name).read_text())


def _remove_groups(folder: Path) -> None:
    deadline = time.monotonic() + 20
    while left := [group for group in _groups(folder) if group.exists()]:
        for group in left:
            for place, _, _ in os.walk(group, topdown=False):
                with suppress(OSError):
                    os.rmdir(place)  # noqa: PTH106
        if time.monotonic() > deadline:
            raise RuntimeError(f"control groups are left: {left}")
        time.sleep(0.1)


def remove_leftovers() -> None:
    """Remove what guardians left that were killed themselves: control groups and folders, without a process in them."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        if (folder / "guardian").exists() and not _lives(folder):
            _remove_groups(folder)
            shutil.rmtree(folder, ignore_errors=True)


def _lives(folder: Path) -> bool:
    with suppress(OSError, ValueError):
        return str(folder) in Path(f"/proc/{(folder / 'guardian').read_text()}/cmdline").read_text()
    return False


def guard(folder: Path) -> None:
    """Start the cluster, pass commands on, and remove everything when the input closes."""
    (folder / "guardian").write_text(str(os.getpid()))
    _make_groups(folder)
    script = f'exec 3<&0; "$0" -P {Path(__file__).with_name("kubernetes_inside.py")} {folder} <&3 & wait $!'
    with (folder / "output.log").open("wb") as log:
        inside = subprocess.Popen(
            # The shell is the first process: it ends the zombies that others leave.
            [*_WITH_US, "unshare", "--pid", "--fork", "--kill-child=KILL", "--mount", "--mount-proc",
             "sh", "-c", script, sys.executable], stdin=subprocess.PIPE, stderr=log,
        )
    try:
        assert inside.stdin is not None
        for line in sys.stdin:
            inside.stdin.write(line.encode())
            inside.stdin.flush()
    except OSError:
        pass
    finally:
        inside.kill()  # and with it its child, and with that every process of the cluster
        inside.wait()
        _remove_groups(folder)
        for _ in range(50):
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                break
            time.sleep(0.1)


def main(words: Sequence[str]) -> None:
    """Build it; with a command, start one and run the command with its KUBECONFIG."""
    if words[:1] == ["guard"]:
        guard(Path(words[1]))
        return
    prepare()
    print(unavailable() or "Kubernetes is built")
    if words:
        remove_leftovers()
        cluster = Kubernetes()
        try:
            sys.exit(subprocess.run(words, env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}).returncode)
        finally:
            cluster.close()


if __name__ == "__main__":
    main(sys.argv[1:])
