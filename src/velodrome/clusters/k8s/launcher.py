"""The launcher of Kubernetes: pods for each run, whose agents are reached through the API server only.

Each process has a pod of its own, and in it an agent that serves two files. The controller reads and writes these files
through programs that it starts in the pods (`channel`), so no pod connects to the controller and no disk is shared. The
outbox holds everything since the beginning: `velodrome attach` reads it again. A pod whose agent hears nobody for as
long as `lifeline` ends itself, and Kubernetes removes what has ended.
"""

from __future__ import annotations

import base64
import secrets
import signal
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from velodrome.catalog.registry import engine_of
from velodrome.clusters.k8s import K8sOptions, checks
from velodrome.clusters.k8s.api import Api
from velodrome.clusters.k8s.channel import MAIL, PodChannel
from velodrome.clusters.k8s.job import PodsJob, new_name, submit
from velodrome.clusters.k8s.kubeconfig import find_access
from velodrome.clusters.k8s.manifests import Pod, Run, role
from velodrome.clusters.launcher import Allocation, Deliver, Examination, Finding, Launcher, Notice, no_notice
from velodrome.clusters.remote.allocated import AllocatedGroup, AllocatedLauncher
from velodrome.clusters.remote.channels import agent_source, agent_words
from velodrome.clusters.remote.link import HostError, Link
from velodrome.errors import BadRequest, VelodromeError
from velodrome.job.job import Job
from velodrome.job.resolve import roles_of

_READY_SECONDS = 120.0
#: How long the names of pods may take to be known to all of them.
_NAMES_SECONDS = 60.0
_KILLED = signal.SIGKILL.name
#: Starts the agent, whose modules are its first word: it reads them from its standard input.
_BOOT = (
    "import base64,os,sys,tempfile,zlib\n"
    "os.makedirs(os.environ['HOME'],exist_ok=True)\n"
    "f=tempfile.TemporaryFile()\n"
    "f.write(zlib.decompress(base64.b64decode(sys.argv[1])))\n"
    "f.seek(0)\n"
    "os.dup2(f.fileno(),0)\n"
    "os.execv(sys.executable,[sys.executable,*sys.argv[2:]])"
)
#: Where a container's own memory group counts the processes that it ended: control groups of version 2, and of 1.
_COUNTS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")


def agent_command(options: K8sOptions, session: str) -> list[str]:
    """The command of a container that is an agent."""
    source = base64.b64encode(zlib.compress(agent_source(), 9)).decode()
    words = agent_words(session, options.lifeline, options.root, f"{MAIL}/in", f"{MAIL}/out")
    return [options.python or "python3", "-I", "-S", "-c", _BOOT, source, *words]


def run_of(job: Job, options: K8sOptions, name: str) -> Run:
    """The pods of a job, each with an agent."""
    image = options.required_image(engine_of(job))
    pods = [
        Pod(f"{role}-{rank}", role, agent_command(options, f"{name}-{role}-{rank}")) for role, rank in roles_of(job)
    ]
    return Run(name, pods, image, annotations={"velodrome/strategy": f"{job.engine}/{job.strategy}"})


@dataclass
class PodGroup(AllocatedGroup):
    """Processes in pods: what the system or Kubernetes did to one is part of how it ended."""

    def wait(self, seconds: float, deliver: Deliver) -> None:
        before = set(self._exits)
        super().wait(seconds, deliver)
        assert isinstance(self.job, PodsJob)
        for process in [process for process in self._exits if process not in before]:
            end = self._exits[process]
            if end.signal == _KILLED and self._ran_out_of_memory(process.host):
                limit = self.job.memory_limit
                self._exits[process] = replace(end, cause=f"was ended by {_KILLED}: pod {process.host!r} used more "
                                               f"memory than {limit} (OOMKilled)")
            elif end.is_lost and (reason := self.job.reason_of(process.host)):
                self._exits[process] = replace(end, cause=f"was lost: pod {process.host!r}: {reason}")

    def _ran_out_of_memory(self, host: str) -> bool:
        """Whether the system ended a process of a pod because its memory was used up."""
        try:
            ran = self.hosts[host].link.run(["cat", *_COUNTS], limit=5.0)
        except HostError:
            return False
        counts = [line.split() for line in ran.output.splitlines()]
        return any(line[0] in ("oom_kill", "oom_group_kill") and line[1] != "0" for line in counts if len(line) == 2)


class K8sLauncher(AllocatedLauncher):
    """Makes the pods of each run and starts processes through their agents."""

    name = "k8s"
    scheduler = "Kubernetes"
    group_class = PodGroup
    options: K8sOptions
    _job: PodsJob | None = None
    _api: Api | None = None

    @property
    def api(self) -> Api:
        """The API server, connected to when it is first needed."""
        if self._api is None:
            self._api = Api.connect(self.options.context, self.options.namespace)
        return self._api

    @property
    def job(self) -> PodsJob:
        assert self._job is not None, "the pods of a job were asked for"
        return self._job

    def part(self, hosts: Sequence[str]) -> K8sLauncher:
        return K8sLauncher(self.options)

    def divide(self, jobs: Sequence[Job]) -> list[Launcher]:
        """As many runs at the same time as quota and nodes have room for."""
        need = max(len(roles_of(job)) for job in jobs)
        count = min(checks.room(self.api, self.options) // need, len(jobs))
        return [self.part(()) for _ in range(count)] if count > 1 else [self]

    def check(self, job: Job) -> None:
        """Refuse a job without an image, and a cluster that cannot be reached or does not let us."""
        if self._placement.pins:
            raise BadRequest("--place: each process has a pod of its own; choose nodes by node_selector instead")
        run = run_of(job, self.options, new_name())
        super().check(job)
        checks.require(self.api, run, self.options)

    @classmethod
    def living(cls, folder: Path) -> str | None:
        from velodrome.clusters.k8s.attached import living_pods

        return living_pods(folder)

    @classmethod
    def attached(cls, folder: Path) -> K8sLauncher:
        from velodrome.clusters.k8s.attached import AttachedLauncher

        return AttachedLauncher(folder)

    def prepare_hosts(self, engines: Sequence[str], wheelhouse: Path | None) -> list[dict[str, object]] | None:
        raise BadRequest("--on k8s: pods have what their image has: name an image with velodrome and the engines")

    def remove_leftovers(self) -> list[str]:
        return checks.clean(self.api)

    def permissions(self) -> str:
        namespace = self.options.namespace
        with suppress(VelodromeError):
            namespace = namespace or find_access(self.options.context).namespace
        return yaml.safe_dump_all(role(namespace or "default", self.options), sort_keys=False)

    @property
    def queue_seconds(self) -> float:
        return self.options.start_timeout

    @property
    def ready_seconds(self) -> float:
        return _READY_SECONDS

    def submit(self, job: Job, *, to_examine: bool = False) -> PodsJob:
        """Make the pods of a job."""
        return submit(self.api, run_of(job, self.options, new_name()), self.options)

    def open_channel(self, host: str, session: str) -> PodChannel:
        job = self.job
        return PodChannel(self.api, lambda: job.pod_of(host), self.options.python or "python3",
                          lambda: job.end_of(host), self.options.silence)

    def link(self, host: str, channel: Any) -> Link:
        """The link to an agent that the pod has started, and that may have answered another controller before."""
        return Link(host, channel, self.options.silence, first=secrets.randbits(40))

    def connect(self, hosts: Sequence[str]) -> dict[str, Link]:
        """The links to all pods, which know one another by name."""
        fresh = [host for host in hosts if host not in self.links]
        links = super().connect(hosts)
        if fresh and hosts:
            self._wait_for_names([*links.values()])
        return links

    def _wait_for_names(self, links: Sequence[Link]) -> None:
        """Return when every pod resolves the names of all; names are known a moment after their pods run."""
        names = [self.address(link) for link in links]
        deadline = time.monotonic() + _NAMES_SECONDS
        missing = {link.host: names for link in links}
        while missing:
            asked = [(link, link.send("resolve", names=missing[link.host])) for link in links if link.host in missing]
            for link, number in asked:
                answer, _ = link.wait(number, "resolve")
                unknown = [name for name, addresses in answer["addresses"].items() if not addresses]
                missing[link.host] = unknown
                if not unknown:
                    del missing[link.host]
            if missing and time.monotonic() > deadline:
                host, unknown = next(iter(missing.items()))
                raise HostError(f"{host!r} does not resolve {unknown[0]!r}: see whether the DNS of the cluster runs "
                                "(`kubectl -n kube-system get pods -l k8s-app=kube-dns`)")
            if missing:
                time.sleep(0.1)

    def address(self, link: Link) -> str:
        """Its name below the service of the run."""
        return self.options.addresses.get(link.host) or f"{link.host}.{self.job.name}"

    def _nodes_for(self, job: Job, notice: Notice) -> Allocation:
        allocation = super()._nodes_for(job, notice)
        state = self.job.state
        nodes = {name: pod.node for name, pod in state.pods.items()}
        return replace(allocation, facts={**allocation.facts, "pods": self.job.name, "namespace": self.api.namespace,
                                          "nodes": nodes})

    def examine(self, job: Job, *, measure: bool = False, notice: Notice = no_notice) -> Examination:
        """Whether the API server can be reached and lets us, what the quota leaves, and what pods are like."""
        try:
            findings = checks.examine(self.api, self.options, len(roles_of(job)))
        except VelodromeError as error:
            return Examination([Finding.from_sentence("reachable", None, str(error))])
        if any(finding.level == "error" for finding in findings):
            return Examination(findings)
        examined = super().examine(job, measure=measure, notice=notice)
        return Examination([*findings, *examined.findings], examined.pairs)

    def close(self) -> None:
        super().close()
        if self._api is not None:
            self._api.close()
            self._api = None
