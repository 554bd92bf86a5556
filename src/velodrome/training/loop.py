"""The training loop that every engine shares: epochs, counting, validation, target, checkpoints, the result.

It knows no framework. What a step does is the learner's; which examples it trains on is the schedule's.

The learning rate of every step is a pure function of the job. A learner gets those of an epoch as one vector before it
begins, so that a schedule of rates costs nothing in the loop. How long each call of the learner is, rank 0 decides
(`Learner.agree`) where all ranks must make the same calls.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from velodrome.catalog.registry import strategy_of
from velodrome.errors import RunFailed
from velodrome.files import write_text
from velodrome.job.check_optimization import left_out, scale_of_rate
from velodrome.job.job import Job
from velodrome.job.optimization import Span, parse_milestones
from velodrome.job.values import Target
from velodrome.models.checks import preserved, read_states
from velodrome.models.model_files import COLUMNS, VOCABULARY
from velodrome.tasks import correctness_bits
from velodrome.tasks.base import Counts, Steps
from velodrome.training import checkpoint
from velodrome.training.context import Context
from velodrome.training.learner import Learner

#: A call into the learner should take about this long: long enough to cost nothing, short enough to watch.
CHUNK_SECONDS = 0.25
#: What an engine's `connect` returns for its learner: a transport, a strategy, a mesh.
Peers = TypeVar("Peers")


def schedules(context: Context) -> Callable[[int], Steps]:
    """The schedule of an epoch, counted from 1; the chief reports its warnings, and what its strategy leaves out."""
    if context.is_chief:
        warnings = context.task.schedule_warnings(context.job, context.data)
        for message in (*warnings, *left_out(context.job, context.strategy)):
            context.events.emit("warning", message=message)
    return partial(context.task.schedule, context.job, context.data)


def train(context: Context, connect: Callable[[], Peers], build: Callable[[Peers], Learner]) -> None:
    """Join the other processes, load the data, build the learner and train: the phases of a process that computes."""
    with context.events.phase("connect"), context.waiting():
        peers = connect()
    _ = context.data  # a phase of its own
    with context.events.phase("build"):
        learner = build(peers)
    (context.action or run)(context, learner)


def run(context: Context, learner: Learner) -> None:
    """Train to the end of the job and, in the chief, save the model and report the result."""
    training = Training(context, learner)
    if context.resume:
        training.resume()
    for epoch in range(len(training.history) + 1, context.job.epochs + 1):
        if training.reached or training.steps_left(epoch) <= 0:
            break
        training.run_epoch(epoch)
    test, test_seconds = training.test()
    with context.waiting():
        learner.collect_model()
    if context.is_chief:
        training.save_model()
        training.report(test, test_seconds)
    with context.waiting():
        learner.close()


class Training:
    """The training of a job, epoch by epoch, and what is known of it so far."""

    def __init__(self, context: Context, learner: Learner) -> None:
        self._context, self._learner = context, learner
        self._job, self._task, self._events = context.job, context.task, context.events
        self._schedule_of = schedules(context)
        self._generators = learner.generators()
        self._check_saving()
        self._target = Target.parse(self._job.target) if self._job.target else None
        if self._target is not None:
            self._task.check_target(self._target)  # the controller does not know the metrics of a user's task
        self._per_epoch = self._schedule_of(1).steps
        self._total_steps = int(min(self._job.epochs * self._per_epoch, self._job.steps or math.inf))
        self._pace = Pace(warmup_steps=min(learner.warmup_steps, self._total_steps // 4))
        self.history: list[dict[str, Any]] = []
        #: Whether the target was reached.
        self.reached = False

    def _check_saving(self) -> None:
        with self._context.waiting():
            self._learner.collect_model()
        if self._context.is_chief:
            with preserved(self._generators):  # the other processes do not try it
                messages = self._learner.check_saving(self._context.folder)
            for message in messages:
                self._warn(message)

    def _warn(self, message: str) -> None:
        if self._context.is_chief:
            self._events.emit("warning", message=message)

    def resume(self) -> None:
        """Continue from the newest checkpoint that can be read, if there is one."""
        if saved := checkpoint.to_resume(self._context.folder, self._warn):
            checkpoint.restored(saved, self._learner.load, self._generators, self._context.rank)
            self.history, self._context.status.steps = saved.history, saved.steps
        if self._target and self.history:
            self.reached = self._target.reached(self._task.recorded(self.history[-1], "validation"))

    def steps_left(self, epoch: int) -> int:
        """Steps of the job before which this epoch begins."""
        return self._total_steps - (epoch - 1) * self._per_epoch

    def run_epoch(self, epoch: int) -> None:
        """Train and evaluate an epoch, report it and write its checkpoint."""
        task, learner, schedule = self._task, self._learner, self._schedule_of(epoch)
        learner.epoch = epoch
        steps = min(self.steps_left(epoch), schedule.steps)
        rates = rates_of_epoch(self._job, epoch, self._per_epoch, self._total_steps)
        learner.set_rates(rates)
        with self._events.phase("train", epoch=epoch):
            counts, seconds = self._train(schedule, steps, epoch, rates)
        total, held_out, evaluate_seconds = self._evaluate(counts, epoch)
        refuse_nan(total, epoch)
        train, validation, rate = task.fields(total), task.fields(held_out), float(rates[steps - 1])
        self.history.append({"epoch": epoch, **task.history(train=train, validation=validation), "learning_rate": rate,
                             "seconds": seconds, "evaluate_seconds": evaluate_seconds})
        measured = task.measured(validation)
        self.reached = self._target is not None and self._target.reached(measured)
        if self._context.has_validation:
            before = self.history[-2] if len(self.history) > 1 else {}
            mentioned = {name for name in measured if before.get(f"validation_{name}", 0) is None}
            self._mention_undefined(measured, f"validation set is not a number in epoch {epoch}", mentioned)
        states: list[bytes] = []
        if self._job.checkpoints:
            with self._context.waiting():
                states = learner.gather(read_states(self._generators))
                learner.collect_state()
        if self._context.is_chief:
            self._events.emit("epoch", epoch=epoch, seconds=seconds, evaluate_seconds=evaluate_seconds,
                              steps=self._context.status.steps, train=train, validation=validation, learning_rate=rate)
            if self._job.checkpoints:
                self._write_checkpoint(epoch, states)

    def _train(self, schedule: Steps, steps: int, epoch: int, rates: Rates) -> tuple[Counts, float]:
        """Train the first `steps` steps of an epoch in calls of about a quarter of a second."""
        context, learner, counts = self._context, self._learner, Counts()
        began = mark = time.perf_counter()
        learner.begin_epoch(schedule)
        chunk, first, counted = 1, 0, 0
        while first < steps:
            last = min(first + chunk, steps)
            new = learner.train(first, last)
            counts += new
            now = time.perf_counter()
            done = self._examples(schedule, last, counts)
            self._pace.add(last - first, done - counted, now - mark)
            context.status.steps += last - first
            refuse_nan(new, epoch)
            metrics = self._task.measured(self._task.fields(new))
            self._events.emit("progress", epoch=epoch, step=last, steps=steps, examples=done, seconds=now - began,
                              loss=metrics["loss"], accuracy=metrics.get("accuracy"), metrics=metrics,
                              learning_rate=float(rates[last - 1]))
            chunk = learner.agree(max(1, min(4 * chunk, round(chunk * CHUNK_SECONDS / max(now - mark, 1e-6)))))
            first, counted, mark = last, done, now
        with context.waiting():
            counts += learner.end_epoch()
        now = time.perf_counter()
        self._pace.add(0, self._examples(schedule, steps, counts) - counted, now - mark)
        return counts, now - began

    def _examples(self, schedule: Steps, steps: int, counts: Counts) -> int:
        """Examples trained on: asynchronous workers may not have done all steps that they were asked for."""
        return schedule.examples(0, steps) if self._context.strategy.synchronous else counts.total

    def _evaluate(self, counts: Counts, epoch: int) -> tuple[Counts, Counts, float]:
        """The counts of all processes' training and of the validation set, and the seconds that they took."""
        learner, start = self._learner, time.perf_counter()
        with self._events.phase("evaluate", epoch=epoch, part="validation"), self._context.waiting():
            total = learner.total(counts)
            learner.average_statistics()
            held_out = learner.evaluate("validation") if self._context.has_validation else Counts()
        return total, held_out, time.perf_counter() - start

    def _write_checkpoint(self, epoch: int, states: list[bytes]) -> None:
        context = self._context
        context.check_folder()
        with self._events.phase("save", epoch=epoch):
            state = self._learner.state()
            path = checkpoint.write(context.folder, epoch, state, self.history, context.status.steps, states)
        self._events.emit("checkpoint", epoch=epoch, file=path.name)

    def test(self) -> tuple[Counts, float]:
        """Evaluate the test set; the counts of all processes and the seconds that it took."""
        start = time.perf_counter()
        with self._events.phase("evaluate", part="test"), self._context.waiting():
            test = self._learner.evaluate("test")
        seconds = time.perf_counter() - start
        self._mention_undefined(self._task.measured(self._task.fields(test)), "test set is not a number")
        if self._learner.collective_seconds is not None:
            self._events.emit("shares", train_seconds=self._pace.seconds,
                              collective_seconds=self._learner.collective_seconds,
                              **({} if self._learner.waited_seconds is None
                                 else {"waited_seconds": self._learner.waited_seconds}))
        return test, seconds

    def save_model(self) -> None:
        """Write the model, how a row of a table is encoded for it, and the words of a language model."""
        self._context.check_folder()
        folder, data = self._context.folder / "model", self._context.data
        with self._events.phase("save"):
            folder.mkdir(parents=True, exist_ok=True)
            if data.columns:
                write_text(folder / COLUMNS, json.dumps(data.columns, indent=1, ensure_ascii=False) + "\n", sync=False)
            if words := getattr(data, "vocabulary", None):
                write_text(folder / VOCABULARY, json.dumps(words, ensure_ascii=False) + "\n", sync=False)
            self._learner.save(folder)

    def report(self, test: Counts, test_seconds: float) -> None:
        """Emit the result of the job."""
        context, confusion = self._context, self._learner.confusion
        report_result(
            context, self._learner, test, history=self.history, steps=context.status.steps,
            reached_target=self.reached, test_seconds=test_seconds, pace=self._pace.fields(),
            implementation=self._learner.implementation
            or context.strategy.implementation.report(self._job.implementation),
            confusion=None if confusion is None else confusion.tolist(),
            class_names=[] if confusion is None else list(self._task.class_names(context.data)),
        )

    def _mention_undefined(
        self, measured: Mapping[str, float | None], what: str, mentioned: Collection[str] = ()
    ) -> None:
        """Warn of metrics that an evaluation cannot give, but of those that were mentioned."""
        for name, value in measured.items():
            if value is None and name not in mentioned:
                self._warn(f"{name} of the {what}: look at its targets, and at what the model returns")


def report_result(context: Context, learner: Learner, test: Counts, **training: Any) -> None:
    """Emit the result event: what was counted of the test set, and these fields about the training before."""
    task, answers = context.task, learner.answers
    context.events.emit(
        "result", test=task.fields(test), parameters=learner.parameters, pixels=learner.pixels,
        metrics=task.definitions(),
        test_answers=None if answers is None else correctness_bits.encode(answers),
        test_fingerprint=None if answers is None else task.test_fingerprint(context.data),
        **training,
    )


def refuse_nan(counts: Counts, epoch: int) -> None:
    if counts.total and not math.isfinite(counts.loss_sum):
        raise RunFailed(
            f"the loss became {counts.loss_sum} in epoch {epoch}: try a smaller learning rate, or look for a division "
            "by zero or a logarithm of zero in the model"
        )


@dataclass
class Pace:
    """Seconds and examples of the training phase alone, with the first steps apart as warm-up."""

    warmup_steps: int
    seconds: float = 0.0
    examples: int = 0
    steps: int = 0
    warmup: dict[str, float] = field(default_factory=lambda: {"steps": 0, "examples": 0, "seconds": 0.0})

    def add(self, steps: int, examples: int, seconds: float) -> None:
        self.steps += steps
        self.examples += examples
        self.seconds += seconds
        if self.warmup["steps"] < self.warmup_steps:
            self.warmup = {"steps": self.steps, "examples": self.examples, "seconds": self.seconds}

    def fields(self) -> dict[str, Any]:
        """As the result event carries them."""
        return {"seconds": self.seconds, "examples": self.examples, "steps": self.steps, "warmup": self.warmup}


Rates = NDArray[np.float64]


def rates_of_epoch(job: Job, epoch: int, per_epoch: int, total: int) -> Rates:
    """The rate of each step of an epoch, counted from 1, in a job of `total` steps."""
    base = job.rate_of(epoch) * scale_of_rate(job, strategy_of(job))
    if job.schedule == "constant" and job.warmup is None:
        return np.full(per_epoch, base)
    if job.schedule_by == "epoch":
        # The same with epochs in place of steps.
        return np.full(per_epoch, base * _factors(job, np.array([epoch - 1]), 1, -(-total // per_epoch)))
    return base * _factors(job, (epoch - 1) * per_epoch + np.arange(per_epoch), per_epoch, total)


def _factors(job: Job, steps: NDArray[np.int64], per_epoch: int, total: int) -> Rates:
    """What the rate is multiplied with at steps that are counted from 0."""
    warmup = Span.parse(job.warmup).steps(per_epoch) if job.warmup is not None else 0
    done = np.clip((steps - warmup) / max(1, total - warmup), 0.0, 1.0)
    if job.schedule == "cosine":
        factors = 0.5 * (1 + np.cos(np.pi * done))
    elif job.schedule == "linear":
        factors = 1 - done
    else:
        passed = [steps >= span.steps(per_epoch) for span in parse_milestones(job.milestones or "0")]
        reached = np.sum(passed, axis=0) if job.schedule == "step" else np.zeros(len(steps))
        factors = job.milestone_factor ** reached
    return np.where(steps < warmup, (steps + 1) / max(1, warmup), factors)
