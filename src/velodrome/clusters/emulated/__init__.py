"""The options of emulated clusters, in clusters.yaml and behind `emulated:`, such as
`nodes=9,bandwidth=1gbit,latency=0.5ms,cpu=0.5,memory=2g`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import Field, model_validator

from velodrome.clusters.definitions import ClusterOptions, inline_fields
from velodrome.clusters.launcher import LauncherType
from velodrome.errors import BadRequest

MOST_NODES = 200
_BITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_BYTES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}
_EXAMPLE = '"emulated:nodes=4,bandwidth=1gbit,latency=0.5ms,cpu=0.5,memory=2g"'


@dataclass(frozen=True)
class EmulatedCluster:
    """Nodes that are all alike."""

    nodes: int = 2
    #: Bits per second that a node can send, and as many that it can receive; None for as fast as this machine is.
    bandwidth: float | None = None
    #: Seconds that a packet takes from one node to another, in addition to what it takes anyway.
    latency: float | None = None
    #: Cores' time that a node has; None for no limit.
    cpu: float | None = None
    #: Bytes of memory that a node has; None for no limit.
    memory: int | None = None


def split(text: str) -> dict[str, str]:
    """The options behind `emulated:` by name, each as a text; `BadRequest` for those that are unknown."""
    return inline_fields(text, _READERS, _EXAMPLE)


def parse(text: str) -> EmulatedCluster:
    """Read what follows `emulated:`; nothing at all is two nodes without limits."""
    fields = {name: _READERS[name](name, value) for name, value in split(text).items()}
    return EmulatedCluster(**fields)  # type: ignore[arg-type]


def _count(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:6]) <= MOST_NODES:
        raise BadRequest(f"{name}={text!r} is not a number from 1 to {MOST_NODES}")
    return int(text)


def _measure(units: dict[str, float] | dict[str, int], example: str, name: str, text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.lower())
    value = float(match[1]) * units[match[2]] if match and match[2] in units else 0.0
    if not 0 < value < 1e15:
        raise BadRequest(f"{name}={text!r} cannot be read; write it as {name}={example}")
    return value


_READERS: dict[str, Callable[[str, str], float]] = {
    "nodes": _count,
    "bandwidth": lambda name, text: _measure(_BITS, "1gbit or 100mbit", name, text),
    "latency": lambda name, text: _measure(_SECONDS, "0.5ms", name, text),
    "cpu": lambda name, text: _measure({"": 1}, "0.5", name, text),
    "memory": lambda name, text: int(_measure(_BYTES, "2g or 512m", name, text)),
}


class EmulatedOptions(ClusterOptions):
    """Hosts on this machine that are all alike."""

    nodes: int = Field(2, ge=1, description="number of hosts")
    bandwidth: str | None = Field(
        None, description="bandwidth of each host in each direction, such as `1gbit`; unlimited by default"
    )
    latency: str | None = Field(None, description="time that a packet takes from host to host, such as `0.5ms`")
    cpu: float | None = Field(None, gt=0, description="CPU time of each host, in cores; unlimited by default")
    memory: str | None = Field(None, description="memory of each host, such as `2g`; unlimited by default")

    @model_validator(mode="after")
    def _can_be_read(self) -> EmulatedOptions:
        try:
            self.request()
        except BadRequest as error:
            raise ValueError(str(error)) from None
        return self

    @classmethod
    def inline(cls, text: str) -> dict[str, Any]:
        parse(text)  # its sentences show how to write it
        return dict(split(text))

    def request(self) -> EmulatedCluster:
        """The same, as numbers."""
        given = self.model_dump(include=set(_READERS), exclude_none=True)
        return parse(",".join(f"{name}={value}" for name, value in given.items()))


LAUNCHER = LauncherType(
    "emulated",
    "several hosts on this machine, as network namespaces with limited links (Linux, root)",
    "velodrome.clusters.emulated.launcher:EmulatedLauncher",
    inline="nodes=N,bandwidth=RATE,latency=TIME,cpu=CORES,memory=BYTES", options=EmulatedOptions,
    cleaner="velodrome.clusters.emulated.node:clean",
)
