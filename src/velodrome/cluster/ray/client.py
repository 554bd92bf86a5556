"""The controller's end of the driver: requests, and a stream of bytes to each node's agent."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from velodrome.cluster.remote.agent.frames import Decoder, Header, encode
from velodrome.cluster.remote.link import HostLost
from velodrome.errors import VelodromeError

#: Starting Ray takes seconds on an idle machine.
START_SECONDS = 120.0
_END_SECONDS = 30.0
#: Ray gives up after 30 s by itself, which a busy machine may need; and it must not report to anybody.
_SETTINGS = {"RAY_raylet_start_wait_time_s": "100", "RAY_USAGE_STATS_ENABLED": "0"}


class RayDriver:
    """The process that has imported Ray."""

    def __init__(self) -> None:
        # Not in our process group: Ctrl-C ends the run first, and with it the driver.
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "velodrome.cluster.ray.driver"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, start_new_session=True, env={**_SETTINGS, **os.environ},
        )
        self._asking, self._writing = threading.Lock(), threading.Lock()
        self._answers: queue.Queue[Header | None] = queue.Queue()
        self._streams: dict[str, queue.Queue[bytes]] = {}
        self.reasons: dict[str, str] = {}
        self._errors: list[str] = []
        for work in (self._read, self._listen):
            threading.Thread(target=work, daemon=True).start()

    def ask(self, do: str, seconds: float, **fields: Any) -> Header:
        """The answer to a request; `VelodromeError` if there is none, or it is an error."""
        with self._asking:
            self._write(encode({"do": do, **fields}))
            try:
                answer = self._answers.get(timeout=seconds)
            except queue.Empty:
                raise VelodromeError(f"Ray did not answer within {seconds:g} s ({do})") from None
        if answer is None:
            raise VelodromeError(f"Ray ended: {self._last_error()}")
        if answer.get("error"):
            raise VelodromeError(f"Ray: {answer['error']}")
        return answer

    def open(self, host: str, words: list[str], runtime_env: Mapping[str, Any]) -> RayChannel:
        """Start an agent on a node; the stream to it."""
        self._streams[host] = queue.Queue()
        self.reasons.pop(host, None)
        self.ask("open", START_SECONDS, host=host, words=words, runtime_env=dict(runtime_env))
        return RayChannel(self, host)

    def read(self, host: str) -> bytes:
        """Bytes of a node's agent; none at its end."""
        return self._streams[host].get()

    def send(self, host: str, data: bytes) -> None:
        self._write(encode({"do": "write", "host": host}, data))

    def close_agent(self, host: str) -> None:
        with suppress(VelodromeError, OSError):
            self.ask("close", _END_SECONDS, host=host)

    def close(self) -> None:
        """Leave Ray, and end it if it was started here."""
        assert self._popen.stdin is not None
        with suppress(OSError):
            self._popen.stdin.close()
        try:
            self._popen.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()

    def _write(self, data: bytes) -> None:
        assert self._popen.stdin is not None
        view = memoryview(data)
        with self._writing:
            try:
                while view:
                    view = view[os.write(self._popen.stdin.fileno(), view) :]
            except (OSError, ValueError) as error:
                raise HostLost(f"Ray ended: {self._last_error()}") from error

    def _read(self) -> None:
        assert self._popen.stdout is not None
        decoder = Decoder()
        with suppress(OSError, ValueError):
            while data := os.read(self._popen.stdout.fileno(), 1 << 16):
                for header, body in decoder.feed(data):
                    self._dispatch(header, body)
        self._answers.put(None)
        for host, stream in self._streams.items():
            self.reasons.setdefault(host, "cannot be reached: the connection to Ray ended")
            stream.put(b"")

    def _dispatch(self, header: Header, body: bytes) -> None:
        if header["is"] == "answer":
            self._answers.put(header)
        elif header["is"] == "data":
            self._streams[header["host"]].put(body)
        else:
            self.reasons[header["host"]] = header["reason"]
            self._streams[header["host"]].put(b"")

    def _listen(self) -> None:
        assert self._popen.stderr is not None
        with suppress(OSError, ValueError):
            for line in self._popen.stderr:
                text = line.decode(errors="replace").strip()
                self._errors = [*self._errors, text][-20:] if text else self._errors

    def _last_error(self) -> str:
        return self._errors[-1] if self._errors else "it gave no reason"


class RayChannel:
    """The stream to the agent of a node."""

    def __init__(self, driver: RayDriver, host: str) -> None:
        self._driver, self._host = driver, host

    def read(self) -> bytes:
        return self._driver.read(self._host)

    def write(self, data: bytes) -> None:
        try:
            self._driver.send(self._host, data)
        except VelodromeError as error:
            raise BrokenPipeError(str(error)) from error

    def end_reason(self) -> str:
        return self._driver.reasons.get(self._host, "ended its agent")

    def close(self) -> None:
        self._driver.close_agent(self._host)
