"""What a training process can do with its learner instead of training it.

These are a second of training for `velodrome check`, and the evaluation of a saved model for `velodrome runs verify`.
Both use engine, task and data as training does. A saved model is exported in `worker/onnx_export.py`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from velodrome.catalog.engines.torch import Mesh
from velodrome.job.job import Job
from velodrome.models.generators import preserved
from velodrome.tasks import correctness_bits
from velodrome.tasks.counts import Counts
from velodrome.variables import CHECK, EXPORT
from velodrome.worker.context import Context
from velodrome.worker.learner import Learner
from velodrome.worker.loop import Pace, refuse_nan, schedules

#: `check` trains two steps and for so many seconds after them, by calls of so many.
PACE_SECONDS, CALL_SECONDS = 1.0, 0.25
#: A test set is evaluated by `check` if that is expected to take no longer than this.
EVALUATION_SECONDS = 5.0


def prepare(context: Context, instead: str) -> None:
    """Let a process do this instead of training: `check`, the evaluation of the model saved in that folder, or its
    export."""
    if instead.startswith(CHECK):
        workers, _, mesh = instead.removeprefix(CHECK).partition(":")
        context.action = partial(check, workers=int(workers), mesh=Mesh.parse(mesh) if mesh else None)
    elif instead.startswith(EXPORT):
        context.export_to = Path(instead.removeprefix(EXPORT))
    else:
        context.saved_model, context.action = Path(instead), evaluate_saved


def check(context: Context, learner: Learner, workers: int, mesh: Mesh | None = None) -> None:
    """Train for a second, report what a step takes, also with so many workers, or those of a mesh, and evaluate a small
    test set."""
    job, events, data = context.job, context.events, context.data
    with preserved(learner.generators()):
        for message in learner.check_saving(context.folder):
            events.emit("warning", message=message)
    schedule = schedules(context)(1)
    learner.epoch = 1
    learner.set_rate(job.rate_of(1))
    with events.phase("train", epoch=1):
        learner.begin_epoch(schedule)
        steps, began = min(2, schedule.steps), time.perf_counter()
        counts = learner.train(0, 1)  # the first step is slower than the others
        if steps > 1:
            began = time.perf_counter()
            counts += learner.train(1, 2)
        seconds = time.perf_counter() - began
        refuse_nan(counts, 1)
        inspection = learner.inspect(steps - 1, np.dtype(job.weights_dtype).itemsize)
        batch = max(1, schedule.examples(0, steps) // steps)
        steps, seconds = _paced(learner, steps, schedule.steps, seconds)
    in_memory, mapped = data_bytes(data)
    events.emit("inspection", **asdict(inspection), batch=batch, seconds=seconds, data_bytes=in_memory,
                mapped_bytes=mapped, divisions=learner.divisions(workers, mesh, inspection))
    learner.average_statistics()
    expected = seconds / batch * len(data.test)
    test = _evaluated(context, learner) if expected <= EVALUATION_SECONDS else Counts()
    _report(context, learner, job, test, steps)


def _paced(learner: Learner, done: int, steps: int, seconds: float) -> tuple[int, float]:
    """Train for a second more, as far as there are steps; how many are done then, and the seconds of one. The calls are
    as long as those of training."""
    first, spent = done, 0.0
    while done < steps and spent < PACE_SECONDS:
        count = min(steps - done, max(1, int(CALL_SECONDS / max(seconds, 1e-6))))
        began = time.perf_counter()
        refuse_nan(learner.train(done, done + count), 1)
        spent, done = spent + time.perf_counter() - began, done + count
        seconds = spent / (done - first)
    return done, seconds


def evaluate_saved(context: Context, learner: Learner) -> None:
    """Evaluate the model that was loaded in place of a new one, on the whole test set."""
    _report(context, learner, context.job, _evaluated(context, learner), 0)


def _evaluated(context: Context, learner: Learner) -> Counts:
    with context.events.phase("evaluate", part="test"):
        counts = learner.evaluate("test")
    refuse_nan(counts, 1)
    return counts


def _report(context: Context, learner: Learner, job: Job, test: Counts, steps: int) -> None:
    correct = learner.answers
    context.events.emit(
        "result", test=context.task.fields(test), history=[], parameters=learner.parameters, steps=steps,
        pixels=learner.pixels, metrics=context.task.definitions(),
        test_answers=None if correct is None else correctness_bits.encode(correct),
        test_fingerprint=None if correct is None else context.task.test_fingerprint(context.data),
        pace=Pace(0).fields(), implementation=learner.implementation,
    )
    learner.close()


def data_bytes(data: Any) -> tuple[int, int]:
    """Bytes of the arrays of a data set: those in memory, and those that are mapped from files."""
    arrays = {id(array): array for part in ("train", "validation", "test") for array in _arrays(getattr(data, part))}
    mapped = sum(array.nbytes for array in arrays.values() if isinstance(array, np.memmap))
    return sum(array.nbytes for array in arrays.values()) - mapped, mapped


def _arrays(value: Any) -> Iterator[np.ndarray[Any, Any]]:
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _arrays(each)
    elif is_dataclass(value):
        for each in fields(value):
            yield from _arrays(getattr(value, each.name))
