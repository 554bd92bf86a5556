"""Free ports of this machine."""

from __future__ import annotations

import random
import socket

from velodrome.errors import VelodromeError

#: Below the range from which systems choose ports for outgoing connections.
PORTS = range(20000, 32000)


def free_port(host: str = "") -> int:
    """A port that no process of this machine listens on at this moment, on any of its addresses."""
    for port in random.SystemRandom().sample(PORTS, 200):
        with socket.socket() as trial:
            try:
                trial.bind(("", port))
            except OSError:
                continue
            return port
    raise VelodromeError(f"no free port between {PORTS.start} and {PORTS.stop}: other programs occupy them")
