"""The measures of a run: name, unit, which direction is better, and how each is read from a result; and what repeated
runs measured: means with ranges, and ratios with 95 % intervals.

`docs/reference/numbers.md` has the same definitions in prose.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import fmean, variance
from typing import Any, Literal, TypeGuard

from velodrome.catalog.models import is_own
from velodrome.events.fields import CPU, MEMORY, OWN_FIELDS, RESOURCES, Network, Resource
from velodrome.events.result import Node
from velodrome.job.result import Result
from velodrome.job.values import Target
from velodrome.tasks.base import Better, Metric
from velodrome.tasks.registry import Script, deciding_metrics, task_of_result

#: Where configurations are compared: the three tables of a report, and the one of a terminal.
View = Literal["results", "times", "resources", "terminal"]
MIB = 2.0**20


@dataclass(frozen=True)
class Measure:
    """One column of numbers."""

    name: str
    heading: str
    unit: str
    form: str
    read: Callable[[Result], float | None]
    better: Better | None = None
    #: The value is divided by this for display.
    scale: float = 1.0
    #: The metric of a task that this measures on the test set.
    metric: Metric | None = None
    #: The views in which it is a column, with its place there.
    shown: Mapping[View, int] = field(default_factory=dict)

    @property
    def geometric(self) -> bool:
        """Whether its mean over runs is geometric: of rates and times, whose ratios are of interest."""
        return self.unit in ("s", "1/s", "examples/s")

    def resolution(self, result: Result) -> float:
        """The smallest difference that two values can have; 0 for a continuous quantity."""
        total = result.test.total if result.test and self.metric and self.metric.fraction else None
        return 1 / total if total else 0.0

    def text(self, value: float) -> str:
        return format(value / self.scale, self.form)


#: Metrics beyond this are not measured: a loss that diverged may be finite, and no statistic can count with it.
_LARGEST = 1e100


def usable(value: Any) -> TypeGuard[float]:
    """Whether a metric is a number that statistics can count with."""
    return isinstance(value, int | float) and abs(value) <= _LARGEST


def _number(value: float | None) -> float | None:
    return value if usable(value) else None


def _at(*path: str) -> Callable[[Result], float | None]:
    """Read a number of a result, or of a part of it that may be missing."""

    def read(result: Result) -> float | None:
        value: Any = result
        for name in path:
            value = getattr(value, name, None)
        return _number(value)

    return read


def _test(metric: str) -> Callable[[Result], float | None]:
    return lambda result: None if result.test is None else _number(result.test.value(metric))


def _node_sum(read: Callable[[Node], float | None]) -> Callable[[Result], float | None]:
    def total(result: Result) -> float | None:
        means = [mean for node in result.nodes if (mean := read(node)) is not None]
        return sum(means) if means else None

    return total


def _resource(resource: Resource, better: Better | None = None, shown: Mapping[View, int] | None = None) -> Measure:
    """A resource, summed over processes; by default it follows all other columns of resources."""
    if shown is None:
        shown = {"resources": 100 + RESOURCES.index(resource)}
    return Measure(
        resource.name, resource.title, resource.unit, resource.form,
        _node_sum(lambda node: node.mean(resource.name)), better, resource.scale, shown=shown,
    )


def _host_sum(count: Callable[[Network], int]) -> Callable[[Result], float | None]:
    """Bytes of every host once: the processes of one host all see the same counters."""

    def read(result: Result) -> float | None:
        hosts: dict[str, float] = {}
        for node in result.nodes:
            hosts[node.host] = max(count(node.network_bytes), hosts.get(node.host, 0.0))
        return sum(hosts.values()) if hosts else None

    return read


def largest_process(result: Result) -> float | None:
    """The most memory that one process had at any time: what a host for it needs."""
    return max((most for node in result.nodes if (most := node.memory_bytes.max) is not None), default=None)


_SENT = _host_sum(lambda network: network.out + network.loopback)


def step_bytes(result: Result) -> float | None:
    """Bytes that all hosts sent, over the network and within themselves, for each training step."""
    sent = _SENT(result)
    return sent / result.steps if sent is not None and result.steps else None


def foreign_cores(result: Result) -> float | None:
    """Cores that other programs used during the run, over all hosts; None if it was not measured."""
    used = [host.cpu.foreign for host in result.hosts if host.cpu is not None]
    return sum(used) if used else None


def thesis_rate(result: Result) -> float | None:
    """Mean batches per second of all training, warm-up included: examples × epochs × workers / (batch × seconds).

    Theses on this subject compute them so. Examples × epochs × workers is what all workers trained on together when
    each sees all data; where data is divided among them it is the examples they shared. Both are the counted examples,
    so one formula serves.
    """
    examples, seconds = result.examples_trained, result.seconds.train
    if not examples or not seconds or not result.batch_size:
        return None
    examples_per_row = 1 if result.job is None else task_of_result(result).examples_per_row(result.job)
    return examples / (result.batch_size * examples_per_row * seconds)


def reached_epoch(result: Result, target: Target) -> int | None:
    """How many epochs it took to reach the target on validation; None if it did not."""
    for number, row in enumerate(result.history, start=1):
        if target.reached({target.metric: row.value(f"validation_{target.metric}")}):
            return number
    return None


def time_to_target(result: Result, target: Target) -> float | None:
    """Training seconds until the end of the epoch that reached the target: nothing is interpolated."""
    epochs = reached_epoch(result, target)
    return None if epochs is None else sum(row.seconds for row in result.history[:epochs])


def _of_metric(metric: Metric) -> Measure:
    return Measure(
        metric.name, f"test {metric.name}", "", metric.form, _test(metric.name), metric.better, metric=metric,
        shown={"results": 0, "terminal": 0},
    )


#: How good a model is: for each task, the metric that decides.
QUALITIES: tuple[Measure, ...] = tuple(map(_of_metric, deciding_metrics()))
THROUGHPUT = Measure(
    "examples_per_second", "throughput", "examples/s", ",.0f", _at("throughput", "examples_per_second"), "more",
    shown={"results": 3, "terminal": 1},
)
#: Read with a target, so `compare` does it.
TIME_TO_TARGET = Measure("time_to_target", "time to target", "s", ",.2f", lambda result: None, "less",
                         shown={"results": 1, "terminal": 4})

MEASURES: tuple[Measure, ...] = (
    *QUALITIES,
    Measure("train_seconds", "training", "s", ",.2f", _at("seconds", "train"), "less",
            shown={"results": 2, "times": 1, "terminal": 5}),
    TIME_TO_TARGET,
    THROUGHPUT,
    Measure("startup_seconds", "start-up", "s", ",.2f", _at("seconds", "startup"), "less",
            shown={"times": 0, "terminal": 7}),
    Measure("evaluate_seconds", "evaluation", "s", ",.2f", _at("seconds", "evaluate"), "less", shown={"times": 2}),
    Measure("total_seconds", "total", "s", ",.2f", _at("seconds", "total"), "less", shown={"times": 3, "terminal": 6}),
    Measure("batches_per_second", "batches", "1/s", ",.1f", _at("throughput", "batches_per_second"), "more",
            shown={"times": 4}),
    Measure("thesis_batches_per_second", "batches over all training time", "1/s", ",.1f", thesis_rate, "more",
            shown={"times": 5}),
    _resource(CPU, shown={"resources": 0, "terminal": 8}),
    Measure("foreign_cores", "other programs", "cores", ",.2f", foreign_cores, "less", shown={"resources": 1}),
    _resource(MEMORY, "less", shown={"resources": 2, "terminal": 9}),
    *(_resource(resource) for resource in RESOURCES if resource not in OWN_FIELDS),
    Measure("process_bytes", "largest process", "MiB", ",.0f", largest_process, None, MIB, shown={"resources": 3}),
    Measure("network_bytes", "network", "MiB", ",.2f", _host_sum(lambda network: network.inbound + network.out),
            "less", MIB, shown={"resources": 4}),
    Measure("loopback_bytes", "loopback", "MiB", ",.2f", _host_sum(lambda network: network.loopback), "less", MIB,
            shown={"resources": 5}),
    Measure("step_bytes", "sent per step", "MiB", ",.3f", step_bytes, None, MIB, shown={"resources": 6}),
    Measure("staleness_mean", "mean staleness", "updates", ",.2f", _at("staleness", "mean"), "less",
            shown={"times": 6}),
    Measure("staleness_max", "max staleness", "updates", ",.0f", _at("staleness", "max"), "less", shown={"times": 7}),
    Measure("share_compute", "computing", "%", ".1f", _at("shares", "compute"), None, 0.01, shown={"times": 8}),
    Measure("share_wait", "waiting", "%", ".1f", _at("shares", "wait"), None, 0.01, shown={"times": 9}),
    Measure("share_communicate", "communicating", "%", ".1f", _at("shares", "communicate"), None, 0.01,
            shown={"times": 10}),
)
BY_NAME = {measure.name: measure for measure in MEASURES}


def own_qualities(results: Iterable[Result]) -> tuple[Measure, ...]:
    """How good the models of users' own tasks and scripts are: the metric that decides in each."""
    metrics = {}
    for result in results:
        own = is_own(result.task or "") or result.task == Script.name
        metric = task_of_result(result).metric if own else None
        if metric is not None and metric.name not in BY_NAME:
            metrics[metric.name] = metric
    return tuple(map(_of_metric, metrics.values()))


def measures_of(results: Sequence[Result]) -> tuple[Measure, ...]:
    """All measures that results may have, those of users' own tasks included."""
    return (*own_qualities(results), *MEASURES)


CONFIDENCE = 0.95


@dataclass(frozen=True)
class Spread:
    """What repeated runs measured: their mean and range."""

    values: tuple[float, ...]
    #: The smallest step in which the quantity can be counted (one test example, for accuracy).
    resolution: float = 0.0
    #: Whether the mean is geometric, so that the ratio of two means is the mean of ratios.
    geometric: bool = False

    @property
    def count(self) -> int:
        return len(self.values)

    @property
    def mean(self) -> float:
        return self.centre if self.geometric or self.low == self.high else fmean(self.values)

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)

    @property
    def centre(self) -> float:
        """The geometric mean, or the plain one where a value is not positive."""
        if self.low == self.high:  # the same to the last bit
            return self.low
        if self.low <= 0:
            return fmean(self.values)
        return math.exp(fmean(map(math.log, self.values)))

    @property
    def log_variance(self) -> float:
        """Of the logarithms; never less than what counting in whole steps hides."""
        hidden = min(1.0, self.resolution / self.centre) ** 2 / 12
        return max(variance(map(math.log, self.values)), hidden)


@dataclass(frozen=True)
class Ratio:
    """How many times larger one quantity is than another; without repetitions there is no interval."""

    estimate: float
    low: float | None = None
    high: float | None = None

    @property
    def has_interval(self) -> bool:
        return self.low is not None

    @property
    def above_one(self) -> bool:
        return self.low is not None and self.low > 1

    @property
    def below_one(self) -> bool:
        return self.high is not None and self.high < 1

    def divided_by(self, number: float) -> Ratio:
        low, high = (None if end is None else end / number for end in (self.low, self.high))
        return Ratio(self.estimate / number, low, high)

    def inverted(self) -> Ratio:
        low, high = (None if end is None else 1 / end for end in (self.high, self.low))
        return Ratio(1 / self.estimate, low, high)


@lru_cache(maxsize=1024)
def t_quantile(probability: float, freedom: float) -> float:
    """Student's t below which a share of `probability` lies."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, probability))


def ratio(above: Spread, below: Spread, confidence: float = CONFIDENCE) -> Ratio | None:
    """The ratio of two geometric means with Welch's interval on logarithms; None where a value is not positive."""
    if above.low <= 0 or below.low <= 0:
        return None
    difference = math.log(above.centre) - math.log(below.centre)
    if above.count < 2 or below.count < 2:
        return Ratio(math.exp(difference))
    parts = [sample.log_variance / sample.count for sample in (above, below)]
    spread = sum(parts)
    if spread == 0:
        return Ratio(math.exp(difference), math.exp(difference), math.exp(difference))
    freedom = spread**2 / sum(
        part**2 / (sample.count - 1) for part, sample in zip(parts, (above, below), strict=True)
    )
    # Few and very different runs give intervals beyond the range of floats: e to the 100th is as inconclusive.
    reach = min(100.0, t_quantile((1 + confidence) / 2, freedom) * math.sqrt(spread))
    return Ratio(math.exp(difference), math.exp(difference - reach), math.exp(difference + reach))
