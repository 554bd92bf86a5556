"""A launcher for hosts without a common disk: everything but how the stream to a host's agent comes about."""

from __future__ import annotations

import os
import secrets
import threading
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from velodrome.catalog.base import Engine
from velodrome.catalog.registry import engine_of
from velodrome.clusters import environments, preflight
from velodrome.clusters.environments import hosts as host_environments
from velodrome.clusters.interrupts import rollback
from velodrome.clusters.launcher import Allocation, Examination, Finding, Launcher, Notice, no_notice, refuse
from velodrome.clusters.plan import PORTS, Plan, Process, place
from velodrome.clusters.remote import RemoteOptions, checks, starting
from velodrome.clusters.remote.channels import Channel, agent_source
from velodrome.clusters.remote.group import HostRun, RemoteGroup, in_parallel
from velodrome.clusters.remote.link import READY_SECONDS, HostError, Link, close_all
from velodrome.clusters.remote.starting import Code, code_of, modules_of
from velodrome.errors import VelodromeError
from velodrome.job.job import Job
from velodrome.job.resolve import roles_of

_PORTS_AT_ONCE = 16


class RemoteLauncher(Launcher):
    """Starts processes through an agent on each host, which lives until the launcher is closed."""

    divisible = True

    def __init__(self, options: RemoteOptions) -> None:
        self.options = options
        self._placement = options.policy
        self.links: dict[str, Link] = {}
        #: Findings about hosts by engine, strategy and hosts: they are checked once.
        self._checked: dict[tuple[str, ...], list[Finding]] = {}

    @abstractmethod
    def hosts(self) -> list[str]:
        """The names of the hosts, in the order in which processes are placed on them."""

    @abstractmethod
    def open_channel(self, host: str, session: str) -> Channel:
        """Start an agent on a host (`channels.agent_words`), whose session has that name; the stream to it."""

    @property
    def ready_seconds(self) -> float:
        """How long it may take until an agent is there, once its stream is being opened."""
        return READY_SECONDS

    def open_link(self, host: str, channel: Channel) -> Link:
        """The link to an agent that is there; `HostError` if it does not come."""
        link = self.link(host, channel)
        with rollback(link.close):
            link.wait_until_ready(self.ready_seconds)
            link.read_clock()
        return link

    def link(self, host: str, channel: Channel) -> Link:
        """A link that brings the agent to its host."""
        return Link(host, channel, self.options.silence, agent_source())

    def code(self, job: Job) -> Code:
        """The user's code that a job sends to each host."""
        return code_of(job, self.options.code, self.options.code_limit)

    def address(self, link: Link) -> str:
        """The address at which other hosts reach a host."""
        return self.options.addresses.get(link.host, link.host)

    def interpreter(self, link: Link, engine: Engine) -> host_environments.Interpreter:
        """The interpreter on a host that trains with an engine: the one that is configured for it, that of the engine's
        own environment there, or the host's."""
        options = self.options
        if chosen := options.interpreters.get(engine.key):
            return host_environments.Interpreter(_at_home(chosen, link))
        folder = options.environment.get(environments.FOLDER) or str(link.facts["environments"])
        if own := host_environments.own_interpreter(link, engine, _at_home(folder, link)):
            return own
        python = _at_home(options.python, link) if options.python else str(link.facts["interpreter"])
        return host_environments.Interpreter(python)

    def pythons(self, links: Sequence[Link], engine: Engine) -> dict[str, str]:
        """The paths of these interpreters on several hosts."""
        return in_parallel(links, lambda link: self.interpreter(link, engine).path)

    def connect(self, hosts: Sequence[str]) -> dict[str, Link]:
        """The links to these hosts, opened at the same time; `HostError` with a sentence for each that fails."""
        if errors := self.try_to_connect(hosts):
            raise HostError("; ".join(errors.values()))
        return {host: self.links[host] for host in hosts}

    def try_to_connect(self, hosts: Sequence[str]) -> dict[str, str]:
        """Open the links to these hosts that are not open yet; a sentence for each host that cannot be reached."""

        opened: list[Channel] = []
        given_up = threading.Event()

        def open_host(host: str) -> Link:
            channel = self.open_channel(host, secrets.token_hex(12))
            opened.append(channel)
            if given_up.is_set():
                channel.close()
            return self.open_link(host, channel)

        missing = [host for host in dict.fromkeys(hosts) if host not in self.links or self.links[host].lost is not None]
        with ThreadPoolExecutor(max(1, len(missing))) as pool:
            futures = {host: pool.submit(open_host, host) for host in missing}
            try:
                wait(futures.values())
            except BaseException:  # Ctrl-C does not wait for hosts that do not answer
                given_up.set()
                close_all(opened)
                raise
        errors = {}
        for host, future in futures.items():
            error = future.exception()
            if error is None:
                self.links[host] = future.result()
            elif isinstance(error, VelodromeError | OSError):
                errors[host] = str(error)
            else:
                raise error
        return errors

    def used_hosts(self, job: Job) -> list[str]:
        """The hosts that a job will run on: the others need not be there."""
        hosts = self.hosts()
        if self._placement.policy == "pack" and self._placement.slots is None:
            return hosts
        return [host for host in hosts if host in set(place(roles_of(job), hosts, self._placement))]

    def check(self, job: Job) -> None:
        """Refuse a job whose hosts cannot be reached, or that they cannot run."""
        self.code(job)
        hosts = self.used_hosts(job)
        refuse(self._unreachable(hosts))
        links = self.connect(hosts)
        used = [*links.values()]
        refuse(checks.loopback(used, {link.host: self.address(link) for link in used}))
        key = (engine_of(job).key, job.strategy, *hosts)
        if key not in self._checked:
            self._checked[key] = self.cheap_checks(used, job)
        refuse(self._checked[key])

    def cheap_checks(self, links: Sequence[Link], job: Job) -> list[Finding]:
        """What hosts lack for a job: packages, clocks, disk and memory."""
        roles = roles_of(job)
        placed = Counter(place(roles, self.hosts(), self._placement, self.host_cores))
        return checks.cheap(links, job, self.interpreter, placed, preflight.needed_memory(job) // len(roles))

    def _unreachable(self, hosts: Sequence[str]) -> list[Finding]:
        return [
            Finding.from_sentence("reachable", host, sentence, "see whether it is up and can be reached from here")
            for host, sentence in self.try_to_connect(hosts).items()
        ]

    def prepare_hosts(self, engines: Sequence[str], wheelhouse: Path | None) -> list[dict[str, object]] | None:
        links = self.connect(self.hosts())
        return host_environments.prepare_all([*links.values()], engines, wheelhouse)

    def sent_code(self, job: Job) -> Mapping[str, Any] | None:
        sent = self.code(job)
        return {"checksum": sent.checksum, "bytes": sent.size, "files": sent.listing()} if sent.files else None

    @property
    def host_cores(self) -> Mapping[str, int]:
        return {host: int(link.facts["cores"]) for host, link in self.links.items()}

    def examine(self, job: Job, *, measure: bool = False, notice: Notice = no_notice) -> Examination:
        """Everything that is wrong with the hosts for a job, and what was measured between pairs of them."""
        try:
            unreachable = self._unreachable(self.hosts())
        except VelodromeError as error:  # of a cluster whose hosts only its own head knows, or without a client
            return Examination([Finding.from_sentence("reachable", None, str(error))])
        links = [link for link in self.links.values() if link.lost is None]
        if not links:
            return Examination(unreachable)
        addresses = {link.host: self.address(link) for link in links}
        code = self.code(job)

        def code_and_data() -> list[Finding]:
            pythons = self.pythons(links, engine_of(job))
            plan, folder = Plan("doctor", job, ()), Path(self.options.shared_dir or ".")
            return checks.code_and_data(
                links, starting.Request(plan, folder, secrets.token_hex(12), code, self.options, pythons, False)
            )

        groups, pairs = checks.examine(
            {
                "versions": lambda: self.cheap_checks(links, job),
                "names": lambda: checks.names(links, addresses),
                "network": lambda: checks.ports(links, addresses),
                "job": code_and_data,
                "environment": lambda: checks.everywhere(links, "versions", host_environments.verify),
            },
            (lambda: checks.measure(links, addresses)) if measure else None,
        )
        return Examination(unreachable + groups, pairs)

    def divide(self, jobs: Sequence[Job]) -> list[Launcher]:
        """Launchers for disjoint parts of the hosts; pinned processes leave no choice."""
        hosts, need = self.hosts(), max(len(self.used_hosts(job)) for job in jobs)
        count = len(hosts) // need
        if self._placement.pins or count < 2:
            return [self]
        return [self.part(hosts[number * need : (number + 1) * need]) for number in range(count)]

    @abstractmethod
    def part(self, hosts: Sequence[str]) -> Launcher:
        """A launcher like this one, for some of its hosts."""

    def prepare(self, engines: Sequence[str]) -> None:
        """Connect to all hosts: the connections serve all jobs."""
        self.connect(self.hosts())

    def allocate(self, job: Job, folder: Path | None = None, notice: Notice = no_notice) -> Allocation:
        links = self.connect(self.used_hosts(job))
        free: dict[str, list[int]] = {host: [] for host in links}

        def port(host: str) -> int:
            if not free[host]:
                tried = secrets.SystemRandom().sample(PORTS, 200)
                answer, _ = links[host].ask("ports", ports=tried, count=_PORTS_AT_ONCE)
                free[host] = list(answer["ports"])
            if not free[host]:
                raise HostError(f"{host!r} has no free port between {PORTS.start} and {PORTS.stop}")
            return free[host].pop()

        facts: dict[str, Any] = {"hosts": {host: _described(self, link) for host, link in links.items()}}
        if (code := self.code(job)).files:
            named = [self.options.code] if self.options.code else [*modules_of(job), *filter(None, [job.script])]
            facts["code"] = {"of": named, "checksum": code.checksum, "files": len(code.files), "bytes": code.size}
        return Allocation(
            tuple(links), port, placement=self._placement, capacity=self.host_cores, facts=facts,
            addresses={host: self.address(link) for host, link in links.items()},
        )

    def links_of(self, plan: Plan) -> Mapping[Process, Link]:
        """The links to agents of processes that have one of their own; by default those of the hosts start them."""
        return {}

    def group(self, plan: Plan, folder: Path, token: str, hosts: Mapping[str, HostRun]) -> RemoteGroup:
        """The group of a plan's processes, which have not been started yet."""
        shared = self.options.shared_dir is not None
        return RemoteGroup(token, folder, hosts, shared=shared, links=self.links_of(plan))

    def start(self, plan: Plan, folder: Path, *, resume: bool = False) -> RemoteGroup:
        token = secrets.token_hex(12)
        links = [self.links[host] for host in dict.fromkeys(process.host for process in plan.processes)]
        code = self.code(plan.job)
        pythons = self.pythons(links, engine_of(plan.job))
        request = starting.Request(plan, folder, token, code, self.options, pythons, resume)
        hosts = in_parallel(links, lambda link: starting.prepare_host(link, request))
        group = self.group(plan, folder, token, hosts)
        with rollback(group.stop):
            for process in plan.processes:
                group.add(process)
            starting.start_all(request, group)
        return group

    def close(self) -> None:
        close_all(self.links.values())
        self.links.clear()


def _at_home(path: str, link: Link) -> str:
    """A path with the host's home in place of `~`."""
    home = str(link.facts.get("home", ""))
    return os.path.join(home, path[2:]) if path.startswith("~/") and home else path  # noqa: PTH118


def _described(launcher: RemoteLauncher, link: Link) -> dict[str, object]:
    """What a result records about a host."""
    return {"address": launcher.address(link), "name": link.facts["host"], "cores": link.facts["cores"],
            "clock_offset": round(link.clock_offset, 3)}
