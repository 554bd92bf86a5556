"""The conditions under which runs ran, as their results record them: hosts, load by other programs, and data.

Runs of a race whose data differ are separated, named by what differs, and not compared with each other. Results of
earlier versions do not record their data; they, and runs that ended before they loaded any, count as of the same data
as the run before them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from velodrome.events.fields import DataRecord
from velodrome.events.result import Cluster, Host, Link
from velodrome.job.job import Job
from velodrome.job.result import Result


def host_lines(result: Result) -> list[str]:
    """`node1: 8 cores, 16 GiB memory, 2 × Tesla T4, Python 3.11.7 in /usr/bin/python`; empty for older results."""
    return [_host_line(host) for host in result.hosts]


def _host_line(host: Host) -> str:
    parts = [f"{host.cores} cores"] if host.cores else []
    parts.append(f"{host.memory_bytes / 2**30:.0f} GiB memory")
    parts += [f"{host.gpus.count(name)} × {name}" for name in dict.fromkeys(host.gpus)]
    parts.append(f"Python {host.python or '(version not known)'} in {host.interpreter}")
    return f"{host.hostname}: {', '.join(parts)}"


def cores_of(results: Iterable[Result]) -> int | None:
    """The most cores that a run could use, over all of its hosts; None if no result records them."""
    return max((count for result in results if (count := _cores(result))), default=None)


def _cores(result: Result) -> int:
    recorded = sum(host.cores for host in result.hosts)
    return recorded or (result.machine.cores if result.machine is not None else 0)


#: Emulation that is off by more than this is worth a remark.
_FAR_OFF = 0.25


def emulation_lines(cluster: Cluster | None) -> list[str]:
    """Bandwidth and latency between two emulated hosts: what was asked for, what was measured, and what limits them;
    empty for other clusters, and where nothing was measured."""
    if cluster is None or (measured := cluster.measured) is None:
        return []
    asked, latency = cluster.asked or Link.model_construct(), measured.latency
    if latency is None and measured.round_trip is not None:
        latency = measured.round_trip / 2
    if measured.bandwidth is None or latency is None:
        return []
    made_by, accuracy = cluster.made_by or {}, cluster.accuracy or {}
    lines = [
        _line("bandwidth", _rate(asked.bandwidth), _rate(measured.bandwidth), accuracy.get("bandwidth"), ""),
        _line("latency", _milliseconds(asked.latency), _milliseconds(latency), accuracy.get("latency"),
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


#: Up to this share of a host's cores is what any system uses now and then.
SMALL_SHARE = 0.05
#: Systems count CPU time in hundredths of a second: less than this is not told from nothing, however short the run.
LEAST_CORE_SECONDS = 0.1
#: Where other programs used this many cores or more, they may have slowed a run by any amount.
_MOST_USED = 0.99


@dataclass(frozen=True)
class BackgroundLoad:
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


def background_load(result: Result) -> BackgroundLoad | None:
    """The foreign load of a run, on the host where it was highest; None if it was not measured."""
    return max(_loads(result), key=lambda load: (load.matters, load.share), default=None)


def _loads(result: Result) -> Iterable[BackgroundLoad]:
    for host in result.hosts:
        if host.cpu is not None:
            yield BackgroundLoad(host.hostname, host.cpu.foreign, host.cores, host.cpu.seconds)


def is_loaded(result: Result) -> bool:
    """Whether other programs distorted a run: its times do not count as measured on an idle machine."""
    load = background_load(result)
    return load is not None and load.matters


def slowdown(result: Result) -> float:
    """By how much other programs may have slowed a run at most: the logarithm of a ratio.

    A core that others use for a second delays the run by a second at most, whichever of its processes waits for it.
    Delays of several hosts may follow one another; emulated hosts share the cores of one machine.
    """
    used = [load.used for load in _loads(result) if load.matters]
    if not used:
        return 0.0
    total = max(used) if result.launcher == "emulated" else sum(used)
    return -math.log(1 - min(total, _MOST_USED))


def load_note(results: Sequence[Result]) -> str:
    """A sentence, without its full stop, on the runs that other programs slowed; empty if there is none."""
    loads = [load for result in results if (load := background_load(result)) is not None and load.matters]
    if not loads:
        return ""
    worst = max(loads, key=lambda load: load.share)
    used = f"other programs used {'up to ' if len({str(load) for load in loads}) > 1 else ''}{worst}"
    several_hosts = any(len(result.hosts) > 1 for result in results)
    where = f" of {worst.host}" if several_hosts else ""
    if len(results) == 1:
        return f"{used}{where}"
    return f"{used}{where} during {len(loads)} of {len(results)} runs"



def differences(before: Result, after: Result) -> list[str]:
    """`training examples 1,200 → 1,500`, and so on; empty for two runs of the same data, as far as they record it."""
    if before.data is None or after.data is None:
        return []
    return _changes(before.data, after.data, same_seed=before.seed == after.seed)


def _changes(old: DataRecord, new: DataRecord, *, same_seed: bool) -> list[str]:
    counts = {"training examples": (_training(old), _training(new)), "test examples": (old.test, new.test)}
    changes = [f"{what} {first:,} → {second:,}" for what, (first, second) in counts.items() if first != second]
    if changes:
        return changes
    prints = old.fingerprint, new.fingerprint
    # A function of the user's own may make other data for each seed.
    comparable = same_seed or not (old.seeded or new.seeded)
    if comparable and None not in prints and prints[0] != prints[1]:
        return [f"other examples, as many as before (fingerprint {prints[0]} → {prints[1]})"]
    return []


def _training(data: DataRecord) -> int:
    """Examples that were not held out for the test; how many of them validate is up to the job."""
    return data.train + data.validation


def change_note(earlier: Iterable[Result], job: Job, data: DataRecord) -> str:
    """What differs between the data of a job's run and those of the newest of earlier runs that asked for the same;
    empty if nothing does."""
    same = newest([run for run in earlier if _request(run) == job.dataset and run.data is not None])
    changes = (_changes(run.data, data, same_seed=run.seed == job.seed) for run in same if run.data is not None)
    return next((", ".join(change) for change in changes if change), "")


def versions(results: Sequence[Result]) -> list[int]:
    """The version of its data for each result, counted from 0 for each data set in the order in which runs began."""
    numbers = [0] * len(results)
    members: dict[str, list[list[int]]] = {}
    last: dict[str, int] = {}
    for at in _in_order(results):
        request, result = _request(results[at]), results[at]
        known = members.setdefault(request, [])
        if result.data is None:
            numbers[at] = last.get(request, 0)
            continue
        fits = [number for number, group in enumerate(known)
                if not any(differences(results[other], result) for other in group)]
        if not fits:
            known.append([])
            fits = [len(known) - 1]
        known[fits[0]].append(at)
        numbers[at] = last[request] = fits[0]
    return numbers


def newest(results: Sequence[Result]) -> list[Result]:
    """The runs of the newest data of each data set: by them alone a race is decided while it runs."""
    number = versions(results)
    last = {_request(results[at]): number[at] for at in _in_order(results)}
    return [result for at, result in enumerate(results) if number[at] == last[_request(result)]]


def labelled(results: Sequence[Result]) -> list[Result]:
    """The results, those of a data set that changed with a name of their data, and with what changed."""
    number, named = versions(results), list(results)
    for request in {_request(result) for result in results}:
        mine = [at for at in _in_order(results) if _request(results[at]) == request]
        firsts: dict[int, Result] = {}
        for at in mine:
            if results[at].data is not None:
                firsts.setdefault(number[at], results[at])
        if len(firsts) < 2:
            continue
        names = _names({version: run.data for version, run in firsts.items() if run.data is not None})
        pairs = zip(list(firsts.values())[:-1], list(firsts.values())[1:], strict=True)
        change = "; then ".join(", ".join(differences(*pair)) for pair in pairs)
        for at in mine:
            named[at] = results[at].model_copy(update={"data_version": names[number[at]], "data_change": change})
    return named


def _names(versions: Mapping[int, DataRecord]) -> dict[int, str]:
    """`1,200 training examples`, or `fingerprint 3f2a…` where that tells versions no better apart."""
    for form in ("{training:,} training examples", "{training:,} training and {test:,} test examples",
                 "fingerprint {fingerprint}"):
        names = {number: form.format(training=_training(data), test=data.test, fingerprint=data.fingerprint)
                 for number, data in versions.items()}
        if len(set(names.values())) == len(names):
            return names
    return {number: f"version {number + 1}" for number in versions}


def data_note(results: Iterable[Result]) -> str:
    """A sentence on data that changed during the race; empty if they did not."""
    changes = dict.fromkeys(result.data_change for result in results if result.data_change)
    if not changes:
        return ""
    return (f"The data changed during the race ({'; '.join(changes)}): runs on different data are not compared with "
            "each other.")


def _request(result: Result) -> str:
    return result.dataset if result.job is None else result.job.dataset


def _in_order(results: Sequence[Result]) -> list[int]:
    return sorted(range(len(results)), key=lambda at: _started(results[at]))


def _started(result: Result) -> float:
    return result.started or math.inf
