"""What a training process can do instead of training.

With its learner: a second of training for `velodrome check`, and the evaluation of a saved model for `velodrome runs
verify`. Both use engine, task and data as training does. Without one: a saved model is written as ONNX, with what a
server must know to feed it. The engine's own outputs on some examples of the test set are written beside it: the
controller compares them with what ONNX Runtime computes before it keeps the file."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.catalog.base import Engine
from velodrome.catalog.engines.torch import Mesh
from velodrome.catalog.models import UNROLL
from velodrome.catalog.registry import engine_of
from velodrome.data.base import is_mapped
from velodrome.errors import BadRequest, RunFailed, VelodromeError, headline
from velodrome.models.checks import preserved
from velodrome.models.description import CHECKED_EXAMPLES, EXAMPLES, ONNX, SERVED, Exported, check_data, served_model
from velodrome.models.model_files import read_description
from velodrome.tasks.base import Counts, Loaded
from velodrome.training.context import Context
from velodrome.training.learner import Learner
from velodrome.training.loop import Pace, refuse_nan, report_result, schedules

#: `check` trains two steps, then for `PACE_SECONDS` more in calls of about `CALL_SECONDS`.
PACE_SECONDS, CALL_SECONDS = 1.0, 0.25
#: A test set is evaluated by `check` if that is expected to take no longer than this.
EVALUATION_SECONDS = 5.0


def check(context: Context, learner: Learner, workers: int, mesh: Mesh | None = None) -> None:
    """Train for a second, report what a step takes, also with `workers` workers or those of a mesh, and evaluate a
    small test set."""
    job, events, data = context.job, context.events, context.data
    with preserved(learner.generators()):
        for message in learner.check_saving(context.folder):
            events.emit("warning", message=message)
    schedule = schedules(context)(1)
    learner.epoch = 1
    learner.set_rates(np.full(schedule.steps, job.rate_of(1)))
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
    _report(context, learner, test, steps)


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
    _report(context, learner, _evaluated(context, learner), 0)


def _evaluated(context: Context, learner: Learner) -> Counts:
    with context.events.phase("evaluate", part="test"):
        counts = learner.evaluate("test")
    refuse_nan(counts, 1)
    return counts


def _report(context: Context, learner: Learner, test: Counts, steps: int) -> None:
    report_result(
        context, learner, test, history=[], steps=steps, pace=Pace(0).fields(), implementation=learner.implementation
    )
    learner.close()


def data_bytes(data: Loaded) -> tuple[int, int]:
    """Bytes of the arrays of a data set: those in memory, and those that are mapped from files."""
    mapped = sum(array.nbytes for array in data.arrays if is_mapped(array))
    return sum(array.nbytes for array in data.arrays) - mapped, mapped


#: Arrays by the names of the data set.
Named = dict[str, NDArray[Any]]
#: Words of a row of a language model that carries a state, and of any other one at most.
_WORDS = 20


def fed_images(about: Mapping[str, Any], inputs: Named, dtype: str) -> NDArray[Any]:
    """Stored images (count, height, width, channels) as the model that a description is of was fed with them."""
    scale, offset = (np.asarray(about[name], dtype) for name in ("scale", "offset"))
    images: NDArray[Any] = inputs["x"].astype(dtype) * scale + offset
    return images


def in_parts(
    call: Callable[[list[NDArray[Any]]], NDArray[Any]], arrays: Sequence[NDArray[Any]], only: int | None
) -> NDArray[Any]:
    """What `call` returns for all rows of the arrays, of which it takes exactly `only` at a time, if that is given:
    the last part is filled up."""
    count = len(arrays[0])
    size = only or count
    parts = [
        call([np.resize(array[first : first + size], (size, *array.shape[1:])) for array in arrays])
        for first in range(0, count, size)
    ]
    return np.concatenate(parts)[:count]


def export(context: Context, folder: Path) -> None:
    """Export the model of the folder above `folder` into it; only the engine's own outputs, if another engine writes
    the graph."""
    saved = folder.parent
    about = read_description(saved, context.job.model, context.job.model_args)
    engine = engine_of(context.job)
    module = _exporter(engine)
    check_data(about, context.data)
    inputs, targets = _examples(context)
    with context.events.phase("build"):
        if engine.exported_by is None:
            _refuse_without(module.NEEDS, engine.name)
            exported = _written(module, saved, about, folder / ONNX, inputs)
            served_model(context.task.name, context.job, context.data, about, exported).write(folder / SERVED)
        else:
            exported = Exported(module.outputs(saved, about, inputs))
    with (folder / EXAMPLES).open("wb") as stream:
        np.savez_compressed(stream, expected=exported.expected, **_prefixed("in", inputs), **_prefixed("y", targets))
    context.events.emit(
        "result", test=context.task.fields(Counts()), history=[], parameters=0, steps=0,
        metrics=context.task.definitions(), pace=Pace(0).fields(),
    )


def _exporter(engine: Engine) -> ModuleType:
    """The module that exports models: the engine's own, or that of the engine whose tasks, and so models, it shares.

    `export(saved, about, file, inputs)` of a module `onnx_export` writes the model of a folder to a file and returns an
    `Exported`; its graph takes inputs as the data set stores them. `NEEDS` are the packages that it needs besides the
    framework. Where another engine writes the graph (`Engine.exported_by`), the engine's package has
    `outputs(saved, about, inputs)`: what the model of a folder returns for such inputs.
    """
    own = engine.worker.rpartition(".")[0]
    if engine.exported_by is not None:
        package = import_module(own)
        if not hasattr(package, "outputs"):
            raise BadRequest(f"models of engine {engine.name} cannot be exported: {own!r} has no function 'outputs'")
        return package
    for name in (f"{own}.onnx_export", f"velodrome.engines.{engine.tasks_of}.onnx_export"):
        if find_spec(name) is not None:
            return import_module(name)
    raise BadRequest(f"models of engine {engine.name} cannot be exported: there is no module '{own}.onnx_export'")


def _written(module: Any, saved: Path, about: Mapping[str, Any], file: Path, inputs: Named) -> Exported:
    try:
        exported: Exported = module.export(saved, about, file, inputs)
    except (VelodromeError, OSError):
        raise
    except Exception as error:  # converters raise what they like
        raise RunFailed(f"model {about['model']!r} cannot be written as ONNX: {headline(str(error))}") from error
    return exported


def _refuse_without(packages: tuple[str, ...], engine: str) -> None:
    if missing := [name for name in packages if find_spec(name) is None]:
        raise BadRequest(
            f"exporting a model of {engine} needs {' and '.join(missing)} in the interpreter that trains with it: "
            f"python -m pip install {' '.join(missing)}"
        )


def _examples(context: Context) -> tuple[Named, Named]:
    """Examples spread over the test set: inputs and targets as the data set stores them."""
    data = context.data
    if data.kind != "text":
        inputs, targets = data.test.gather(_spread(len(data.test)))
        return dict(inputs), dict(targets)
    length = min(UNROLL.of(context.job) or _WORDS, _WORDS)
    starts = _spread(len(data.test) - length)
    words = np.asarray(data.test)[starts[:, None] + np.arange(length + 1)].astype(np.int64)
    return {"words": words[:, :-1]}, {"y": words[:, -1]}


def _spread(count: int) -> NDArray[np.int64]:
    if count < 1:
        raise BadRequest("the data set has no test examples that the exported model could be compared on")
    return np.linspace(0, count - 1, min(count, CHECKED_EXAMPLES)).astype(np.int64)


def _prefixed(prefix: str, arrays: Named) -> dict[str, Any]:
    return {f"{prefix}:{name}": array for name, array in arrays.items()}
