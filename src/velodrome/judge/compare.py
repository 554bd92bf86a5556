"""Results side by side: a row for each configuration, with speedup and scaling against its baselines.

Pure functions on plain data, no input or output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from velodrome.catalog.registry import known_strategy
from velodrome.job.result import Result
from velodrome.job.values import Target
from velodrome.judge.blocks import Block, blocks_of, paired_ratios
from velodrome.judge.configuration import (
    TASK,
    Baselines,
    Configuration,
    names_of,
    short_data,
    text_of,
    varied,
)
from velodrome.judge.measures import (
    BY_NAME,
    QUALITIES,
    THROUGHPUT,
    TIME_TO_TARGET,
    Measure,
    Ratio,
    Spread,
    measures_of,
    own_qualities,
    ratio,
    time_to_target,
)
from velodrome.tasks.base import Metric
from velodrome.tasks.registry import task_of_result


@dataclass(frozen=True)
class Row:
    """One configuration over its finished repetitions."""

    configuration: Configuration
    #: Unique within the race: `torch/ddp with 2 workers, batch 64`.
    name: str
    results: tuple[Result, ...] = field(repr=False)
    #: By the name of the measure; measures that no run has are absent.
    spreads: Mapping[str, Spread]
    #: Runs that ended without a result.
    failures: tuple[Result, ...] = field(default=(), repr=False)
    #: The repetitions of `results`, then those of `failures`.
    blocks: tuple[Block, ...] = field(default=(), repr=False)
    #: Throughput over the same engine's `single` in the same race.
    speedup: Ratio | None = None
    #: Throughput over the strategy's own run with one worker.
    scaling: Ratio | None = None

    @property
    def label(self) -> str:
        return self.configuration.label

    @property
    def runs(self) -> int:
        return len(self.results)

    @property
    def failed(self) -> int:
        return len(self.failures)

    @property
    def crashed(self) -> int:
        """Runs that failed because of what they ran: an interrupted one may have done well."""
        return sum(map(has_crashed, self.failures))

    @property
    def ended(self) -> int:
        """Runs that were ended because they could not win any more."""
        return sum(result.ended_early for result in self.failures)

    @property
    def attempts(self) -> int:
        """Runs that came to an end, finished or crashed."""
        return self.runs + self.crashed

    def by_block(self, read: Callable[[Result], float | None]) -> dict[Block, float]:
        """What every finished run measured, by its repetition; runs without a value are absent."""
        values = zip(self.blocks, map(read, self.results), strict=False)
        return {block: value for block, value in values if value is not None}

    @property
    def workers(self) -> int:
        return int(self.configuration.fields["workers"])

    @property
    def servers(self) -> int:
        return int(self.configuration.fields.get("servers") or 0)

    @property
    def batch_size(self) -> int:
        """0 where a script of the user's own decides it."""
        return int(self.configuration.fields.get("batch_size") or 0)

    @property
    def is_script(self) -> bool:
        """Whether it runs a script of the user's own."""
        return self.configuration.fields.get("script") is not None

    @property
    def single(self) -> bool:
        """Whether it uses the strategy `single`, which distributes nothing."""
        return bool(self.configuration.fields["strategy"] == "single")

    @property
    def is_like_single(self) -> bool:
        """Whether it is one worker, in one process, of a strategy that then trains just as `single` does."""
        if self.single or self.is_script or self.workers > 1 or self.processes > 1:
            return False
        strategy = known_strategy(self.configuration.fields["engine"], self.configuration.fields["strategy"])
        return strategy is not None and strategy.exact and not strategy.needs_control

    @property
    def processes(self) -> int:
        return max(1, len(self.results[0].nodes))

    @property
    def efficiency(self) -> Ratio | None:
        return self.speedup and self.speedup.divided_by(self.workers)

    @property
    def reached(self) -> int:
        """Runs that reached the target."""
        return self.spreads["time_to_target"].count if "time_to_target" in self.spreads else 0

    def mean(self, measure: str) -> float | None:
        """The mean over the runs: geometric for rates and times, whose ratios are of interest, else arithmetic."""
        return self.spreads[measure].mean if measure in self.spreads else None

    @property
    def examples_per_second(self) -> float:
        """0 where a script of the user's own did not report its examples."""
        return self.mean(THROUGHPUT.name) or 0.0

    @property
    def representative(self) -> Result:
        """The run whose throughput is nearest to the mean."""
        middle = self.examples_per_second
        return min(self.results, key=lambda result: abs((THROUGHPUT.read(result) or 0.0) - middle))

    def as_json(self) -> dict[str, Any]:
        """Flat means for scripts, with ranges and intervals beside."""
        fields = self.configuration.fields
        flat: dict[str, Any] = {
            "name": self.name,
            **{name: fields.get(name) for name in ("engine", "strategy", "workers", "servers", "batch_size")},
            "batch_scope": fields.get("batch_scope"),
            "runs": self.runs,
            "failed": self.failed,
            "crashed": self.crashed,
            **{measure.name: self.mean(measure.name) for measure in measures_of(self.results)},
        }
        for name in ("speedup", "scaling", "efficiency"):
            place: Ratio | None = getattr(self, name)
            flat[name] = place and place.estimate
            flat[f"{name}_interval"] = [place.low, place.high] if place and place.has_interval else None
        flat["range"] = {name: [spread.low, spread.high] for name, spread in self.spreads.items()}
        return flat


def is_whole(result: Result) -> bool:
    """Whether a run finished with everything that a comparison needs; a script is compared by what it reported."""
    measured = result.test is not None and bool(THROUGHPUT.read(result))
    return result.status == "finished" and (measured or result.script is not None)


#: Causes of a failure that have nothing to do with the configuration.
_NOT_ITS_FAULT = frozenset({"interrupt", "controller", "disk", "request", "collect"})


def has_crashed(result: Result) -> bool:
    """Whether a run failed because of what it ran, and not because somebody ended it or the disk was full."""
    return result.status == "failed" and (result.error is None or result.error.cause not in _NOT_ITS_FAULT)


def _spreads(results: Sequence[Result], target: Target | None) -> dict[str, Spread]:
    spreads = {}
    for measure in measures_of(results):
        values = [value for result in results if (value := measure.read(result)) is not None]
        if values:
            spreads[measure.name] = Spread(tuple(values), measure.resolution(results[0]), measure.geometric)
    times = []
    for result in results:
        wanted = target or (Target.parse(result.target) if result.target else None)
        if wanted and (seconds := time_to_target(result, wanted)) is not None:
            times.append(seconds)
    if times:
        spreads[TIME_TO_TARGET.name] = Spread(tuple(times), geometric=True)
    return spreads


def _grouped(
    results: Iterable[Result],
) -> tuple[dict[str, Configuration], dict[str, list[Result]], dict[str, list[Result]]]:
    """All configurations, their finished runs and those that did not finish, by key and in order of appearance."""
    configurations: dict[str, Configuration] = {}
    finished: dict[str, list[Result]] = {}
    failures: dict[str, list[Result]] = {}
    for result in results:
        configuration = Configuration.of(result)
        if is_whole(result):
            finished.setdefault(configuration.key, []).append(result)
        elif result.status != "running":
            failures.setdefault(configuration.key, []).append(result)
        else:
            continue
        configurations.setdefault(configuration.key, configuration)
    return configurations, finished, failures


def crashed_always(results: Iterable[Result]) -> dict[str, int]:
    """How often each configuration crashed of which no run finished, by its name."""
    configurations, finished, failures = _grouped(results)
    names = names_of(list(configurations.values()))
    counts = {names[key]: sum(map(has_crashed, group)) for key, group in failures.items() if key not in finished}
    return {name: count for name, count in counts.items() if count}


def compare(results: Iterable[Result], target: Target | None = None) -> list[Row]:
    """A row for each configuration of finished runs, in the order of first appearance."""
    configurations, groups, failures = _grouped(results)
    configurations = {key: configuration for key, configuration in configurations.items() if key in groups}
    names = names_of(list(configurations.values()))
    blocks = blocks_of(groups, failures)
    baselines = Baselines(configurations.values())
    rows = {
        key: Row(configurations[key], names[key], tuple(group), _spreads(group, target),
                 tuple(failures.get(key, ())), blocks[key])
        for key, group in groups.items()
    }

    ratios = {
        task: paired_ratios({row.configuration.key: row.by_block(THROUGHPUT.read) for row in members})
        for task, members in _by_task(rows.values()).items()
    }

    def over(row: Row, key: str | None) -> Ratio | None:
        if key is None:
            return None
        if not all(THROUGHPUT.name in side.spreads for side in (row, rows[key])):
            return None
        if key == row.configuration.key:
            return Ratio(1.0)
        paired = ratios[row.configuration.task](row.configuration.key, key)
        return paired or ratio(row.spreads["examples_per_second"], rows[key].spreads["examples_per_second"])

    return [
        replace(
            row,
            speedup=over(row, baselines.single(row.configuration)),
            scaling=over(row, baselines.alone(row.configuration)),
        )
        for row in rows.values()
    ]


def _by_task(rows: Iterable[Row]) -> dict[str, list[Row]]:
    by_task: dict[str, list[Row]] = {}
    for row in rows:
        by_task.setdefault(row.configuration.task, []).append(row)
    return by_task


def tasks_of(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows by data set and model: only configurations of the same task are compared."""
    differing = [name for name in varied(row.configuration for row in rows) if name in TASK]
    data = short_data(row.configuration for row in rows)
    by_name: dict[str, list[Row]] = {}
    for row in rows:
        texts = {field: text_of(row.configuration.fields.get(field)) for field in differing}
        name = ", ".join(data[text] if field == "dataset" else text for field, text in texts.items())
        by_name.setdefault(name, []).append(row)
    return by_name or {"": []}


def measure_of(rows: Sequence[Row], name: str) -> Measure:
    """A measure by its name; one of a user's own task is known by its results."""
    own = {measure.name: measure for row in rows for measure in own_qualities(row.results)}
    return BY_NAME.get(name) or own[name]


def qualities_of(rows: Sequence[Row]) -> list[Measure]:
    """How good the models are, by every measure that runs report: a race may hold several tasks."""
    own = {measure.name: measure for row in rows for measure in own_qualities(row.results)}
    return [measure for measure in (*QUALITIES, *own.values()) if any(_decides(measure, row) for row in rows)]


def _decides(measure: Measure, row: Row) -> bool:
    """Whether it says how good a row's models are: a task may report others beside the metric that decides."""
    if measure.name not in row.spreads:
        return False
    named = row.results[0].task  # results of earlier versions do not name it
    return not named or task_of_result(row.results[0]).metric.name == measure.name


def quality_of(rows: Sequence[Row]) -> Measure:
    """How good the models of one task are."""
    qualities = qualities_of(rows)
    return qualities[-1] if qualities else QUALITIES[0]


def metric_of(rows: Sequence[Row]) -> Metric:
    """The metric that decides among the models of one task."""
    metric = quality_of(rows).metric
    assert metric is not None, "every quality measures a metric"
    return metric
