"""Foreign load: what other programs used of a host's cores during a run, and whether that spoils its figures.

Pure functions on results.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from velodrome.judge.measures import Result

#: Up to this share of a host's cores is what any system uses now and then.
SMALL_SHARE = 0.05
#: Systems count CPU time in hundredths of a second: less than this is not told from nothing, however short the run.
LEAST_CORE_SECONDS = 0.1
#: Where other programs used this many cores or more, they may have slowed a run by any amount.
_MOST_USED = 0.99


@dataclass(frozen=True)
class ForeignLoad:
    """What other programs used of one host's cores, on average over a run."""

    host: str
    used: float
    cores: int
    seconds: float

    @property
    def share(self) -> float:
        """Of all cores that the run may use on this host."""
        return self.used / max(1, self.cores)

    @property
    def matters(self) -> bool:
        """Whether it is enough to distort the run's times."""
        return self.share > SMALL_SHARE and self.used * self.seconds >= LEAST_CORE_SECONDS

    def __str__(self) -> str:
        return f"{self.used:.1f} of {self.cores} core{'' if self.cores == 1 else 's'}"


def foreign_load(result: Result) -> ForeignLoad | None:
    """The foreign load of a run, on the host where it was highest; None if it was not measured."""
    return max(_loads(result), key=lambda load: (load.matters, load.share), default=None)


def _loads(result: Result) -> Iterable[ForeignLoad]:
    hosts = result.get("hosts")
    for host in hosts if isinstance(hosts, list) else ():
        cpu = host.get("cpu") if isinstance(host, Mapping) else None
        if isinstance(cpu, Mapping):
            yield ForeignLoad(str(host["hostname"]), cpu["foreign"], host["cores"], cpu["seconds"])


def is_loaded(result: Result) -> bool:
    """Whether other programs distorted a run: its times do not count as measured on an idle machine."""
    load = foreign_load(result)
    return load is not None and load.matters


def slowdown(result: Result) -> float:
    """By how much other programs may have slowed a run at most: the logarithm of a ratio.

    A core that others use for a second delays the run by a second at most, whichever of its processes waits for it.
    Delays of several hosts may follow one another; emulated hosts share the cores of one machine.
    """
    used = [load.used for load in _loads(result) if load.matters]
    if not used:
        return 0.0
    total = max(used) if result.get("launcher") == "emulated" else sum(used)
    return -math.log(1 - min(total, _MOST_USED))


def foreign_note(results: Sequence[Result]) -> str:
    """A sentence, without its full stop, on the runs that other programs slowed; empty if there is none."""
    loads = [load for result in results if (load := foreign_load(result)) is not None and load.matters]
    if not loads:
        return ""
    worst = max(loads, key=lambda load: load.share)
    used = f"other programs used {'up to ' if len({str(load) for load in loads}) > 1 else ''}{worst}"
    several_hosts = any(len(result.get("hosts") or ()) > 1 for result in results)
    where = f" of {worst.host}" if several_hosts else ""
    if len(results) == 1:
        return f"{used}{where}"
    return f"{used}{where} during {len(loads)} of {len(results)} runs"
