"""Exports the model of a run to ONNX, and keeps the file only if ONNX Runtime computes what the engine computes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from velodrome.catalog.registry import engine_of
from velodrome.clusters.launcher import Launcher
from velodrome.errors import BadRequest, RunFailed
from velodrome.job.job import Job
from velodrome.job.resolve import alone
from velodrome.models.description import EXAMPLES, ONNX, SERVED, TOLERANCE, Served
from velodrome.run.dry_run import dry_run
from velodrome.run.saved_model import finished_result, job_of_saved_model
from velodrome.run.store import RunFolder
from velodrome.serving.model import Array, LoadedModel, is_exported, runtime
from velodrome.variables import EXPORT


def export_run(path: Path, launcher: Launcher, *, again: bool = False, trusted: Collection[str] = ()) -> dict[str, Any]:
    """Write `model.onnx` and its description beside a run's saved model; what was written and how exact it is."""
    runtime()
    folder = RunFolder(path)
    model = path.resolve() / "model"
    if again or not is_exported(model):
        finished_result(folder, "export")
        job = job_of_saved_model(folder, trusted)
        with tempfile.TemporaryDirectory(prefix=".onnx-", dir=model) as name:
            made = Path(name)
            dry_run(job, f"{EXPORT}{made}", launcher)
            if (writer := engine_of(job).exported_by) is not None:
                _write_graph(job, writer, made, launcher)
            _compare(made, folder.name)
            for file in sorted(made.iterdir(), key=lambda file: file.name == SERVED):  # the description last
                shutil.move(file, model / file.name)
    about = LoadedModel(model, folder.name).about
    return {
        "run": folder.name, "format": "onnx", "file": str(model / ONNX), "bytes": (model / ONNX).stat().st_size,
        "task": about.task, "difference": about.difference, "checked": about.checked, "tolerance": TOLERANCE,
    }


def _write_graph(job: Job, writer: str, made: Path, launcher: Launcher) -> None:
    """Let an engine with the same networks write the graph. It is compared with the outputs of the engine that trained
    it, which are there already."""
    with tempfile.TemporaryDirectory(prefix=".onnx-", dir=made.parent) as name:
        folder = Path(name)
        try:
            dry_run(alone(job.model_copy(update={"engine": writer, "framework": None})), f"{EXPORT}{folder}", launcher)
        except BadRequest as error:
            raise BadRequest(f"engine {writer} writes models of {job.engine} as ONNX: {error}") from None
        Served.read(folder / SERVED).model_copy(update={"engine": job.engine}).write(made / SERVED)
        shutil.move(folder / ONNX, made / ONNX)


def _compare(folder: Path, run: str) -> None:
    """Refuse a graph that differs from the engine's own model on examples of the test set; record by how much."""
    with np.load(folder / EXAMPLES, allow_pickle=False) as stored:
        expected = stored["expected"]
        inputs = {name.removeprefix("in:"): stored[name] for name in stored.files if name.startswith("in:")}
    try:
        model = LoadedModel(folder, run)
    except BadRequest as error:
        raise _different(run, str(error)) from None
    count = len(expected)

    def part(first: int, last: int) -> Array:
        return _outputs(model, {name: array[first:last] for name, array in inputs.items()})

    try:
        # One alone and the others together: a graph that was made for one size of batch would not take both.
        computed = np.concatenate([part(0, 1), *([part(1, count)] if count > 1 else [])])
    except Exception as error:
        raise _different(run, f"it cannot run: {str(error).splitlines()[0]}") from None
    if computed.shape != expected.shape:
        raise _different(run, f"it returns {computed.shape}, and the engine {expected.shape}")
    largest = float(np.abs(computed - expected).max()) if np.isfinite(computed).all() else float("inf")
    scale = max(1.0, float(np.abs(expected).max()))
    if not largest <= TOLERANCE * scale:
        raise _different(run, f"its outputs differ by {largest:.2g} from the engine's, more than {TOLERANCE:g}")
    model.about.model_copy(update={"difference": largest / scale, "checked": count, "run": run}).write(folder / SERVED)


def _different(run: str, why: str) -> RunFailed:
    return RunFailed(f"the model of run {run!r} was written as ONNX and is not kept: {why}")


def _outputs(model: LoadedModel, inputs: dict[str, Array]) -> Array:
    if model.about.kind != "text":
        return model.scores(inputs)
    if not model.about.state:
        return model.run(inputs)[0][:, -1]
    words, rows = inputs["words"], len(inputs["words"])
    state = {each.name: np.zeros([rows if axis < 0 else axis for axis in each.shape], np.float32)
             for each in model.about.state}
    scores: Array = np.zeros(0)
    for column in range(words.shape[1]):
        scores, *after = model.run({"words": words[:, column : column + 1], **state})
        state = dict(zip(state, after, strict=True))
    return scores[:, -1]
