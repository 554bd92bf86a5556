"""The quantities that studies publish: heading, form, and how ours is read from results."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from velodrome.catalog.base import SCRIPT_LABEL
from velodrome.events.fields import HistoryRow
from velodrome.job.result import Result
from velodrome.judge.blocks import Block
from velodrome.judge.compare import Row
from velodrome.judge.measures import BY_NAME, Spread
from velodrome.tasks.base import Metric
from velodrome.tasks.registry import deciding_metrics, tasks

#: Reads a run; the number is that of the cores that all of its processes together could use.
Read = Callable[[Result, int], float | None]
#: A metric after so many epochs: `train_accuracy@4`.
_AT_EPOCH = re.compile(r"(?P<row>(?:train|validation)_(?P<metric>\w+))@(?P<epoch>[1-9][0-9]*)")
#: A metric of the last epoch: `train_accuracy`.
_LAST_EPOCH = re.compile(r"(?:train|validation)_(?P<metric>\w+)")
#: A metric that a script reported of its test: `test_distance`.
_OF_TEST = re.compile(r"test_(?P<metric>\w+)")


@dataclass(frozen=True)
class Quantity:
    """A published quantity: its heading, how it is written, and how ours is read."""

    heading: str
    form: str
    of_run: Read
    #: Whether it is a time or a rate, which says something only if every worker has a core.
    timed: bool = False
    #: Whether it is the same for a shorter training: rates and resources, but not accuracies and times.
    steady: bool = False
    #: Whether it is a share of examples, which is compared by differences and not by ratios.
    fraction: bool = False
    #: The metric that it measures on the test set.
    metric: Metric | None = None

    def values(self, row: Row, cores: int) -> dict[Block, float]:
        """What every run of a configuration measured, by its repetition."""
        return row.by_block(lambda result: self.of_run(result, cores))

    def read(self, row: Row, cores: int) -> float | None:
        """The mean over the runs of a configuration; of speedup, the estimate."""
        if self is QUANTITIES["speedup"]:
            place = row.speedup or row.scaling
            return place.estimate if place else None
        values = tuple(self.values(row, cores).values())
        return Spread(values, geometric=self.timed).mean if values else None


def _measure(name: str, scale: float = 1.0) -> Read:
    def read(result: Result, cores: int) -> float | None:
        value = BY_NAME[name].read(result)
        return None if value is None else value / scale

    return read


def _cpu(result: Result, cores: int) -> float | None:
    value = BY_NAME["cpu_percent"].read(result)
    return None if value is None else value / cores


def _network(result: Result, cores: int) -> float | None:
    values = [BY_NAME[name].read(result) for name in ("network_bytes", "loopback_bytes")]
    known = [value for value in values if value is not None]
    return sum(known) / 1e6 if known else None


def _inbound_rate(result: Result, cores: int) -> float | None:
    """What all hosts received each second, within themselves included, in MB."""
    hosts: dict[str, int] = {}
    for node in result.nodes:
        received = node.network_bytes.inbound + node.network_bytes.loopback
        hosts[node.host] = max(received, hosts.get(node.host, 0))
    return sum(hosts.values()) / 1e6 / result.seconds.total if hosts and result.seconds.total else None


def _steps_per_worker(result: Result, cores: int) -> float | None:
    """Of a script, the steps that its first worker reported."""
    share = 1 if result.strategy == SCRIPT_LABEL else result.workers
    return result.steps / share if result.steps else None


def _of_test(metric: str) -> Read:
    def read(result: Result, cores: int) -> float | None:
        return None if result.test is None else result.test.value(metric)

    return read


def _of_epoch(metric: str, epoch: int) -> Read:
    """A metric after so many epochs, counted from 1; -1 is the last."""
    def read(result: Result, cores: int) -> float | None:
        if not result.history or epoch > len(result.history):
            return None
        return result.history[epoch - 1 if epoch > 0 else epoch].value(metric)

    return read


def _no_run(result: Result, cores: int) -> float | None:
    """Speedup compares configurations: no run has it alone."""
    return None


QUANTITIES: dict[str, Quantity] = {
    metric.name: Quantity(f"test {metric.name}", metric.form, _measure(metric.name), fraction=metric.fraction,
                          metric=metric)
    for metric in deciding_metrics()
} | {
    "seconds": Quantity("training s", ",.2f", _measure("train_seconds"), timed=True),
    "total": Quantity("total s", ",.2f", _measure("total_seconds"), timed=True),
    "steps_per_worker": Quantity("steps per worker", ",.0f", _steps_per_worker),
    "cpu": Quantity("CPU %", ",.1f", _cpu, steady=True),
    "memory": Quantity("memory GB", ",.2f", _measure("memory_bytes", 1e9), steady=True),
    "network": Quantity("network MB", ",.1f", _network),
    "inbound_rate": Quantity("inbound MB/s", ",.1f", _inbound_rate, timed=True, steady=True),
    "throughput": Quantity("examples/s", ",.0f", _measure("examples_per_second"), timed=True, steady=True),
    "batches_per_second": Quantity("batches/s", ",.1f", _measure("batches_per_second"), timed=True, steady=True),
    "speedup": Quantity("speedup", ".2f", _no_run, timed=True, steady=True),
    "staleness": Quantity("mean staleness", ",.1f", _measure("staleness_mean")),
}


def quantity_named(name: str) -> Quantity:
    """A quantity by its name: one of `QUANTITIES`, or a metric of the last epoch or of an epoch."""
    if name in QUANTITIES:
        return QUANTITIES[name]
    if reported := _OF_TEST.fullmatch(name):
        metric = reported["metric"]
        heading = f"test {metric.replace('_', ' ')}"
        return Quantity(heading, ".4f", _of_test(metric), fraction=metric.endswith("accuracy"))
    match = _AT_EPOCH.fullmatch(name)
    metric = match["row"] if match else name
    epoch = int(match["epoch"]) if match else -1
    after = f" after epoch {epoch}" if match else ""
    heading = f"{metric.replace('_', ' ', 1)}{after}"
    return Quantity(heading, ".4f", _of_epoch(metric, epoch), fraction=metric.endswith("accuracy"))


def is_quantity(name: str, *, own_metrics: bool = False) -> bool:
    """Whether there is such a quantity; with `own_metrics`, a metric may have any name."""
    return name in QUANTITIES or any(
        _is_metric(pattern.fullmatch(name), own_metrics) for pattern in (_AT_EPOCH, _LAST_EPOCH, _OF_TEST))


def is_of_epochs(name: str, *, own_metrics: bool = False) -> bool:
    """Whether the history of a run has such a value for each epoch."""
    return name in HistoryRow.model_fields or _is_metric(_LAST_EPOCH.fullmatch(name), own_metrics)


def _is_metric(match: re.Match[str] | None, own_metrics: bool) -> bool:
    return match is not None and (own_metrics or match["metric"] in _metrics())


def _metrics() -> list[str]:
    return list(dict.fromkeys(metric.name for task in tasks() for metric in task.metrics))


def quantity_names() -> list[str]:
    return [*QUANTITIES, *(f"test_{metric}" for metric in _metrics()), *epoch_names(),
            *(f"{row}@1" for row in epoch_names())]


def epoch_names() -> list[str]:
    return [f"{part}_{metric}" for part in ("train", "validation") for metric in _metrics()]
