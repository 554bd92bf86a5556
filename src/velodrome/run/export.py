"""Exports a run or a race as one file: an archive without checkpoints, or its results as a CSV table.

Files are written atomically; links are left out, so that no file from elsewhere is packed.
"""

from __future__ import annotations

import csv
import io
import os
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from velodrome import files
from velodrome.errors import BadRequest, VelodromeError
from velodrome.job.job import Target
from velodrome.job.result import Result
from velodrome.judge.measures import TIME_TO_TARGET, Measure, measures_of, time_to_target

Form = Literal["zip", "tar.gz", "csv"]
FORMS: tuple[Form, ...] = ("zip", "tar.gz", "csv")
#: A file of more bytes than this, of which less than this share is on the disk, is one of holes.
_LARGE, _LEAST_STORED = 1 << 30, 0.001
_LEFT_OUT = {"controller.lock", ".reserve"}
_JOB = (
    "dataset", "model", "engine", "strategy", "workers", "servers", "batch_size", "batch_scope", "optimizer",
    "learning_rate", "seed",
)


def form_of(form: str | None, out: Path | None) -> Form:
    """The format: as requested, or from the name of the file."""
    if form is None:
        name = out.name if out is not None else "x.zip"
        form = next((known for known in FORMS if name.endswith(f".{known}")), "tgz" if name.endswith(".tgz") else None)
        form = "tar.gz" if form == "tgz" else form
    if form not in FORMS:
        shown = f"--format {form!r}" if form is not None else f"--out {str(out)!r}"
        raise BadRequest(f"{shown}: choose one of {', '.join(FORMS)}")
    return form  # type: ignore[return-value]


def files_of(folder: Path, *, checkpoints: bool) -> Iterator[Path]:
    """The plain files of a run or race, in order."""
    for top, folders, names in os.walk(folder, followlinks=False):
        folders[:] = sorted(
            name for name in folders
            if (checkpoints or name != "checkpoints") and not (Path(top) / name).is_symlink()
        )
        for name in sorted(names):
            path = Path(top) / name
            if name not in _LEFT_OUT and not name.endswith(files.PARTIAL) and path.is_file() and not path.is_symlink():
                yield path


def write_archive(folder: Path, out: Path, form: Form, *, checkpoints: bool = False) -> int:
    """Pack a run or race under its own name and return the number of files."""
    paths = list(files_of(folder, checkpoints=checkpoints))
    _refuse_holes(paths)
    try:
        with files.atomic_path(out, shared=True) as partial:
            if form == "zip":
                with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
                    for path in paths:
                        archive.write(path, f"{folder.name}/{path.relative_to(folder)}")
            else:
                with tarfile.open(partial, "w:gz") as tar:
                    for path in paths:
                        tar.add(path, f"{folder.name}/{path.relative_to(folder)}", recursive=False)
    except OSError as error:
        raise VelodromeError(f"cannot write {str(out)!r}: {error.strerror or error}") from error
    return len(paths)


def _refuse_holes(paths: Sequence[Path]) -> None:
    """Refuse files that claim far more bytes than they have: packing their zeros would take hours."""
    for path in paths:
        about = path.stat()
        if about.st_size > _LARGE and about.st_blocks * 512 < _LEAST_STORED * about.st_size:
            raise VelodromeError(f"{str(path)!r} claims {about.st_size:,} bytes, and {about.st_blocks * 512:,} are on "
                                 "the disk: no program of ours writes such a file; remove it to export the rest")


def table(results: Sequence[Result]) -> str:
    """One row for each result: the job, its status, and all measures in plain units.

    Batches over all training time are there for results with `examples_trained`, time to target for those with one.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    measures = measures_of(results)
    writer.writerow(["run", "status", *_JOB, "epochs", "parameters", *(measure.name for measure in measures)])
    for result in results:
        cells = [result.get(name) for name in ("run", "status", *_JOB, "epochs", "parameters")]
        writer.writerow(map(cell, [*cells, *(_value(measure, result) for measure in measures)]))
    return stream.getvalue()


def _value(measure: Measure, result: Result) -> float | None:
    """The value of a measure; None if its files are broken."""
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        if measure is not TIME_TO_TARGET:
            return measure.read(result)
        if result.get("target"):
            return time_to_target(result, Target.parse(result["target"]))
    return None


def cell(value: object) -> object:
    """A cell of a CSV table; an apostrophe keeps spreadsheets from running a text that looks like a formula."""
    if value is None:
        return ""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value
