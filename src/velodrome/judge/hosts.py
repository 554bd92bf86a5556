"""The hosts of a run: a line for each, and their cores, from what its processes reported about them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def host_lines(result: Mapping[str, Any]) -> list[str]:
    """`node1: 8 cores, 16 GiB memory, 2 × Tesla T4, Python 3.11.7 in /usr/bin/python`; empty for older results."""
    hosts = result.get("hosts")
    return [_line(host) for host in hosts if isinstance(host, Mapping)] if isinstance(hosts, list) else []


def cores_of(results: Iterable[Mapping[str, Any]]) -> int | None:
    """The most cores that a run could use, over all of its hosts; None if no result tells."""
    return max((count for result in results if (count := _cores(result))), default=None)


def _cores(result: Mapping[str, Any]) -> int:
    hosts = [host for host in result.get("hosts") or () if isinstance(host, Mapping)]
    return sum(host.get("cores") or 0 for host in hosts) or (result.get("machine") or {}).get("cores") or 0


def _line(host: Mapping[str, Any]) -> str:
    size = host.get("memory_bytes")
    parts = [f"{host['cores']} cores"] if host.get("cores") else []
    parts += [f"{size / 2**30:.0f} GiB memory"] if isinstance(size, int | float) else []
    names = [str(name) for name in host.get("gpus") or ()]
    parts += [f"{names.count(name)} × {name}" for name in dict.fromkeys(names)]
    parts.append(f"Python {host.get('python') or '(version not known)'} in {host.get('interpreter')}")
    return f"{host.get('hostname')}: {', '.join(parts)}"
