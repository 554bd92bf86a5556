"""The comparisons of our configurations that the checks of a claim ask for. Pure functions on plain data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from velodrome.catalog import registry
from velodrome.studies.format import (
    Check,
    Claim,
    Compare,
    Fields,
    Flattens,
    Gap,
    Largest,
    Level,
    Scales,
    Sense,
    fits,
    fits_any,
)
from velodrome.studies.settings import Setting

#: What follows from the choice of engine and strategy: pairs of them may differ in these, too.
_OF_STRATEGIES = frozenset({"engine", "strategy", "framework", "consistency", "servers", "implementation"})


@dataclass(frozen=True)
class Question:
    """One comparison that a check asks for: a lead, and which sign of it the document claims."""

    label: str
    measure: str
    first: Setting
    #: None if a configuration is compared with a value.
    second: Setting | None
    sense: Sense
    factor: float = 1.0
    within: float = 0.0
    value: float = 0.0
    #: Pairs whose lead is taken away: of speedups, that of one worker each.
    without: tuple[tuple[Setting, Setting], ...] = ()
    #: Whether the claim stands without it, if it cannot be asked here.
    optional: bool = True


def questions_of(claim: Claim, settings: Sequence[Setting]) -> Iterator[Question]:
    for check in claim.checks:
        among = [
            setting for setting in settings if fits_any(_fields(setting), check.where)
            and not any(fits_any(_fields(setting), excluded) for excluded in check.exceptions)
            and (not setting.added or _names_added(check))
        ]
        yield from _of_check(check, among, [setting for setting in settings if not setting.added])


def _fields(setting: Setting) -> Fields:
    """The published fields of a configuration, and whether it was added to the study."""
    return {**setting.published, **({"added": True} if setting.added else {})}


def _names_added(check: Check) -> bool:
    """Whether a check is about configurations that were added to the study: all others leave them out."""
    return "added" in check.where or (isinstance(check, Compare | Largest) and "added" in check.of)


def _of_check(check: Check, among: Sequence[Setting], settings: Sequence[Setting]) -> Iterator[Question]:
    match check:
        case Compare():
            yield from _pairs(check, among, settings)
        case Largest():
            winners = [setting for setting in among if fits(_fields(setting), check.of)]
            others = [setting for setting in among if setting not in winners]
            for winner in winners:
                for other in others:
                    yield Question(f"over {other.label}", check.measure, winner, other, "more")
        case Level():
            for setting in among:
                yield Question(setting.label, check.measure, setting, None, check.sense, value=check.value,
                               within=check.within)
        case Gap():
            yield from _gaps(check, among, settings)
        case Scales():
            for series in _series(among):
                for count, setting in series.items():
                    if 1 < count <= check.to and 1 in series:
                        yield Question(f"{setting.label} over one worker", "throughput", setting, series[1], "more",
                                       check.share * count, optional=count != check.to)
        case Flattens():
            for series in _series(among):
                if check.beyond in series and check.to in series:
                    yield Question(
                        f"{series[check.to].label} over {check.beyond} workers", "throughput", series[check.to],
                        series[check.beyond], "less", check.share * check.to / check.beyond, optional=False,
                    )


#: Two configurations, and the pairs whose lead is taken away from theirs.
_Pair = tuple[Setting, Setting, tuple[tuple[Setting, Setting], ...]]


def _pairs(check: Compare, among: Sequence[Setting], settings: Sequence[Setting]) -> Iterator[Question]:
    for first, second, without in _paired(check, among, settings):
        yield Question(first.label, check.measure, first, second, check.sense, check.factor, check.within,
                       without=without)


def _paired(check: Compare | Gap, among: Sequence[Setting], settings: Sequence[Setting]) -> Iterator[_Pair]:
    """Configurations of both groups that differ in nothing else; of speedups, with those of one worker each."""
    for first in among:
        if not fits(_fields(first), check.of):
            continue
        second = _partner(first, check.of, check.than, settings)
        if second is None:
            continue
        if check.measure != "speedup":
            yield first, second, ()
            continue
        singles = [_with_one_worker(setting, settings) for setting in (first, second)]
        if workers_of(first) > 1 and singles[0] is not None and singles[1] is not None:
            yield first, second, ((singles[0], singles[1]),)


def _gaps(check: Gap, among: Sequence[Setting], settings: Sequence[Setting]) -> Iterator[Question]:
    """Pairs among `where` with those of as many workers among `against`."""
    others = [*_paired(check, [each for each in settings if fits_any(_fields(each), check.against)], settings)]
    for first, second, without in _paired(check, among, settings):
        for third, fourth, given in others:
            if workers_of(third) == workers_of(first):
                back = tuple((right, left) for left, right in given)
                label = f"{first.label} against {third.label}"
                yield Question(label, check.measure, first, second, check.sense,
                                without=(*without, (third, fourth), *back))


def _partner(first: Setting, of: Fields, than: Fields, settings: Iterable[Setting]) -> Setting | None:
    fixed = {*of, *than}
    if fixed & {"engine", "strategy"}:
        fixed |= _OF_STRATEGIES
    fixed -= than.keys()
    wanted = {name: value for name, value in first.published.items() if name not in fixed} | than
    for setting in settings:
        names = {*wanted, *setting.published} - fixed
        if all(setting.published.get(name) == wanted.get(name) for name in names):
            return setting
    return None


def _with_one_worker(setting: Setting, settings: Iterable[Setting]) -> Setting | None:
    """The same configuration with one worker; where every worker comes with a server, with one of both."""
    wanted = ({**setting.published, "workers": 1}, {**setting.published, "workers": 1, "servers": 1})
    return next((each for each in settings if dict(each.published) in wanted), None)


def _series(settings: Sequence[Setting]) -> list[dict[int, Setting]]:
    """Configurations that differ in their number of workers alone, by that number; every worker may have a server."""
    alike: dict[str, list[Setting]] = {}
    for setting in settings:
        rest = {name: repr(value) for name, value in setting.published.items() if name not in ("workers", "servers")}
        alike.setdefault(repr(sorted(rest.items())), []).append(setting)
    series = []
    for group in alike.values():
        servers = dict.fromkeys(setting.published.get("servers") for setting in group)
        lines = [[setting for setting in group if setting.published.get("servers") == count] for count in servers]
        lines.append([setting for setting in group if setting.published.get("servers") == workers_of(setting)])
        series += [{workers_of(setting): setting for setting in line} for line in lines
                   if len(line) > 1 or len(group) == 1]
    return series


def workers_of(setting: Setting) -> int:
    return int(setting.published.get("workers", 1))


def cores_of(setting: Setting) -> int:
    """Processes that had a core each: workers, and servers that were not beside them."""
    fields = setting.published
    strategy = registry.known_strategy(fields["engine"], fields.get("strategy", ""))
    beside = strategy is not None and strategy.servers_beside_workers
    return workers_of(setting) + (0 if beside else int(fields.get("servers") or 0))
