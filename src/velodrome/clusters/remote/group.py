"""The processes of a run on several hosts as one group, through the agents of the hosts."""

from __future__ import annotations

import errno
import os
import queue
import re
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TypeVar

from velodrome import files
from velodrome.catalog.segments import pattern_of_run
from velodrome.clusters.launcher import Deliver, Diagnosis, Exit, Group
from velodrome.clusters.local.launcher import most_relevant_thread, waits_for_others
from velodrome.clusters.plan import Process
from velodrome.clusters.remote.agent import Header
from velodrome.clusters.remote.link import HostError, HostLost, Link
from velodrome.errors import VelodromeError

#: How many reports of agents may wait for the supervisor; agents, and then processes, wait when there are more.
_MOST_WAITING = 10_000
_STOP_SECONDS = 15.0
_COLLECT_SECONDS = 900.0
_DIAGNOSE_SECONDS = 15.0
_BRIEF_SECONDS = 3.0
#: Folders of a run that its processes write to. Beside them only a script of the user's own and Horovod's timeline put
#: files, and never the controller's, which are read as what it wrote itself.
_COLLECTED = ("checkpoints", "logs", "model", "tensorboard")
_OWN = re.compile(
    r"\..*|.*\.(half|lock|ya?ml)|(events|calibration).*\.jsonl|(plan|result|slurm|k8s)\.json|report\..*", re.IGNORECASE
)
#: A name or a part of it: nothing that a file system or a shell reads as something else.
_PART = re.compile(r"(?!\.{1,2}$)[^/\\\x00-\x1f\x7f]+")
#: Bytes of a part, which leave room for the end of a partial file's name, and parts of a name.
_LONGEST_PART, _MOST_PARTS = 240, 64
#: Errors of a path and not of the disk: they are up to the name that a host chose.
_OF_NAME = frozenset({errno.ENAMETOOLONG, errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ELOOP, errno.EILSEQ})

_KEPT_CHECKPOINTS = 2
#: Sentences about files that were refused; nobody reads more.
_MOST_WARNINGS = 10
Outcome = TypeVar("Outcome")


@dataclass(frozen=True)
class HostRun:
    """A run on one host."""

    link: Link
    #: The run's folder on the host.
    folder: str
    #: Where the user's code lies on the host.
    code: str
    #: The interpreter of the run's engine.
    python: str


@dataclass
class RemoteGroup(Group):
    """All processes of a plan, on hosts with agents."""

    token: str
    folder: Path
    hosts: Mapping[str, HostRun]
    #: Whether hosts write into the run's folder itself.
    shared: bool = False
    #: The agents of processes that have one of their own; those of the hosts start the others.
    links: Mapping[Process, Link] = field(default_factory=dict)
    _exits: dict[Process, Exit] = field(default_factory=dict)
    _names: dict[tuple[str, str], Process] = field(default_factory=dict)
    #: The partial file that each host is sending: one at a time.
    _files: dict[str, tuple[Path, IO[bytes]]] = field(default_factory=dict)
    #: Why files were not stored, each sentence once.
    _refused: dict[str, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._reports: queue.Queue[tuple[Link, Header, bytes]] = queue.Queue(_MOST_WAITING)
        self._open = True
        for link in self._agents():
            link.take = self.take_over

    def link_of(self, process: Process) -> Link:
        """The link to the agent that starts a process."""
        return self.links[process] if process in self.links else self.hosts[process.host].link

    def _agents(self) -> list[Link]:
        """All agents, those of the hosts last: the folders that processes write to are theirs."""
        hosts = [host.link for host in self.hosts.values()]
        return [*dict.fromkeys(link for link in self.links.values() if link not in hosts), *hosts]

    def take_over(self, link: Link, header: Header, body: bytes) -> None:
        """Take what an agent reports; called by the thread of a link."""
        while self._open and link.lost is None:
            with suppress(queue.Full):
                self._reports.put((link, header, body), timeout=0.5)
                return

    def add(self, process: Process) -> None:
        """Expect the output of a process that is about to start."""
        self._names[process.host, process.file_name] = process

    def wait(self, seconds: float, deliver: Deliver) -> None:
        with suppress(queue.Empty):
            self._handle(self._reports.get(timeout=seconds), deliver)
            while True:
                self._handle(self._reports.get_nowait(), deliver)
        for process in self._names.values():
            lost = self.link_of(process).lost
            if lost is not None and process not in self._exits and self._reports.empty():
                self._exits[process] = Exit(None, None, f"was lost: host {lost}")

    def _handle(self, report: tuple[Link, Header, bytes], deliver: Deliver | None) -> None:
        link, header, body = report
        if header.get("run") != self.token:
            return
        if header.get("is") == "file":
            self._write(link.host, header, body)
            return
        name = header.get("id")
        process = self._names.get((link.host, name)) if isinstance(name, str) else None
        if process is None:
            return
        if header.get("is") == "out" and deliver is not None:
            for line in body.split(b"\n"):
                deliver(process, line.decode(errors="replace"))
        elif header.get("is") == "exit":
            code = header.get("code")
            self._exits[process] = Exit.from_returncode(code if isinstance(code, int) else 1)

    def _write(self, host: str, header: Header, body: bytes) -> None:
        """Append to a file of the run's folder, which gets its name when every chunk of it has arrived in order."""
        name = header.get("name")
        try:
            if (reason := self._refusal(name)) is None:
                self._append(host, self.folder / str(name), header, body)
        except OSError as error:
            if error.errno not in _OF_NAME:
                raise
            self._drop(host)
            reason = error.strerror
        if reason is not None:
            self._refused[f"host {host!r} sent a file {str(name)[:120]!r}, which was not stored: {reason}"] = None

    def _append(self, host: str, path: Path, header: Header, body: bytes) -> None:
        partial = path.with_name(f"{path.name}.{list(self.hosts).index(host)}.part")
        if header.get("at") == 0:  # a file that is sent again begins anew
            self._drop(host)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._files[host] = partial, partial.open("wb")
        begun, stream = self._files.get(host, (None, None))
        if begun != partial or stream is None or stream.tell() != header.get("at"):
            self._drop(host)  # a chunk is missing: what was stored before stays
            return
        stream.write(body)
        if header.get("last"):
            self._files.pop(host)[1].close()
            self._complete(path, partial)

    def _refusal(self, name: object) -> str | None:
        """Why a host may not write a file of this name; None if it may."""
        parts = name.split("/") if isinstance(name, str) else []
        if not 1 <= len(parts) <= _MOST_PARTS or not all(map(_is_plain, parts)):
            return "its name is not a plain path inside the run's folder"
        if _OWN.fullmatch(parts[0]) or name in _COLLECTED:
            return "only the controller writes a file of that name"
        path = self.folder.joinpath(*parts)
        if files.is_linked(path, self.folder):
            return "the run's folder has a link of that name"
        above = [self.folder.joinpath(*parts[:count]) for count in range(1, len(parts))]
        if path.is_dir() or any(parent.exists() and not parent.is_dir() for parent in above):
            return "the run's folder has something else of that name"
        return None

    def warnings(self) -> list[str]:
        """What hosts did that is worth a warning, since the last time."""
        refused = [*self._refused]
        self._refused.clear()
        return refused[:_MOST_WARNINGS] + (["hosts sent more such files"] if refused[_MOST_WARNINGS:] else [])

    def _drop(self, host: str) -> None:
        """Forget the file that arrived in part."""
        if (begun := self._files.pop(host, None)) is not None:
            begun[1].close()
            begun[0].unlink(missing_ok=True)

    def _complete(self, path: Path, partial: Path) -> None:
        if path.parent.name == "logs" and path.exists():  # the controller writes there too
            with path.open("ab") as stream:
                stream.write(partial.read_bytes())
            partial.unlink()
            return
        partial.replace(path)
        if path.parent == self.folder / "checkpoints":  # hosts keep the newest few only, and so does the run
            for old in sorted(path.parent.glob("epoch-*.safetensors"))[:-_KEPT_CHECKPOINTS]:
                old.unlink(missing_ok=True)

    def exit_of(self, process: Process) -> Exit | None:
        return self._exits.get(process)

    def diagnose(self, process: Process, *, brief: bool = False) -> Diagnosis:
        host, link = self.hosts[process.host], self.link_of(process)
        if link.lost is None and link.quiet_seconds < 5.0:
            with suppress(HostError):
                answer, body = link.ask(
                    "diagnose", token=self.token, id=process.file_name, brief=brief, python=host.python,
                    seconds=_BRIEF_SECONDS if brief else _DIAGNOSE_SECONDS,
                )
                stack = body.decode(errors="replace")
                return Diagnosis(stack, most_relevant_thread(stack) if stack else "", bool(answer.get("stopped")),
                                 bool(host.code) and host.code in stack, waits=waits_for_others(stack))
        reason = link.lost or f"{process.host!r} has not answered for {link.quiet_seconds:.0f} s"
        return Diagnosis(f"(no stack: host {reason})", f"(no stack: host {reason})", cut_off=True)

    def collect(self, given_up: Callable[[], bool]) -> None:
        if self.shared:
            return
        asked, missing = [], []
        for host in self.hosts.values():
            if host.link.lost is None:
                asked.append((host, host.link.send("collect", token=self.token, folder=host.folder)))
            else:
                missing.append(host.link.lost)
        pool = ThreadPoolExecutor(max(1, len(asked)))
        waiting = [pool.submit(host.link.wait, number, "collect", _COLLECT_SECONDS) for host, number in asked]
        pool.shutdown(wait=False)  # a thread that still waits when it is given up ends with the link
        while not all(future.done() for future in waiting) or not self._reports.empty():
            if given_up():
                for _ in range(self._reports.qsize()):
                    self._handle(self._reports.get(), None)
                return
            with suppress(queue.Empty):
                self._handle(self._reports.get(timeout=0.1), None)
        for future in waiting:
            error = future.exception()
            if isinstance(error, HostError):
                missing.append(str(error))
            elif error is not None:
                raise error
        if missing:
            raise VelodromeError("; ".join(missing))

    def stop(self) -> None:
        self._open = False
        segments = pattern_of_run(self.token)
        folders = {host.link: host.folder for host in self.hosts.values() if not self.shared}
        asked = [
            (link, link.send("stop", token=self.token, segments=segments, folder=folders.get(link, "")))
            for link in self._agents() if link.lost is None
        ]
        deadline = time.monotonic() + _STOP_SECONDS
        for link, number in asked:
            try:
                answer, _ = link.wait(number, "stop", max(0.5, deadline - time.monotonic()))
                unfinished = bool(answer.get("left"))
            except HostError:
                unfinished = True
            if unfinished:  # what an agent cannot end, the end of its session does
                link.close()
        for _, stream in self._files.values():
            stream.close()
        for partial in self.folder.glob("**/*.part"):
            partial.unlink(missing_ok=True)
        for link in self._agents():
            link.take = None


def _is_plain(part: str) -> bool:
    """Whether a part of a name from a host is one that any file system stores as it is."""
    try:
        return _PART.fullmatch(part) is not None and len(os.fsencode(part)) <= _LONGEST_PART
    except UnicodeEncodeError:
        return False


def in_parallel(links: Iterable[Link], work: Callable[[Link], Outcome]) -> dict[str, Outcome]:
    """Do the same on all hosts at the same time; results by host, or the first error with all sentences in it."""
    links = list(links)
    pool = ThreadPoolExecutor(max(1, len(links)))
    futures = {link.host: pool.submit(work, link) for link in links}
    pool.shutdown(wait=False)  # Ctrl-C does not wait for the work, which ends with the links
    wait(futures.values())
    errors = [future.exception() for future in futures.values()]
    for error in errors:
        if error is not None and not isinstance(error, VelodromeError):
            raise error
    if any(errors):
        kind = HostLost if any(isinstance(error, HostLost) for error in errors) else HostError
        raise kind("; ".join(str(error) for error in errors if error is not None))
    return {host: future.result() for host, future in futures.items()}
