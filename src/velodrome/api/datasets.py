"""`datasets.list`, `prepare`, `show`, `encode_row`, `verify` and `shard`: what `velodrome data` does, as plain data."""

from __future__ import annotations

import builtins
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from velodrome import files
from velodrome.data import catalogue
from velodrome.data.base import BadData, Progress, quiet
from velodrome.data.fetch import using_mirror
from velodrome.data.source import Description
from velodrome.errors import BadRequest, VelodromeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from velodrome.data.examples import ArrayField, ExampleSet

#: Bytes of a file of columns.
_LARGEST_COLUMNS = 1 << 28


def list() -> builtins.list[dict[str, Any]]:
    """The built-in data sets with sizes, shape and licence; ``here`` is whether one is on this machine.

    ``here`` is None for a data set whose files are damaged, and its only note is the reason.
    """
    return [{**_plain(about), "here": here} for about, here in descriptions()]


def descriptions() -> builtins.list[tuple[Description, bool | None]]:
    """Every built-in data set, and whether it is on this machine."""
    return [_describe(name) for name in catalogue.names()]


def _describe(name: str) -> tuple[Description, bool | None]:
    try:
        return catalogue.describe(name), catalogue.is_here(name)
    except (VelodromeError, OSError) as error:
        return Description(
            name=name, title="", licence="", homepage="", train=None, validation=None, test=None, input_shape=None,
            classes=None, notes=(str(error),),
        ), None


def _plain(about: Description) -> dict[str, Any]:
    """A description as it is after a round trip through JSON."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(about)))
    return plain


def prepare(
    name: str, *, mirror: str | None = None, bad_data: BadData = "fail", on_download: Progress | None = None
) -> dict[str, Any]:
    """Download a data set, verify and decode it; its description.

    Args:
        name: name of a data set, as for ``Job.dataset``; also your own data.
        mirror: folder or URL with the publisher's files.
        bad_data: whether unusable examples are left out (``skip``) or an error (``fail``).
        on_download: called with bytes done, bytes in total and a label.
    """
    with using_mirror(mirror):
        source = catalogue.data_set(name, bad_data)
        source.forget_damaged()
        source.prepare(on_download or quiet)
    return {**_plain(catalogue.describe(name, bad_data=bad_data)), "ready": True}


def show(
    name: str,
    *,
    out: str | Path | None = None,
    columns: int = 12,
    seed: int = 1,
    validation: float = 0.1,
    bad_data: BadData = "fail",
    mirror: str | None = None,
    on_download: Progress | None = None,
) -> dict[str, Any]:
    """Write a contact sheet of a data set and count its classes; for a text, count its words; for arrays and tables,
    say what they hold and what was done to their columns.

    Args:
        name: name of a data set; also your own data.
        out: PNG file to write; by default ``NAME.png``.
        columns: examples of each class.
        seed: random seed of the validation and test splits.
        validation: fraction held out for validation.
        bad_data: whether unusable examples are left out (``skip``) or an error (``fail``).
        mirror: folder or URL with the publisher's files.
        on_download: called with bytes done, bytes in total and a label.
    """
    with using_mirror(mirror):
        catalogue.prepare(name, on_download, bad_data=bad_data)
    if catalogue.describe(name, bad_data=bad_data).kind == "text":
        return _count_words(name, bad_data)
    from velodrome.data.pictures import class_counts, draw, write

    splits = catalogue.load_examples(name, seed=seed, validation=validation, bad_data=bad_data)
    if splits.kind == "arrays":
        return _arrays(splits)
    path = Path(out) if out is not None else Path(re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip("-.") + ".png")
    write(draw(splits, columns), path)
    return {
        "name": name, "sheet": str(path), "classes": splits.classes, "input_shape": [*splits.input_shape],
        "train": len(splits.train), "validation": len(splits.validation), "test": len(splits.test),
        "counts": class_counts(splits), "notes": [*splits.notes],
    }


def _arrays(data: ExampleSet) -> dict[str, Any]:
    """What arrays hold; of a table also means, deviations and categories of its columns."""
    from velodrome.data.examples import implied_task

    return {
        "name": data.name, "train": len(data.train), "validation": len(data.validation), "test": len(data.test),
        "inputs": [_plain_field(array) for array in data.inputs],
        "targets": [_plain_field(array) for array in data.targets],
        "task": data.columns.get("task") or implied_task(data.targets), "classes": data.classes,
        "class_names": [*data.class_names], "columns": dict(data.columns), "notes": [*data.notes, *data.caveats],
    }


def _plain_field(array: ArrayField) -> dict[str, Any]:
    return {"name": array.name, "shape": [*array.shape], "dtype": array.dtype}


def _count_words(name: str, bad_data: BadData) -> dict[str, Any]:
    import numpy as np

    text = catalogue.load_text(name, bad_data=bad_data)
    counts = np.bincount(text.train, minlength=len(text.vocabulary))
    first = np.argsort(-counts, kind="stable")[:20]
    return {
        "name": name, "train": len(text.train), "validation": len(text.validation), "test": len(text.test),
        "vocabulary": len(text.vocabulary),
        "most_frequent": [{"word": text.vocabulary[place], "count": int(counts[place])} for place in first],
        "begins": " ".join(text.vocabulary[place] for place in text.train[:60]),
        "notes": [*text.notes],
    }


def encode_row(columns: str | Path | Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """A new row of a table as the inputs of a model that was trained on it, with a batch of one.

    Args:
        columns: the folder of a saved model, its ``columns.json``, or what that file contains.
        row: cells by column; one that is missing counts as the mean of its column, or as no category.
    """
    from velodrome.data.own import encoding

    if isinstance(columns, Mapping):
        return encoding.encode_row(columns, row)
    path = Path(columns)
    path = path / "columns.json" if path.is_dir() else path
    try:
        known = encoding.Encoding.from_json(files.read_json(path, _LARGEST_COLUMNS, inside=path.parent))
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise BadRequest(f"cannot read {str(path)!r}: {reason}; give the folder of a model of a table") from None
    return encoding.encode_row(known, row)


def verify(name: str) -> dict[str, Any]:
    """Compare the stored files of a data set with their checksums: ``ok``, and the state of each file.

    ``ok`` is false if nothing is stored. ``advice`` is how to repair what is wrong, or None.
    """
    checked = catalogue.verify(name)
    ok = bool(checked) and all(file.state == "ok" for file in checked)
    prepare = not checked or any(file.state != "ok" and file.by_prepare for file in checked)
    advice = None if ok or not prepare else f"velodrome data prepare {shlex.quote(name)}"
    states = [{"file": file.file, "state": file.state, "detail": file.detail} for file in checked]
    return {"name": name, "ok": ok, "advice": advice, "files": states}


def shard(
    name: str,
    to: str,
    *,
    shards: int = 16,
    encoding: str = "png",
    parts: Sequence[str] = ("train", "validation", "test"),
    seed: int = 1,
    validation: float = 0.1,
    bad_data: BadData = "fail",
    force: bool = False,
    mirror: str | None = None,
    on_download: Progress | None = None,
) -> dict[str, Any]:
    """Write a data set as TFRecord files with an index.

    Args:
        name: name of a data set; also your own data.
        to: a folder, ``hdfs://host:port/path``, ``webhdfs://…`` or ``s3://bucket/path``.
        shards: files of the training part; the other parts in proportion.
        encoding: images as ``png``, ``jpeg`` or ``raw``.
        parts: parts to write.
        seed: random seed of the validation split.
        validation: fraction of the training set held out for validation.
        bad_data: whether unusable examples are left out (``skip``) or an error (``fail``).
        force: whether an existing set is replaced.
        mirror: folder or URL with the publisher's files.
        on_download: called with bytes done, bytes in total and a label.
    """
    from velodrome.data.shards.index import PARTS
    from velodrome.data.shards.write import write_shards
    from velodrome.data.storage.store import open_store

    chosen = [known for known in PARTS if known in parts]
    if not chosen or {*parts} - {*PARTS}:
        raise BadRequest(f"--part {','.join(parts)!r}: give some of {','.join(PARTS)}, separated by commas")
    store = open_store(to)
    with using_mirror(mirror):
        catalogue.prepare(name, on_download, bad_data=bad_data)
    splits = catalogue.load_mapped(name, seed=seed, validation=validation, bad_data=bad_data)
    about = catalogue.describe(name, validation=validation, bad_data=bad_data)
    index = write_shards(
        splits, about, store, shards=shards, encoding=encoding, parts=chosen, seed=seed, validation=validation,
        force=force, progress=on_download or quiet,
    )
    counts = {known: {"files": len(index.files(known)), "examples": index.examples(known)} for known in index.parts}
    return {"name": name, "url": store.url, "encoding": encoding, "bytes": index.bytes, "parts": counts,
            "notes": [*splits.notes]}
