"""A real Slurm on this machine, from Debian's packages: each node is a namespace with its own name and address.

Needs Linux, root and the packages `slurm-wlm` and `munge`, which `python tests/servers/slurm.py` installs with
apt-get. Nothing of it touches the machine's own network.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import debian

TOOLS = ("slurmctld", "slurmd", "sbatch", "munged", "ip", "nsenter", "unshare", "setpriv")
#: What is started so ends with the process that starts it, even if that is killed.
_WITH_US = ("setpriv", "--pdeathsig", "KILL")
_CONTROLLER = "10.78.0.1"
_START_SECONDS = 60.0
_CONF = """
ClusterName=velodrome-test
SlurmctldHost=ctl({controller})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool_%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd_%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd_%n.log
SlurmctldPort=16817
SlurmdPort=16818
MpiDefault=none
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
MinJobAge=300
SlurmdTimeout=30
OverTimeLimit=0
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=60 State=UP PriorityTier=1 OverSubscribe=FORCE:4
PartitionName=short Nodes=ALL MaxTime=60 State=UP PriorityTier=1 OverSubscribe=FORCE:4
PartitionName=urgent Nodes=ALL MaxTime=60 State=UP PriorityTier=10
"""


def missing() -> list[str]:
    """What a Slurm on this machine would need."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return ["Linux and root"]
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    return [tool for tool in TOOLS if shutil.which(tool, path=path) is None]


class Slurm:
    """A controller and several nodes, in the namespace of this process and in namespaces of their own."""

    def __init__(self, nodes: int = 2, cpus: int = 4) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="velodrome-slurm-"))
        self.folder.chmod(0o755)
        self.names = [f"n{number}" for number in range(1, nodes + 1)]
        self.addresses = {name: f"10.78.0.{place + 10}" for place, name in enumerate(self.names)}
        self._started: list[subprocess.Popen[bytes]] = []
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._cpus = cpus
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    @property
    def environment(self) -> dict[str, str]:
        """What the commands of Slurm need."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def run(self, *words: str, check: bool = True) -> str:
        done = subprocess.run(
            words, env={**os.environ, **self.environment}, capture_output=True, text=True, timeout=280
        )
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [*_WITH_US, *words], stdin=subprocess.DEVNULL, stdout=(self.folder / "output.log").open("ab"),
            stderr=subprocess.STDOUT, start_new_session=True, env={**os.environ, **self.environment},
        )
        self._started.append(process)
        return process

    def _begin(self) -> None:
        for name in ("munge", "state", *(f"spool_{node}" for node in self.names)):
            (self.folder / name).mkdir()
        rows = [f"NodeName={name} NodeAddr={self.addresses[name]} CPUs={self._cpus} State=UNKNOWN"
                for name in self.names]
        (self.folder / "slurm.conf").write_text(
            _CONF.format(controller=_CONTROLLER, folder=self.folder, nodes="\n".join(rows))
        )
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        self._munge()
        self._bridge()
        self._start("unshare", "--uts", "bash", "-c",
                    f"hostname ctl; exec slurmctld -D -f {self.folder}/slurm.conf")
        for name in self.names:
            self._node(name)
        self.wait_until_idle()

    def wait_until_idle(self) -> None:
        """Return when every node can take a job."""
        deadline = time.monotonic() + _START_SECONDS
        while len(self.run("sinfo", "-h", "-N", "-t", "idle", "-p", "main", "-o", "%n", check=False).split()) < len(
            self.names
        ):
            if time.monotonic() > deadline:
                raise RuntimeError(f"Slurm does not come up: {(self.folder / 'output.log').read_text()[-2000:]}")
            time.sleep(0.2)

    def _munge(self) -> None:
        place = self.folder / "munge"
        (place / "key").write_bytes(os.urandom(1024))
        (place / "key").chmod(0o600)
        subprocess.run(["chown", "-R", "munge:munge", str(place)], check=True)
        place.chmod(0o755)
        self._start(
            "--reuid=munge", "--regid=munge", "--clear-groups", "munged", "--foreground", "--force",
            f"--key-file={place}/key", f"--socket={place}/socket", f"--pid-file={place}/pid", f"--log-file={place}/log",
            f"--seed-file={place}/seed",
        )
        deadline = time.monotonic() + 20
        while not (place / "socket").exists():
            if time.monotonic() > deadline:
                raise RuntimeError("munged does not come up")
            time.sleep(0.05)

    def _bridge(self) -> None:
        subprocess.run(["ip", "link", "add", "slurmbr", "type", "bridge"], check=True)
        subprocess.run(["ip", "address", "add", f"{_CONTROLLER}/24", "dev", "slurmbr"], check=True)
        subprocess.run(["ip", "link", "set", "slurmbr", "up"], check=True)

    def _node(self, name: str) -> None:
        # The namespace outlives its daemon, which may be killed and started again.
        down = self._down(name)
        script = (
            f"hostname {name}; echo ready; read line; while true; "
            f"do {' '.join(_WITH_US)} slurmd -D -f {self.folder}/slurm.conf -N {name}; "
            f"sleep 0.2; while [ -e {down} ]; do sleep 0.2; done; done"
        )
        process = subprocess.Popen(
            [*_WITH_US, "unshare", "--net", "--uts", "bash", "-c", script], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=(self.folder / "output.log").open("ab"), start_new_session=True,
            env={**os.environ, **self.environment},
        )
        self._started.append(process)
        self._nodes[name] = process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        inside = ["nsenter", f"--target={process.pid}", "--net", "--"]
        port = f"port-{name}"
        for words in (
            ["ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(process.pid)],
            ["ip", "link", "set", port, "master", "slurmbr", "up"],
            [*inside, "ip", "link", "set", "lo", "up"],
            [*inside, "ip", "address", "add", f"{self.addresses[name]}/24", "dev", "eth0"],
            [*inside, "ip", "link", "set", "eth0", "up"],
        ):
            subprocess.run(words, check=True)
        process.stdin.write(b"go\n")
        process.stdin.close()

    def _down(self, name: str) -> Path:
        return self.folder / f"down-{name}"

    def kill_daemon(self, name: str) -> None:
        """Kill the slurmd of a node, which stays down until it is started again."""
        self._down(name).touch()
        # Not the steps, which are other programs.
        subprocess.run(["pkill", "-KILL", "-x", "slurmd", "--parent", str(self._nodes[name].pid)], check=True)

    def start_daemon(self, name: str) -> None:
        self._down(name).unlink()
        self.wait_until_idle()

    def cut(self, name: str) -> None:
        """Cut a node off the network."""
        subprocess.run(["ip", "link", "set", f"port-{name}", "down"], check=True)

    def heal(self, name: str) -> None:
        subprocess.run(["ip", "link", "set", f"port-{name}", "up"], check=True)
        # A daemon that starts reports to the controller at once; one that was not heard waits to be asked.
        self.kill_daemon(name)
        self.start_daemon(name)

    def jobs(self) -> list[str]:
        """The numbers of jobs that are waiting or running."""
        return self.run("squeue", "-h", "-o", "%i").split()

    def _end_steps(self) -> None:
        """End what daemons of this Slurm have left: each of its processes knows its configuration."""
        wanted = f"SLURM_CONF={self.folder / 'slurm.conf'}".encode()
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if (entry / "comm").read_text().startswith("slurm") and wanted in (entry / "environ").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)

    def close(self) -> None:
        """End all of it."""
        with suppress(Exception):
            if jobs := self.jobs():
                self.run("scancel", *jobs, check=False)
                time.sleep(1.0)
        for process in reversed(self._started):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        self._end_steps()
        for process in self._started:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        subprocess.run(["ip", "link", "del", "slurmbr"], capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)


def install() -> None:
    """Install Debian's packages, unless they are there."""
    if "Linux and root" in missing() or not missing():
        return
    debian.install(("slurm-wlm", "munge"))


def main(words: Sequence[str]) -> None:
    """Install it; with a command, also start one, run the command with its environment, and end it."""
    install()
    if not words:
        return
    slurm = Slurm()
    try:
        sys.exit(subprocess.run(words, env={**os.environ, **slurm.environment}).returncode)
    finally:
        slurm.close()


if __name__ == "__main__":
    main(sys.argv[1:])
