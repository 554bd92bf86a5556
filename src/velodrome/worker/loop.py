"""The training loop that every engine shares: epochs, counting, validation, target, checkpoints, the result.

It knows no framework. What a step does is the learner's; which examples it trains on is the schedule's."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.catalog.registry import strategy_of
from velodrome.errors import RunFailed
from velodrome.files import write_text
from velodrome.job.check_optimization import left_out, scale_of_rate
from velodrome.job.job import Job, Target
from velodrome.job.optimization import Span, parse_milestones
from velodrome.models.generators import preserved, read_states
from velodrome.tasks import correctness_bits
from velodrome.tasks.base import Steps
from velodrome.tasks.counts import Counts
from velodrome.worker import checkpoint
from velodrome.worker.context import Context
from velodrome.worker.learner import Learner

#: A call into the learner should take about this long: long enough to cost nothing, short enough to watch.
CHUNK_SECONDS = 0.25


def schedules(context: Context) -> Callable[[int], Steps]:
    """The schedule of an epoch, counted from 1; the chief reports its warnings, and what its strategy leaves out."""
    if context.is_chief:
        found = context.task.schedule_warnings(context.job, context.data)
        for message in (*found, *left_out(context.job, context.strategy)):
            context.events.emit("warning", message=message)
    return partial(context.task.schedule, context.job, context.data)


def run(context: Context, learner: Learner) -> None:
    """Train to the end of the job and, in the chief, save the model and report the result."""
    if context.instead is not None:
        context.instead(context, learner)
        return
    job, task, events = context.job, context.task, context.events
    schedule_of = schedules(context)
    generators = learner.generators()
    with context.waiting():
        learner.collect_model()
    if context.is_chief:
        with preserved(generators):  # the other processes do not try it
            messages = learner.check_saving(context.folder)
        for message in messages:
            events.emit("warning", message=message)
    target = Target.parse(job.target) if job.target else None
    if target is not None:
        task.check_target(target)  # the controller does not know the metrics of a task of the user's own
    per_epoch = schedule_of(1).steps
    total_steps = min(job.epochs * per_epoch, job.steps or math.inf)
    pace = Pace(warmup_steps=min(learner.warmup_steps, int(total_steps) // 4))
    history: list[dict[str, Any]] = []
    if context.resume and (saved := checkpoint.to_resume(context.folder, partial(_warn, context))):
        checkpoint.restored(saved, learner.load, generators, context.rank)
        history = saved.history
        context.status.steps = saved.steps

    reached = bool(target and history and target.reached(task.recorded(history[-1], "validation")))
    for epoch in range(len(history) + 1, job.epochs + 1):
        left = int(total_steps) - (epoch - 1) * per_epoch
        if left <= 0 or reached:
            break
        schedule = schedule_of(epoch)
        learner.epoch = epoch
        steps, rates = min(left, schedule.steps), rates_of_epoch(job, epoch, per_epoch, int(total_steps))
        learner.set_rates(rates)
        with events.phase("train", epoch=epoch):
            counts, seconds = _train_epoch(context, learner, schedule, steps, epoch, pace, rates)
        with events.phase("evaluate", epoch=epoch, part="validation"):
            start = time.perf_counter()
            with context.waiting():
                total = learner.total(counts)
                learner.average_statistics()
                held_out = learner.evaluate("validation") if context.has_validation else Counts()
            evaluate_seconds = time.perf_counter() - start
        refuse_nan(total, epoch)
        train, validation = task.fields(total), task.fields(held_out)
        rate = float(rates[steps - 1])
        history.append({"epoch": epoch, **task.history(train=train, validation=validation), "learning_rate": rate,
                        "seconds": seconds, "evaluate_seconds": evaluate_seconds})
        measured = task.measured(validation)
        reached = target is not None and target.reached(measured)
        before = history[-2] if len(history) > 1 else {}
        mentioned = {name for name in measured if before.get(f"validation_{name}", 0) is None}
        if context.has_validation:
            _mention_undefined(context, measured, f"validation set is not a number in epoch {epoch}", mentioned)
        states: list[bytes] = []
        if job.checkpoints:
            with context.waiting():
                states = learner.gather(read_states(generators))
                learner.collect_state()
        if context.is_chief:
            events.emit("epoch", epoch=epoch, seconds=seconds, evaluate_seconds=evaluate_seconds,
                        steps=context.status.steps, train=train, validation=validation, learning_rate=rate)
            if job.checkpoints:
                context.check_folder()
                with events.phase("save", epoch=epoch):
                    path = checkpoint.write(
                        context.folder, epoch, learner.state(), history, context.status.steps, states
                    )
                events.emit("checkpoint", epoch=epoch, file=path.name)

    with events.phase("evaluate", part="test"):
        start = time.perf_counter()
        with context.waiting():
            test = learner.evaluate("test")
        test_seconds = time.perf_counter() - start
    _mention_undefined(context, task.measured(task.fields(test)), "test set is not a number")
    if learner.collective_seconds is not None:
        events.emit("shares", train_seconds=pace.seconds, collective_seconds=learner.collective_seconds)
    with context.waiting():
        learner.collect_model()
    if context.is_chief:
        context.check_folder()
        with events.phase("save"):
            learner.save(context.folder / "model")
            if columns := context.data.columns:  # how a new row is encoded
                write_text(context.folder / "model" / "columns.json", json.dumps(columns, indent=1, ensure_ascii=False))
        events.emit("result", test=task.fields(test), history=history, parameters=learner.parameters,
                    steps=context.status.steps, reached_target=reached, test_seconds=test_seconds,
                    pixels=learner.pixels, metrics=task.definitions(),
                    test_answers=None if learner.answers is None else correctness_bits.encode(learner.answers),
                    test_fingerprint=None if learner.answers is None else task.test_fingerprint(context.data),
                    implementation=learner.implementation or context.strategy.implementation.report(job.implementation),
                    confusion=None if learner.confusion is None else learner.confusion.tolist(),
                    class_names=[] if learner.confusion is None else list(task.class_names(context.data)),
                    pace=pace.fields())
    with context.waiting():
        learner.close()


def _warn(context: Context, text: str) -> None:
    if context.is_chief:
        context.events.emit("warning", message=text)


def _train_epoch(
    context: Context, learner: Learner, schedule: Steps, steps: int, epoch: int, pace: Pace, rates: Rates
) -> tuple[Counts, float]:
    """Train the first `steps` steps of an epoch in calls of about a quarter of a second."""
    counts = Counts()
    began = mark = time.perf_counter()
    learner.begin_epoch(schedule)
    chunk, first, counted = 1, 0, 0
    while first < steps:
        last = min(first + chunk, steps)
        new = learner.train(first, last)
        counts += new
        now = time.perf_counter()
        done = schedule.examples(0, last) if context.strategy.synchronous else counts.total
        pace.add(last - first, done - counted, now - mark)
        context.status.steps += last - first
        refuse_nan(new, epoch)
        metrics = context.task.measured(context.task.fields(new))
        context.events.emit("progress", epoch=epoch, step=last, steps=steps, examples=done, seconds=now - began,
                            loss=metrics["loss"], accuracy=metrics.get("accuracy"), metrics=metrics,
                            learning_rate=float(rates[last - 1]))
        chunk = learner.agree(max(1, min(4 * chunk, round(chunk * CHUNK_SECONDS / max(now - mark, 1e-6)))))
        first, counted, mark = last, done, now
    with context.waiting():
        counts += learner.end_epoch()
    now = time.perf_counter()
    pace.add(0, (schedule.examples(0, steps) if context.strategy.synchronous else counts.total) - counted, now - mark)
    return counts, now - began


def _mention_undefined(
    context: Context, measured: Mapping[str, float | None], what: str, mentioned: Collection[str] = ()
) -> None:
    """Warn of metrics that an evaluation cannot give, but of those that were mentioned."""
    for name, value in measured.items() if context.is_chief else ():
        if value is None and name not in mentioned:
            message = f"{name} of the {what}: look at its targets, and at what the model returns"
            context.events.emit("warning", message=message)


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
    """The rate of each step of an epoch, counted from 1, in a job of so many steps in all."""
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
