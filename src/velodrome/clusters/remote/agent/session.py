"""The agent itself: it serves one controller until their stream ends, or nothing has come for as long as its lease."""

from __future__ import annotations

import collections
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from velodrome.clusters.remote.agent import GREETING, Decoder, Files, Header, Pipes, Stream, encode, host
from velodrome.clusters.remote.agent.cleaning import MARK, Guardian, clean, kill_group, note_agent, remove_leftovers
from velodrome.clusters.remote.agent.host import HostFiles

#: A line without an end is passed on when it is as long as this.
_LONGEST_LINE = 8 << 20
Task = Callable[[Header, bytes], Any]


@dataclass
class Child:
    """A process of a run."""

    name: str
    token: str
    popen: subprocess.Popen[bytes]
    rest: bytes = b""

    @property
    def output(self) -> int:
        assert self.popen.stdout is not None
        return self.popen.stdout.fileno()


class Agent:
    """Serves one controller. Processes are started by the main thread: they end with the thread that started them."""

    def __init__(self, stream: Stream, session: str, lease: float, root: str) -> None:
        self._stream, self._session, self._lease = stream, session, lease
        self._root = Path(root).expanduser()
        self._folder = self._root / "sessions" / session
        self._guardian = Guardian(session)
        self._guardian.note(folder=str(self._folder))
        note_agent(self._folder)
        self._segments: set[str] = set()
        self._children: dict[tuple[str, str], Child] = {}
        #: The runs with processes here, or with results that nobody may have read yet.
        self._runs: set[str] = set()
        self._received = 0
        self._sending, self._ending = threading.Lock(), threading.Lock()
        self._requests: collections.deque[tuple[Header, bytes]] = collections.deque()
        self._wake, self._woken = os.pipe()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake, selectors.EVENT_READ, None)
        self._files = HostFiles(self._root, self.send)
        self._of_main_thread: dict[str, Task] = {
            "start": self._start, "put": self._files.put, "known": self._files.known, "watch": self._files.watch,
        }
        self._of_others: dict[str, Task] = {
            "facts": lambda header, body: self._facts(), "stop": self._stop, "diagnose": self._diagnose,
            "run": self._run, "has": self._files.has, "unpack": self._files.unpack, "collect": self._files.collect,
            "ports": host.ports, "resolve": host.resolve, "listen": host.listen, "connect": host.connect,
        }

    def send(self, header: Header, body: bytes = b"") -> None:
        """Write a frame; without a controller there is nothing left to do."""
        try:
            with self._sending:
                self._stream.write(encode(header, body))
        except OSError:
            self.end()

    def serve(self) -> None:
        """Work until the stream ends; never returns."""
        with self._sending:
            self._stream.write(GREETING)
        self.send({"is": "ready", **self._facts()})
        for work in (self._read, self._watch_lease, self._watch_files, lambda: remove_leftovers(self._root)):
            threading.Thread(target=work, daemon=True).start()
        while True:
            for key, _ in self._selector.select(timeout=0.2):
                if key.data is None:
                    os.read(self._wake, 4096)
                else:
                    self._pass_on(key.data)
            while self._requests:
                header, body = self._requests.popleft()
                self._answer(header, body, self._of_main_thread[header["do"]])
            self._reap()

    def end(self) -> None:
        """End everything of the session, then this process."""
        self._ending.acquire()  # for ever: others that come here wait for the end of the process
        for child in list(self._children.values()):
            kill_group(child.popen.pid)
        clean(self._session, self._segments, str(self._folder))
        os._exit(0)

    def _read(self) -> None:
        decoder = Decoder()
        with suppress(OSError, ValueError):
            while data := self._stream.read():
                self._received += len(data)
                for header, body in decoder.feed(data):
                    self._take(header, body)
        self.end()

    def _take(self, header: Header, body: bytes) -> None:
        do = header.get("do", "")
        if do == "ping":
            self.send({"is": "pong", "clock": time.time(), "asked": header.get("asked", 0.0)})
        elif do in self._of_main_thread:
            self._requests.append((header, body))
            os.write(self._woken, b"x")
        elif do in self._of_others:
            threading.Thread(target=self._answer, args=(header, body, self._of_others[do]), daemon=True).start()
        else:
            self.send({"is": "answer", "n": header.get("n"), "error": f"the agent knows no request {do!r}"})

    def _watch_lease(self) -> None:
        """End when nothing was heard for as long as the lease. Only a run is worth waiting for: without one, it is the
        controller that must be heard. Time in which this process was suspended is not counted: whoever suspends a job
        suspends its heartbeat too."""
        interval = min(1.0, self._lease / 4)
        silent, heard = 0.0, (0, 0)
        while self._lease:
            time.sleep(interval)
            now = self._received, self._stream.beats if self._runs else 0
            silent, heard = (silent + interval if now == heard else 0.0), now
            if silent > self._lease:
                self.end()

    def _watch_files(self) -> None:
        while True:
            time.sleep(1.0)
            self._files.send_watched()

    def _answer(self, header: Header, body: bytes, task: Task) -> None:
        try:
            answer = task(header, body)
        except Exception as error:
            answer = {"error": getattr(error, "strerror", None) or str(error) or repr(error),
                      "file": str(getattr(error, "filename", None) or "")}
        fields, data = answer if isinstance(answer, tuple) else (answer, b"")
        self.send({"is": "answer", "n": header.get("n"), **(fields or {})}, data)

    def _facts(self) -> Header:
        return {**host.facts(self._root), "folder": str(self._folder)}

    def _pass_on(self, child: Child) -> bool:
        """Send the whole lines that a process wrote; whether there may be more."""
        try:
            data = os.read(child.output, 1 << 16)
        except BlockingIOError:
            return False
        if not data:
            with suppress(KeyError):
                self._selector.unregister(child.output)
            return False
        whole, newline, child.rest = (child.rest + data).rpartition(b"\n")
        if len(child.rest) > _LONGEST_LINE:
            whole, newline, child.rest = whole + newline + child.rest, b"\n", b""
        if newline:
            self.send({"is": "out", "id": child.name, "run": child.token}, whole)
        return True

    def _reap(self) -> None:
        """Report the processes that have ended, after all that they wrote."""
        for key, child in list(self._children.items()):
            if (code := child.popen.poll()) is None:
                continue
            while self._pass_on(child):
                pass
            if child.rest:
                self.send({"is": "out", "id": child.name, "run": child.token}, child.rest)
            with suppress(KeyError):
                self._selector.unregister(child.output)
            assert child.popen.stdout is not None
            child.popen.stdout.close()
            kill_group(child.popen.pid)  # what it forked
            self._children.pop(key, None)
            self.send({"is": "exit", "id": child.name, "run": child.token, "code": code})

    def _start(self, header: Header, body: bytes) -> Header:
        """Start a process of a run with these words, environment, working folder and log."""
        self._runs.add(header["token"])
        if segments := header.get("segments"):
            self._segments.add(segments)
            self._guardian.note(segments=segments)
        log = Path(header["log"])
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as errors:
            popen = subprocess.Popen(
                header["words"], env={**os.environ, **header["environment"], MARK: self._mark(header["token"])},
                cwd=header["cwd"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True,
            )
        child = self._children[header["token"], header["id"]] = Child(header["id"], header["token"], popen)
        os.set_blocking(child.output, False)
        self._selector.register(child.output, selectors.EVENT_READ, child)
        return {"pid": popen.pid}

    def _stop(self, header: Header, body: bytes) -> Header:
        """End everything of a run and remove its folder; how many processes could not be ended."""
        token = header["token"]
        self._files.forget(token)
        for child in [child for child in self._children.values() if child.token == token]:
            kill_group(child.popen.pid)
        segments = [header["segments"]] if header.get("segments") else []
        left = len(clean(self._mark(token), segments, header["folder"]))
        self._runs.discard(token)
        return {"left": left}

    def _mark(self, token: str) -> str:
        """What the processes of a run on this host carry."""
        return f"{self._session}-{token}"

    def _run(self, header: Header, body: bytes) -> Header | tuple[Header, bytes]:
        """Run a command to its end within a limit: its exit code, None if it took longer, and what it printed."""
        limit = header["limit"]
        try:
            popen = subprocess.Popen(
                header["words"], env={**os.environ, **header.get("environment", {}), MARK: self._session},
                cwd=header.get("cwd"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            return {"code": 127, "errors": f"{header['words'][0]}: {error.strerror}"}
        try:
            output, errors = popen.communicate(body, timeout=limit)
        except subprocess.TimeoutExpired:
            kill_group(popen.pid)
            popen.communicate()
            return {"code": None, "errors": f"it did not end within {limit:g} s"}
        return {"code": popen.returncode, "errors": errors[-8000:].decode(errors="replace")}, output[-(4 << 20) :]

    def _diagnose(self, header: Header, body: bytes) -> Header | tuple[Header, bytes]:
        """Whether a process is suspended and, unless that is enough, the stacks of its threads."""
        child = self._children.get((header["token"], header["id"]))
        if child is None:
            return {"stopped": False}
        pid, stopped = child.popen.pid, False
        with suppress(OSError, IndexError):
            stopped = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
        if header["brief"]:
            return {"stopped": stopped}
        return {"stopped": stopped}, host.stack_of(pid, header["python"]).encode()


def main(words: list[str]) -> None:
    """Serve a stream: `SESSION LEASE ROOT`, on standard input and output, or in files with `INBOX OUTBOX [HEARTBEAT]`
    behind."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The first process of a container ignores signals that it does not handle.
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(128 + number))
    files = [Path(word) for word in words[3:]]
    stream = Files(files[0], files[1], files[2] if len(files) > 2 else None) if files else Pipes()
    Agent(stream, words[0], float(words[1]), words[2]).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
