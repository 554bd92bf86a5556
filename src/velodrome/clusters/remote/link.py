"""The controller's end of the stream to a host's agent, and how the agent gets to the host.

The agent's modules are sent through the stream to a line of Python that runs them. Then requests get answers, and the
agent reports by itself what processes print and how they end.
"""

from __future__ import annotations

import base64
import ipaddress
import itertools
import json
import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

from velodrome.clusters.remote import agent
from velodrome.clusters.remote.agent.streams import CHUNK, Decoder, Header, encode
from velodrome.errors import VelodromeError

#: How long an agent may take to report that it is there, once its stream is open.
READY_SECONDS = 30.0
#: How often the controller is heard from, and an agent that has nothing else to say.
BEAT_SECONDS = 1.0
ANSWER_SECONDS = 30.0


class HostError(VelodromeError):
    """A host did not do what it was asked for; the sentence names it."""


class HostLost(HostError):
    """The stream to a host ended, or the host is silent."""


class Channel(Protocol):
    """A byte stream to the agent of a host. `read` and `write` are called by a thread each."""

    def read(self) -> bytes:
        """Some bytes, as soon as there are any; none at the end."""

    def write(self, data: bytes) -> None:
        """Write all of the bytes; `OSError` if the stream ended."""

    def end_reason(self) -> str:
        """Why the stream ended, as the end of a sentence."""

    def close(self) -> None:
        """End the stream, and with it the agent."""


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
        self._out.put(encode({"do": do, "n": number, **fields}, body))
        return number

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
        if 0 <= error <= self.clock_error:  # a clock that was set meanwhile tells nothing
            self.clock_offset, self.clock_error = clock - asked - error, error

    def put(self, source: Path | bytes, path: str, *, seconds: float = 600.0) -> str:
        """Send a file to a path below the agent's root; where it lies there."""
        data = source if isinstance(source, bytes) else source.read_bytes()
        answer: Header = {}
        for at in range(0, len(data), CHUNK) if data else (0,):
            part = data[at : at + CHUNK]
            answer, _ = self.ask("put", part, path=path, at=at, last=at + CHUNK >= len(data), seconds=seconds)
        return str(answer["path"])

    def run(self, words: list[str], *, limit: float = 30.0, body: bytes = b"", **fields: Any) -> tuple[Header, str]:
        """Run a command on the host; the fields `code` and `errors`, and what it printed."""
        answer, output = self.ask("run", body, words=words, limit=limit, seconds=limit + 10.0, **fields)
        return answer, output.decode(errors="replace")

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


PACKAGE = agent.__name__
#: In the order in which they import one another.
_MODULES = ("streams", "cleaning", "host", "session")
#: Reads so many bytes, makes modules of them, and serves what follows. The words behind it are the agent's own.
_PROGRAM = """
import json, os, sys, types
size, data = int(sys.argv[1]), b""
while len(data) < size:
    more = os.read(0, size - len(data))
    if not more:
        sys.exit(3)
    data += more
for name, text in json.loads(data):
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = []
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], last, module)
    exec(compile(text, "<" + name + ">", "exec"), module.__dict__)
sys.modules[name].main(sys.argv[2:])
"""
#: The same as one line without anything that a login shell interprets within quotes: csh does so with newlines and `!`.
_LINE = f"import base64;exec(base64.b64decode('{base64.b64encode(_PROGRAM.encode()).decode()}'))"


def agent_source() -> bytes:
    """The agent's modules, as the line of `command` reads them."""
    parts = PACKAGE.split(".")
    modules = [(".".join(parts[: number + 1]), "") for number in range(len(parts))]
    folder = resources.files(PACKAGE)
    modules += [(f"{PACKAGE}.{name}", (folder / f"{name}.py").read_text(encoding="utf-8")) for name in _MODULES]
    return json.dumps(modules).encode()


def agent_command(python: str, session: str, lease: float, root: str, *files: str) -> list[str]:
    """The words that start an agent whose standard input begins with `source`.

    A session's name marks all that it starts, and with it the agent ends. `lease` is how many seconds it waits for its
    controller to be heard again, 0 for ever. `root` is the folder of its caches and of its runs. With an inbox and an
    outbox it serves these files; a third one is a heartbeat that counts as a sign of life too.
    """
    size = str(len(agent_source()))
    return [python, "-I", "-S", "-c", _LINE, size, session, f"{lease:g}", root, *files]


def is_loopback(address: str) -> bool:
    """Whether an address leads every host to itself."""
    with suppress(ValueError):
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    return address == "localhost"


def several(links: Sequence[Link]) -> bool:
    """Whether these hosts are more than one machine."""
    return len({link.facts["host"] for link in links}) > 1
