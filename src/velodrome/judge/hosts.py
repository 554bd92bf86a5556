"""What a result tells of its hosts: their size, and how well an emulated cluster is what was asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def host_lines(result: Mapping[str, Any]) -> list[str]:
    """`node1: 8 cores, 16 GiB memory, 2 × Tesla T4, Python 3.11.7 in /usr/bin/python`; empty for older results."""
    hosts = result.get("hosts")
    return [_host_line(host) for host in hosts if isinstance(host, Mapping)] if isinstance(hosts, list) else []


def cores_of(results: Iterable[Mapping[str, Any]]) -> int | None:
    """The most cores that a run could use, over all of its hosts; None if no result tells."""
    return max((count for result in results if (count := _cores(result))), default=None)


def _cores(result: Mapping[str, Any]) -> int:
    hosts = [host for host in result.get("hosts") or () if isinstance(host, Mapping)]
    return sum(host.get("cores") or 0 for host in hosts) or (result.get("machine") or {}).get("cores") or 0


def _host_line(host: Mapping[str, Any]) -> str:
    size = host.get("memory_bytes")
    parts = [f"{host['cores']} cores"] if host.get("cores") else []
    parts += [f"{size / 2**30:.0f} GiB memory"] if isinstance(size, int | float) else []
    names = [str(name) for name in host.get("gpus") or ()]
    parts += [f"{names.count(name)} × {name}" for name in dict.fromkeys(names)]
    parts.append(f"Python {host.get('python') or '(version not known)'} in {host.get('interpreter')}")
    return f"{host.get('hostname')}: {', '.join(parts)}"


#: Emulation that is off by more than this is worth a remark.
_FAR_OFF = 0.25


def emulation_lines(result: Mapping[str, Any]) -> list[str]:
    """Bandwidth and latency between two emulated hosts: what was asked for, what was measured, and what limits them;
    empty for other runs, and where nothing was measured."""
    cluster = result.get("cluster") or {}
    asked, measured = cluster.get("asked") or {}, cluster.get("measured") or {}
    bandwidth, latency = measured.get("bandwidth"), measured.get("latency")
    if latency is None and measured.get("round_trip") is not None:
        latency = measured["round_trip"] / 2
    if result.get("launcher") != "emulated" or bandwidth is None or latency is None:
        return []
    made_by, accuracy = cluster.get("made_by") or {}, cluster.get("accuracy") or {}
    lines = [
        _line("bandwidth", _rate(asked.get("bandwidth")), _rate(bandwidth), accuracy.get("bandwidth"), ""),
        _line("latency", _milliseconds(asked.get("latency")), _milliseconds(latency), accuracy.get("latency"),
              f", by {made_by['latency']}" if made_by.get("latency") else ""),
    ]
    if made_by.get("limits"):
        lines.append(f"CPU and memory are limited by {made_by['limits']}")
    return lines


def _line(name: str, asked: str | None, measured: str | None, accuracy: float | None, by: str) -> str:
    if asked is None:
        return f"{name} {measured} measured, without a limit"
    off = f" ({100 * (accuracy - 1):+.0f} %)" if accuracy is not None else ""
    far = "; far from what was asked for" if accuracy is not None and abs(accuracy - 1) > _FAR_OFF else ""
    return f"{name} {asked} asked for{by}, {measured} measured{off}{far}"


def _rate(value: float | None) -> str | None:
    if value is None:
        return None
    unit, scale = ("Gbit/s", 1e9) if value >= 1e9 else ("Mbit/s", 1e6) if value >= 1e6 else ("kbit/s", 1e3)
    return f"{value / scale:.3g} {unit}"


def _milliseconds(value: float | None) -> str | None:
    return None if value is None else f"{1e3 * value:.3g} ms"
