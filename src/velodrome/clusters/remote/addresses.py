"""Addresses at which hosts reach one another."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from contextlib import suppress

from velodrome.clusters.findings import Finding
from velodrome.clusters.remote.link import Link


def is_loopback(address: str) -> bool:
    """Whether an address leads every host to itself."""
    with suppress(ValueError):
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    return address == "localhost"


def several(links: Sequence[Link]) -> bool:
    """Whether these hosts are more than one machine."""
    return len({link.facts["host"] for link in links}) > 1


def loopback(links: Sequence[Link], addresses: Mapping[str, str]) -> list[Finding]:
    """Hosts whose peers would look for them on themselves."""
    return [
        Finding("error", "names", link.host, f"its address {addresses[link.host]!r} leads every other host to itself",
                f"name it as the others reach it, or set addresses: {{{link.host}: ADDRESS}} in clusters.yaml")
        for link in links if several(links) and is_loopback(addresses[link.host])
    ]
