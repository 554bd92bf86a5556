"""The controller's end of the driver: requests, a stream of bytes to each agent, and what Ray's exceptions mean.
Imports no Ray."""

from __future__ import annotations

import itertools
import math
import queue
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from velodrome.clusters.remote.agent.streams import Header
from velodrome.clusters.remote.channels import PipeChannel
from velodrome.clusters.remote.link import HostError, Link
from velodrome.errors import VelodromeError

#: How often a stream that is silent looks whether the driver is still there.
_POLL_SECONDS = 0.5
#: Starting Ray takes seconds on an idle machine.
START_SECONDS = 120.0
_END_SECONDS = 30.0
#: For an answer, beyond the time that the driver itself allows.
_MORE_SECONDS = 30.0
#: For a driver that still waits for a cluster of others: it has nothing there to give back.
_ABANDON_SECONDS = 1.0
#: Ray gives up after 30 s by itself, which a busy machine may need; and it must not report to anybody.
_SETTINGS = {"RAY_raylet_start_wait_time_s": "100", "RAY_USAGE_STATS_ENABLED": "0"}
#: A cluster of our own is on loopback. Ray has no other option for it: it replaces a loopback address that it is given
#: by that of the network, except where it has no clusters of several machines.
_ON_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


class _DriverPipes(PipeChannel):
    """The pipes of the driver."""

    #: How long it may take to leave Ray.
    end_seconds = _END_SECONDS

    def end_reason(self) -> str:
        return f"ended: {super().end_reason()}"

    def close(self, seconds: float | None = None) -> None:
        super().close(self.end_seconds)


class RayDriver:
    """The process that has imported Ray."""

    def __init__(self, address: str | None) -> None:
        """Start it, for the cluster at an address or one of its own on this machine."""
        self._pipes = _DriverPipes(
            [sys.executable, "-P", "-m", "velodrome.clusters.ray.driver"],
            _SETTINGS if address else _SETTINGS | _ON_LOOPBACK,
        )
        self._link = Link("Ray", self._pipes, math.inf, take=self._take)
        self._numbers = itertools.count()
        self._streams: dict[str, queue.Queue[bytes]] = {}
        self._reasons: dict[str, str] = {}

    def ask(self, do: str, seconds: float, **fields: Any) -> Header:
        """The answer to a request; `VelodromeError` if there is none, or it is an error."""
        try:
            return self._link.ask(do, seconds=seconds, **fields)[0]
        except HostError as error:
            raise VelodromeError(str(error).replace("'Ray'", "Ray", 1)) from None

    def connect(self, address: str | None) -> dict[str, dict[str, Any]]:
        """Join the cluster at an address, or start one on this machine; its nodes by name."""
        self._pipes.end_seconds = _ABANDON_SECONDS if address else _END_SECONDS
        nodes: dict[str, dict[str, Any]] = self.ask("connect", START_SECONDS, address=address)["nodes"]
        self._pipes.end_seconds = _END_SECONDS
        return nodes

    def open(self, place: str, words: list[str], runtime_env: Mapping[str, Any], limit: float) -> RayChannel:
        """Start an agent at a place that was reserved, within so many seconds; the stream to it."""
        name = f"{place} {next(self._numbers)}"  # an earlier stream to the same place may report its end late
        self._streams[name] = queue.Queue()
        answer = self.ask("open", limit + _MORE_SECONDS, stream=name, place=place, words=words,
                          runtime_env=dict(runtime_env), limit=limit)
        if answer.get("failed"):
            raise HostError(answer["failed"])
        return RayChannel(self, name)

    def read(self, stream: str) -> bytes:
        """Bytes of an agent; none at its end."""
        while True:
            with suppress(queue.Empty):
                return self._streams[stream].get(timeout=_POLL_SECONDS)
            if self._link.lost is not None and self._streams[stream].empty():
                return b""

    def send(self, stream: str, data: bytes) -> None:
        if self._link.lost is not None:
            raise BrokenPipeError(self._link.lost)
        self._link.tell("write", data, stream=stream)

    def end_reason(self, stream: str) -> str:
        """Why a stream ended, as the end of a sentence."""
        return self._reasons.get(stream, "cannot be reached: the connection to Ray ended")

    def close_agent(self, stream: str) -> None:
        with suppress(VelodromeError):
            self.ask("close", _END_SECONDS, stream=stream)

    def close(self) -> None:
        """Leave Ray, and end it if it was started here."""
        self._link.close()

    def _take(self, link: Link, header: Header, body: bytes) -> None:
        if header["is"] == "end":
            self._reasons[header["stream"]] = header["reason"]
        self._streams[header["stream"]].put(body)


class RayChannel:
    """The stream to an agent."""

    def __init__(self, driver: RayDriver, stream: str) -> None:
        self._driver, self._stream = driver, stream

    def read(self) -> bytes:
        return self._driver.read(self._stream)

    def write(self, data: bytes) -> None:
        self._driver.send(self._stream, data)

    def end_reason(self) -> str:
        return self._driver.end_reason(self._stream)

    def close(self) -> None:
        self._driver.close_agent(self._stream)


#: By the name of the exception or of one that it is derived from.
_REASONS = {
    "ActorUnavailableError": "cannot be reached through Ray: the connection to its actor broke, because its Ray daemon "
    "ended or its network is down",
    "NodeDiedError": "is lost: its Ray node died",
    "OutOfMemoryError": "lost its agent: Ray's memory monitor ended it, because the node ran out of memory",
    "WorkerCrashedError": "lost its agent: the process of Ray's actor there crashed",
    "ActorDiedError": "lost its agent: Ray's actor there died",
}
_LONGEST = 300


def reason_of(error: BaseException, seconds: float | None = None) -> str:
    """Why a node failed; `seconds` is the time that was allowed for what timed out."""
    names = [kind.__name__ for kind in type(error).__mro__]
    if "GetTimeoutError" in names:
        within = "in time" if seconds is None else f"within {seconds:g} s"
        return (f"did not start Ray's actor {within}: its Ray node is busy, or is still preparing the runtime_env; "
                "raise start_timeout of the cluster")
    if "RuntimeEnvSetupError" in names:
        return f"cannot prepare the runtime_env: {_essence(error)}"
    known = next((_REASONS[name] for name in names if name in _REASONS), None)
    return known or f"cannot be reached through Ray: {_essence(error)} ({type(error).__name__})"


def _essence(error: BaseException) -> str:
    """The line of a message that names the cause: one that reports an error, else the last one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    cause = next((line for line in lines if "ERROR" in line), lines[-1] if lines else "Ray gave no reason")
    return cause[:_LONGEST]
