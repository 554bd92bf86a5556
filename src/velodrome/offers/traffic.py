"""What a worker sends and receives in one step, by how its strategy exchanges gradients: formulas, not measurements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: How the workers of a strategy exchange what they computed. `none`: one process. `devices`: several devices inside one
#: process. `all-reduce`: gradients summed over sockets. `all-reduce-in-memory`: the same, through memory on one host.
#: `servers`: weights down from and gradients up to parameter servers.
Exchange = Literal["none", "devices", "all-reduce", "all-reduce-in-memory", "servers"]

_RING = "2·(N−1)/N·G sent and as much received"


@dataclass(frozen=True)
class Traffic:
    """Bytes per worker and step."""

    #: If all workers are on one host: over its loopback interface.
    one_host: int
    #: If each worker is on a host of its own: over the network.
    several_hosts: int
    #: How they are computed: G is the bytes of the gradients, N the number of workers.
    formula: str


def traffic_of(exchange: Exchange, gradient_bytes: int, workers: int) -> Traffic:
    """What a worker sends per step, and receives as much, with gradients of so many bytes."""
    ring = round(2 * (workers - 1) / workers * gradient_bytes)
    match exchange:
        case "none":
            return Traffic(0, 0, "one process exchanges nothing")
        case "devices":
            return Traffic(0, 0, "devices of one process exchange G in memory")
        case "all-reduce":
            return Traffic(ring, ring, _RING)
        case "all-reduce-in-memory":
            return Traffic(0, ring, f"{_RING}; in memory on one host")
        case "servers":
            return Traffic(gradient_bytes, gradient_bytes, "G of weights received and G of gradients sent")
