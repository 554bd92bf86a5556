"""`export` and `predict`: a trained model as ONNX, and what it says about files, without a training framework."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from velodrome import files as stored
from velodrome.api.runs import locate_run
from velodrome.clusters import DEFAULT, open_launcher
from velodrome.data.base import Faults
from velodrome.data.fetch import using_mirror
from velodrome.data.own.tables import read_rows
from velodrome.errors import BadRequest
from velodrome.models.description import Served
from velodrome.serving import inputs, responses
from velodrome.serving.export import export_run
from velodrome.serving.inputs import LARGEST_BYTES
from velodrome.serving.model import NOT_FINITE, BadInput, LoadedModel
from velodrome.serving.responses import TOP, responses_of

FORMATS = ("onnx",)


def export(
    name: str, runs: str | Path = "runs", *, format: str = "onnx", again: bool = False, on: str = DEFAULT,
    mirror: str | None = None, trust_code: Collection[str] = (),
) -> dict[str, Any]:
    """Write the model of a finished run as ONNX beside its own files: the ``file``, and the largest ``difference``
    between ONNX Runtime and the engine over the examples of the test set that were ``checked``.

    Args:
        name: a finished run, ``RACE/RUN`` or the path of its folder.
        runs: folder that holds the runs.
        format: ``onnx``.
        again: export anew, even if there is an export.
        on: the launcher: ``local``, or ``debug`` to export inside this program.
        mirror: folder or URL with the publisher's files of a data set.
        trust_code: code that the run names and that may run, as ``module:function``; not needed for what was trained on
            this machine.

    Raises:
        BadRequest: there is no such run, it has no model, or a package is missing.
        RunFailed: the model cannot be written as ONNX, or computes something else then.
    """
    if format not in FORMATS:
        raise BadRequest(f"--format {format!r}: choose {' or '.join(FORMATS)}")
    path = locate_run(Path(runs), name)
    with using_mirror(mirror), open_launcher(on) as launcher:
        return export_run(path, launcher, again=again, trusted=trust_code)


def load(
    name: str, runs: str | Path = "runs", *, mirror: str | None = None, threads: int | None = None,
    trust_code: Collection[str] = (),
) -> LoadedModel:
    """The model of a run in ONNX Runtime; it is exported first if it was not yet."""
    path = locate_run(Path(runs), name)
    export(name, runs, mirror=mirror, trust_code=trust_code)
    return LoadedModel(path / "model", name, threads=threads)


def predict(
    name: str, files: Sequence[str | Path], runs: str | Path = "runs", *, top: int = TOP, mirror: str | None = None,
    trust_code: Collection[str] = (),
) -> dict[str, Any]:
    """Run the model of a run on files: pictures, tables (each row), or texts (for which it predicts the next words).

    Args:
        name: a finished run, ``RACE/RUN`` or the path of its folder.
        files: pictures, ``.csv`` tables, ``.json`` examples, or texts.
        runs: folder that holds the runs.
        top: number of classes to list, the most probable first.
        mirror: folder or URL with the publisher's files of a data set, if the model must be exported first.
        trust_code: as for ``export``.
    """
    if top < 1:
        raise BadRequest(f"--top {top!r}: choose 1 or more")
    for file in files:
        if not Path(file).is_file():
            raise BadRequest(f"no file {str(file)!r}")
    model = load(name, runs, mirror=mirror, trust_code=trust_code)
    try:
        rows = [row for file in files for row in _answers(model, Path(file), top)]
    except OSError as error:
        raise BadRequest(f"cannot read {str(error.filename)!r}: {error.strerror}") from None
    return {"run": name, "task": model.about.task, "model": model.about.model, "files": rows}


def _answers(model: LoadedModel, file: Path, top: int) -> Iterator[dict[str, Any]]:
    about = model.about
    for place, given in _examples(about, file):
        began = time.perf_counter()
        if about.kind == "text":
            probabilities = responses.next_words(model, given)
            # Probabilities are computed already: they count as the outputs of the graph.
            as_outputs = about.model_copy(update={"outputs": "probabilities"})
            predictions = responses_of(as_outputs, probabilities[None], top)[0]
        else:
            scores = model.scores(given)
            if not np.isfinite(scores).all():
                raise BadInput(f"{str(file)!r}: {NOT_FINITE}")
            predictions = responses_of(about, scores, top)[0]
        row = {"file": str(file), **place, "predictions": predictions}
        yield {**row, "milliseconds": round(1000 * (time.perf_counter() - began), 3)}


def _examples(about: Served, file: Path) -> Iterator[tuple[dict[str, int], Any]]:
    """The examples of a file, each with its row where a file has several."""
    if about.kind == "text":
        yield {}, stored.read_text(file, responses.LONGEST_TEXT * 4, errors="replace")
    elif file.suffix.lower() == ".csv" and about.encoding is not None:
        known, faults = {column.name for column in about.encoding.features}, Faults()
        for number, (_, row) in enumerate(read_rows(file, faults), start=1):
            yield {"row": number}, inputs.from_fields(about, {key: row[key] for key in row if key in known})
        if wrong := faults.all():
            raise BadRequest(f"{str(file)!r}: {wrong[0]}")
    elif file.suffix.lower() == ".json":
        try:
            given = json.loads(stored.read_text(file, LARGEST_BYTES))
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"{str(file)!r} is not JSON: {error}") from None
        for number, example in enumerate(given if isinstance(given, list) else [given], start=1):
            yield ({"row": number} if isinstance(given, list) else {}), inputs.from_fields(about, example)
    else:
        try:
            yield {}, inputs.from_picture(about, stored.read_bytes(file, LARGEST_BYTES))
        except BadInput as error:
            raise BadRequest(f"{str(file)!r}: {error}") from None
