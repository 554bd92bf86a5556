"""Estimates how long a job will take, from what is known: earlier runs of it, runs of the same model with other workers
or batches, a second of training, or else a rough table.

Pure functions, for planning only; no estimate enters a result. `benchmarks/estimates.py` compares them with what races
took. The rule for what was not measured: a worker takes a fixed time for a step, a time for each of its examples, and a
time for the exchange with the others; workers beyond the number of cores take turns.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Literal

from velodrome.catalog.exchange import Exchange
from velodrome.catalog.registry import SINGLE, strategy_of
from velodrome.job.job import Job
from velodrome.job.result import Result
from velodrome.tasks.registry import task_of

#: Examples of 28×28 pixels that one core trains in a second, in round numbers.
_RATE = {"linear": 120_000, "dense-128": 70_000, "dense-300-100": 30_000, "lenet5": 2_500}
_UNKNOWN_RATE = 2_000
#: Seconds that a new interpreter takes until its framework is imported, and those from there to the first step.
IMPORT_SECONDS = {"tensorflow": 7.0, "torch": 3.0}
_UNKNOWN_IMPORT = 5.0
_START = {"tensorflow": 1.5, "torch": 0.3}
_UNKNOWN_START = 1.0
#: What one process takes of them on an idle machine, and the most by which a busy one may be slower than that.
_IDLE_START = {"tensorflow": 0.27, "torch": 0.09}
_MOST_SLOWNESS = 4.0
#: Seconds by which processes that find one another start later than one alone, on an idle machine.
_JOIN = {"tensorflow": 0.7}
_UNKNOWN_JOIN = 0.75
#: Seconds of an epoch besides training and evaluation, how much longer that of several processes is, and of the end.
_EPOCH, _JOINT_EPOCH, _END = 0.003, 0.003, 0.1
#: Seconds of a step besides its examples, and of the exchange of a small network's gradients, on an idle machine.
_STEP = {"tensorflow": 0.0003}
_UNKNOWN_STEP = 0.0005
_EXCHANGE: dict[Exchange, float] = {
    "none": 0.0, "devices": 0.001, "all-reduce": 0.0025, "all-reduce-in-memory": 0.0005, "servers": 0.003,
    "all-reduce-and-broadcast": 0.0055, "all-reduce-and-gather": 0.0055, "gather-and-scatter": 0.0055,
    "periodic": 0.001,
}
_UNKNOWN_EXCHANGE = 0.004
#: The same where an engine differs.
_ENGINE_EXCHANGE: dict[tuple[str, Exchange | None], float] = {("tensorflow", "all-reduce"): 0.0008}
#: The most of a step that is taken to be fixed.
_MOST_FIXED = 0.8
#: How much of a further thread of the same process counts.
_THREAD = 0.8
#: An evaluation computes no gradients.
_EVALUATION = 3.0
#: Fields of a job that do not change how long a step of it takes.
_FREE = frozenset({
    "seed", "epochs", "steps", "target", "start_timeout", "stall_timeout", "checkpoints", "learning_rate", "scale_rate",
    "weight_decay", "nesterov", "schedule", "schedule_by", "warmup", "milestones", "milestone_factor", "decay",
    "decay_after", "label_smoothing",
})
#: Fields in which jobs agree from whose runs others are estimated by the rule.
_ALIKE = ("dataset", "model", "model_args", "task", "dtype", "unroll", "engine", "framework", "implementation")
#: By which factor a rough guess of the training time may be wrong, and that of a model which the table does not have.
_DOUBT, _UNKNOWN_DOUBT = 5.0, 50.0

Source = Literal["runs", "similar runs", "other workers", "measured", "guess"]


@dataclass(frozen=True)
class Timing:
    """How long the parts of a job took, in seconds; examples per second are those of all workers together."""

    #: From the command to the first step, and what of it was importing a framework.
    startup: float
    rate: float
    #: How much longer the first steps took than others.
    first: float = 0.0
    #: Of one evaluation of the validation set; None if there was none.
    evaluate: float | None = None
    trained: float = 0.0
    importing: float = 0.0
    #: Saving and all else after each epoch, and what came after training.
    save: float = _EPOCH
    rest: float = _END


@dataclass(frozen=True)
class Known:
    """A job and how long it took: a run, or, without an end, a second of one."""

    job: Job
    timing: Timing
    cores: int
    measured: bool = False
    #: Epochs after which it reached its target; 0 if it did not.
    reached: int = 0


@dataclass(frozen=True)
class Estimate:
    """Seconds of a job, and what they rest on."""

    seconds: float
    source: Source
    #: Runs, or seconds of training, that they rest on.
    amount: float = 0.0
    #: Examples per second, and the seconds that training takes without all else.
    rate: float = 0.0
    training: float = 0.0

    @property
    def measured(self) -> bool:
        """Whether they rest on anything that was measured."""
        return self.source != "guess"

    def at_worst(self, job: Job) -> float:
        """Seconds that the training of this job may take if a guess is wrong, in round numbers."""
        return self.training * self._doubt(job)

    def bounds(self, job: Job) -> tuple[float, float]:
        """The least and the most seconds of this job if a guess is wrong, in round numbers."""
        rest, doubt = self.seconds - self.training, self._doubt(job)
        return rest + self.training / doubt, rest + self.training * doubt

    def _doubt(self, job: Job) -> float:
        return 1.0 if self.measured else _DOUBT if job.model in _RATE else _UNKNOWN_DOUBT

    @property
    def basis(self) -> str:
        """What they rest on, in words."""
        runs = "1 earlier run" if self.amount == 1 else f"{self.amount:.0f} earlier runs"
        return {
            "runs": f"from {runs}", "similar runs": f"from {runs} of this model with other workers, batch or strategy",
            "other workers": f"from {runs} of this script with other workers",
            "measured": f"measured for {self.amount:.0f} s", "guess": "rough guess",
        }[self.source]


def is_alike(first: Job, second: Job) -> bool:
    """Whether the runs of one job say something about the other: they may differ in workers, batch and strategy."""
    return all(getattr(first, name) == getattr(second, name) for name in _ALIKE)


def known_of(result: Result, job: Job, examples: int | None) -> Known | None:
    """What a finished run shows; None if it did not measure it."""
    seconds, history = result.seconds, result.history
    rate, train = result.throughput.examples_per_second, seconds.train
    if job.script is not None or not rate or not history or train is None:
        return None
    trained = amount_of(job, examples, len(history)) / rate
    evaluate = sum(epoch.evaluate_seconds for epoch in history)
    importing = max((node.phases.get("import", 0.0) for node in result.nodes), default=0.0)
    rest = max(0.0, seconds.total - seconds.startup - train - evaluate)
    end = min(rest, max(_END, rest / (len(history) + 1)))
    timing = Timing(
        seconds.startup, rate, max(0.0, train - trained), evaluate / len(history), train, importing,
        (rest - end) / len(history), end,
    )
    cores = result.machine.cores if result.machine is not None else 0
    return Known(job, timing, cores or 1, reached=len(history) if result.reached_target else 0)


def amount_of(job: Job, examples: int | None, epochs: int | None = None) -> float:
    """Examples that a job trains on."""
    amount = float((epochs or job.epochs) * (examples or 50_000))
    return min(amount, job.steps * task_of(job).examples_per_step(job)) if job.steps else amount


def estimate(
    job: Job, examples: int | None, pixels: int | None, cores: int, known: Sequence[Known], *, warm: bool
) -> Estimate:
    """Seconds that a job will take. Of what is known, runs of the same job count more than others, and those more than
    a second of training."""
    same = [other for other in known if _fields(other.job) == _fields(job)]
    for source, members in _sources(job, same, known):
        if members:
            parts = [_expected(job, examples, cores, other, warm=warm) for other in members]
            seconds, rate = median(total for total, _ in parts), median(rate for _, rate in parts)
            amount = median(other.timing.trained for other in members) if source == "measured" else len(members)
            return Estimate(seconds, source, max(1.0, amount), rate, amount_of(job, examples) / rate)
    pace = _RATE.get(job.model, _UNKNOWN_RATE) * min(1.0, 784 / (pixels or 784)) ** 0.5
    rate = _rate(job, cores, 1 / pace)
    timing = Timing(_START.get(job.engine, _UNKNOWN_START) + _joining(job, cores), rate)
    seconds = _seconds(job, examples, timing, rate, warm=warm)
    return Estimate(seconds, "guess", 0.0, rate, amount_of(job, examples) / rate)


def _sources(job: Job, same: Sequence[Known], known: Sequence[Known]) -> Iterable[tuple[Source, list[Known]]]:
    """What is known, in the order in which it is used: of the nearest kind only the nearest."""
    alike = [other for other in known if is_alike(other.job, job)]
    yield "runs", [other for other in same if not other.measured]
    yield "measured", [other for other in same if other.measured]
    for source, measured in (("similar runs", False), ("measured", True)):
        members = [other for other in alike if other.measured == measured]
        nearest = min((_distance(other.job, job) for other in members), default=None)
        yield source, [other for other in members if _distance(other.job, job) == nearest]  # type: ignore[misc]


def _fields(job: Job) -> dict[str, Any]:
    return {name: value for name, value in job.model_dump().items() if name not in _FREE}


def _distance(first: Job, second: Job) -> tuple[int, float, bool]:
    """How far a job is from another: first by its workers, then by its batch, then by its strategy."""
    batches = abs(math.log(_own_batch(first) / _own_batch(second)))
    return abs(first.workers - second.workers), round(batches, 6), first.strategy != second.strategy


def _own_batch(job: Job) -> float:
    """Examples of one worker in a step."""
    per_step = task_of(job).examples_per_step(job)
    return max(1.0, per_step / job.workers if strategy_of(job).synchronous else per_step)


def _expected(job: Job, examples: int | None, cores: int, other: Known, *, warm: bool) -> tuple[float, float]:
    """Seconds and examples per second of a job, from those of another or of itself."""
    rate = other.timing.rate if _fields(other.job) == _fields(job) else _scaled(other, job, cores)
    slowness = _slowness(other)
    timing = replace(
        other.timing,
        startup=other.timing.startup + slowness * (_joining(job, cores) - _joining(other.job, other.cores)),
        save=max(0.0, other.timing.save + slowness * _JOINT_EPOCH * (_is_joint(job) - _is_joint(other.job))),
    )
    epochs = min(other.reached, job.epochs) if other.reached and other.job.target == job.target else None
    return _seconds(job, examples, timing, rate, epochs, warm=warm), rate


def _seconds(
    job: Job, examples: int | None, timing: Timing, rate: float, epochs: int | None = None, *, warm: bool
) -> float:
    """All parts of a job together, at this rate."""
    amount = amount_of(job, examples, epochs)
    passes = math.ceil(amount / (examples or 50_000))
    evaluate = timing.evaluate
    if evaluate is None:
        evaluate = job.validation * (examples or 50_000) / (rate * _EVALUATION)
    startup = max(0.05, timing.startup - timing.importing)
    startup += 0.0 if warm else IMPORT_SECONDS.get(job.engine, _UNKNOWN_IMPORT)
    return startup + timing.first + amount / rate + passes * (evaluate + timing.save) + timing.rest


def _scaled(other: Known, job: Job, cores: int) -> float:
    """Examples per second of a job by the rule, from those of another."""
    step = _own_batch(other.job) * other.job.workers / other.timing.rate
    # What was measured counts more than the constants: no more than most of a step can be fixed.
    fixed = _slowness(other) * _fixed(other.job, other.cores)
    share = min(1.0, _MOST_FIXED * step / fixed)
    each = (step - share * fixed) / (_own_batch(other.job) * _crowding(other.job, other.cores))
    return _rate(job, cores, each, share * _slowness(other))


def _slowness(other: Known) -> float:
    """How many times as long as on an idle machine a job took to start: other programs slow down whatever waits for
    processes by as much."""
    idle = _IDLE_START.get(other.job.engine)
    if idle is None:
        return 1.0
    start = (other.timing.startup - other.timing.importing) / (idle + _joining(other.job, other.cores))
    return min(max(1.0, start), _MOST_SLOWNESS)


def _rate(job: Job, cores: int, each: float, share: float = 1.0) -> float:
    """Examples per second by the rule: `each` are the seconds of an example on one core."""
    step = share * _fixed(job, cores) + each * _own_batch(job) * _crowding(job, cores)
    return _own_batch(job) * job.workers / step


def _fixed(job: Job, cores: int) -> float:
    """Seconds of a step that do not depend on its examples."""
    step = _STEP.get(job.engine, _UNKNOWN_STEP)
    if not _is_joint(job):
        return step
    exchange = strategy_of(job).exchange
    each = _ENGINE_EXCHANGE.get((job.engine, exchange), _UNKNOWN_EXCHANGE if exchange is None else _EXCHANGE[exchange])
    return step + each * max(1.0, job.workers / cores)


def _is_joint(job: Job) -> bool:
    """Whether several processes train it."""
    return job.workers > 1 or job.servers > 0


def _crowding(job: Job, cores: int) -> float:
    """How many times as long as on one core of its own a worker computes: less with several threads."""
    threads = job.threads or max(1, cores // job.workers)
    return max(1.0, job.workers / cores) / (1 + _THREAD * (min(threads, cores) - 1))


def _joining(job: Job, cores: int) -> float:
    """Seconds that processes need to find one another, and that more of them than cores start later."""
    processes = job.workers + job.servers
    if strategy_of(job).name == SINGLE or job.script is not None:
        return 0.0
    return _JOIN.get(job.engine, _UNKNOWN_JOIN) * max(1.0, processes / max(1, cores))


def basis_of(estimates: Iterable[Estimate]) -> str:
    """What the estimates of several jobs rest on, in words."""
    by_source: dict[str, list[Estimate]] = {}
    for each in estimates:
        by_source.setdefault(each.source, []).append(each)
    if list(by_source) == ["runs"]:
        return Estimate(0.0, "runs", sum(each.amount for each in by_source["runs"])).basis
    total = sum(map(len, by_source.values()))
    return ", ".join(
        members[0].basis if len(members) == total else f"{members[0].basis} for {len(members)} of {total}"
        for members in by_source.values()
    )
