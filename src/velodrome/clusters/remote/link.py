"""The controller's end of the stream to a host's agent: requests get answers, and the agent reports by itself what
processes print and how they end.
"""

from __future__ import annotations

import ipaddress
import itertools
import json
import math
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from velodrome.clusters.interrupts import deferred
from velodrome.clusters.remote.agent import CHUNK, Decoder, Header, encode
from velodrome.clusters.remote.channels import Channel
from velodrome.errors import VelodromeError, headline

#: How long an agent may take to report that it is there, once its stream is open.
READY_SECONDS = 30.0
#: How often the controller is heard from, and an agent that has nothing else to say.
BEAT_SECONDS = 1.0
ANSWER_SECONDS = 30.0


class HostError(VelodromeError):
    """A host did not do what it was asked for; the sentence names it."""


class HostLost(HostError):
    """The stream to a host ended, or the host is silent."""


@dataclass(frozen=True)
class Ran:
    """What became of a command on a host."""

    #: Its exit code; None if it took too long.
    code: int | None
    #: What it printed to standard output and to standard error.
    output: str = ""
    errors: str = ""

    @property
    def failed(self) -> bool:
        return self.code != 0

    @property
    def reason(self) -> str:
        """Why it failed: the last line of its errors, or else its code."""
        return headline(self.errors.strip().rpartition("\n")[2] or f"it ended with code {self.code}")

    @property
    def answer(self) -> dict[str, Any]:
        """The JSON object in the last line that it printed."""
        fields: dict[str, Any] = json.loads(self.output.strip().rpartition("\n")[2])
        return fields


@dataclass
class _Question:
    done: threading.Event = field(default_factory=threading.Event)
    header: Header = field(default_factory=dict)
    body: bytes = b""


def _unheard(seconds: float) -> str:
    return f"has not answered for {seconds:.0f} s: its network is cut, or it is down"


#: Receives what an agent reports by itself, on the link's own thread.
Take = Callable[["Link", Header, bytes], None]


class Link:
    """A host whose agent answers."""

    def __init__(
        self, host: str, channel: Channel, silence: float, source: bytes = b"", *, first: int = 1,
        take: Take | None = None,
    ) -> None:
        """Send `source`, the agent's modules, and listen; silent for more than `silence` seconds, the host is lost.

        Requests are numbered from `first` on: an agent that another controller has used may repeat its answers.
        """
        self.host, self.silence = host, silence
        self._channel = channel
        self._numbers = itertools.count(first)
        self._questions: dict[int, _Question] = {}
        self._out: queue.Queue[bytes | None] = queue.Queue()
        self._heard = time.monotonic()
        #: Whether the reader waits for the agent, and not for those who take what it reported.
        self._listening = True
        self._lost: str | None = None
        self._ready = threading.Event()
        #: What the agent reported about its host when it was there.
        self.facts: Header = {}
        #: How far the host's clock is ahead of ours, by the answer that took least time, and how far that may be wrong.
        self.clock_offset, self.clock_error = 0.0, float("inf")
        self.take: Take | None = take
        if source:
            self._out.put(source)
        for work in (self._read, self._write):
            threading.Thread(target=work, name=f"velodrome-{host}", daemon=True).start()

    @property
    def lost(self) -> str | None:
        """Why the host cannot be reached any more, as a sentence; None while it can."""
        if self._lost is None and self._ready.is_set() and self._listening and self.quiet_seconds > self.silence:
            self._lose(_unheard(self.quiet_seconds))
        return self._lost

    @property
    def quiet_seconds(self) -> float:
        """Since when nothing was heard from the host."""
        return time.monotonic() - self._heard

    def wait_until_ready(self, seconds: float = READY_SECONDS) -> None:
        """Return when the agent is there; `HostLost` if it does not come."""
        if not self._ready.wait(seconds):
            self._lose(f"did not start its agent within {seconds:g} s")
        if self._lost is not None:
            raise HostLost(self._lost)

    def ask(
        self, do: str, body: bytes = b"", *, seconds: float = ANSWER_SECONDS, **fields: Any
    ) -> tuple[Header, bytes]:
        """Send a request and wait for its answer; `HostError` if the host could not do it, `HostLost` without one."""
        return self.wait(self.send(do, body, **fields), do, seconds)

    def send(self, do: str, body: bytes = b"", **fields: Any) -> int:
        """Send a request; the number by which to wait for its answer."""
        number = next(self._numbers)
        self._questions[number] = _Question()
        self.tell(do, body, n=number, **fields)
        return number

    def tell(self, do: str, body: bytes = b"", **fields: Any) -> None:
        """Send a request that gets no answer."""
        self._out.put(encode({"do": do, **fields}, body))

    def wait(self, number: int, do: str, seconds: float = ANSWER_SECONDS) -> tuple[Header, bytes]:
        """The answer to a request that was sent."""
        question, deadline = self._questions[number], time.monotonic() + seconds
        try:
            while not question.done.wait(0.1):
                if self.lost is not None:
                    raise HostLost(self.lost)
                if time.monotonic() > deadline:
                    raise HostLost(f"{self.host!r} did not answer a request ({do}) within {seconds:g} s")
        finally:
            self._questions.pop(number, None)
        if question.header.get("error"):
            where = f" ({question.header['file']})" if question.header.get("file") else ""
            raise HostError(f"{self.host!r}: {question.header['error']}{where}")
        return question.header, question.body

    def read_clock(self, times: int = 3) -> None:
        """Ask for the host's clock."""
        for _ in range(times):
            asked = time.time()
            answer, _ = self.ask("facts")
            self._note_clock(answer.get("clock"), asked)

    def _note_clock(self, clock: object, asked: float) -> None:
        if not isinstance(clock, float) or not math.isfinite(clock):
            return
        error = (time.time() - asked) / 2  # the clock was read somewhere between question and answer
        if 0 <= error <= self.clock_error:  # it says nothing about a clock that was set in between
            self.clock_offset, self.clock_error = clock - asked - error, error

    def put(self, source: Path | bytes, path: str, *, seconds: float = 600.0) -> str:
        """Send a file to a path below the agent's root; where it lies there."""
        data = source if isinstance(source, bytes) else source.read_bytes()
        answer: Header = {}
        for at in range(0, len(data), CHUNK) if data else (0,):
            part = data[at : at + CHUNK]
            answer, _ = self.ask("put", part, path=path, at=at, last=at + CHUNK >= len(data), seconds=seconds)
        return str(answer["path"])

    def run(self, words: list[str], *, limit: float = 30.0, **fields: Any) -> Ran:
        """Run a command on the host; it is ended after the limit."""
        answer, output = self.ask("run", words=words, limit=limit, seconds=limit + 10.0, **fields)
        return Ran(answer["code"], output.decode(errors="replace"), answer["errors"])

    def close(self) -> None:
        """End the agent and everything that it started."""
        self._lose("was released")
        self._out.put(None)
        self._channel.close()

    def _lose(self, what: str) -> None:
        if self._lost is None:
            self._lost = f"{self.host!r} {what}"
        self._ready.set()

    def _read(self) -> None:
        decoder = Decoder(greeting=True)
        try:
            while data := self._channel.read():
                self._heard = time.monotonic()
                for header, body in decoder.feed(data):
                    self._dispatch(header, body)
                self._heard = time.monotonic()
            quiet = self.quiet_seconds
            reason = self._channel.end_reason()
            if self._ready.is_set() and quiet > self.silence / 2:  # the stream ended because nothing came through it
                reason = _unheard(quiet)
            noise = "" if decoder.greeted else decoder.noise.decode(errors="replace").strip()
            self._lose(reason + (f" (it printed {noise[-200:]!r})" if noise else ""))
        except (OSError, ValueError) as error:
            self._lose(f"cannot be understood: {error}")

    def _dispatch(self, header: Header, body: bytes) -> None:
        kind = header.get("is")
        if kind == "answer":
            number = header.get("n")
            question = self._questions.get(number) if isinstance(number, int) else None
            if question is not None:
                question.header, question.body = header, body
                question.done.set()
        elif kind == "pong":
            if isinstance(asked := header.get("asked"), float):
                self._note_clock(header.get("clock"), asked)
        elif kind == "ready":
            self.facts = header
            self._ready.set()
        elif self.take is not None:
            self._listening = False
            self.take(self, header, body)
            self._listening = True

    def _write(self) -> None:
        while True:
            data: bytes | None = b""
            with suppress(queue.Empty):
                data = self._out.get(timeout=BEAT_SECONDS)
            if data is None or self._lost is not None:
                return
            try:
                self._channel.write(data or encode({"do": "ping", "asked": time.time()}))
            except OSError:
                return  # the reader learns why


def close_all(channels: Iterable[Link | Channel]) -> None:
    """Close links or channels at the same time; signals are deferred until all are closed."""
    channels = [*channels]
    with deferred(), ThreadPoolExecutor(max(1, len(channels))) as pool:
        for channel in channels:
            pool.submit(channel.close)


def is_loopback(address: str) -> bool:
    """Whether an address leads every host to itself."""
    with suppress(ValueError):
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    return address == "localhost"


def several(links: Sequence[Link]) -> bool:
    """Whether these hosts are more than one machine."""
    return len({link.facts["host"] for link in links}) > 1
