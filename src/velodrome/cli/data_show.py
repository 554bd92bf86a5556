"""`velodrome data show`: a data set as a contact sheet and as counts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from velodrome.cli.options import Json
from velodrome.errors import BadRequest

if TYPE_CHECKING:
    from velodrome.data.base import BadData

BadDataOption = Annotated[
    str, typer.Option("--bad-data", help="Whether unusable examples are left out (skip) or an error (fail).")
]
#: The terminal shows at most this many classes, the largest ones.
_MOST_ROWS = 40


def checked(word: str) -> BadData:
    if word == "skip":
        return "skip"
    if word == "fail":
        return "fail"
    raise BadRequest(f"--bad-data {word!r}: choose skip or fail")


def command(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the data set, as for --dataset; also your own data.")
    ],
    out: Annotated[Path | None, typer.Option("--out", help="PNG file to write; by default NAME.png.")] = None,
    columns: Annotated[int, typer.Option("--columns", help="Examples of each class.", min=1, max=50)] = 12,
    seed: Annotated[int, typer.Option("--seed", help="Random seed of the validation and test splits.")] = 1,
    validation: Annotated[float, typer.Option("--validation", help="Fraction held out for validation.")] = 0.1,
    bad_data: BadDataOption = "fail",
    json: Json = False,
) -> None:
    """Draw a contact sheet of a data set, and count its classes.

    For a text, count the words and show the most frequent ones.

    Examples:

    `velodrome data show fashion-mnist --out fashion.png`

    `velodrome data show path:/data/photos --bad-data skip`
    """
    import json as json_module

    from velodrome.cli.console import JobProgress
    from velodrome.data import catalogue

    policy = checked(bad_data)
    progress = JobProgress()
    try:
        catalogue.prepare(name, progress.data, bad_data=policy)
    finally:
        progress.end()
    if catalogue.describe(name, bad_data=policy).kind == "text":
        shown = _text(name, policy)
        print(json_module.dumps(shown) if json else _text_summary(shown))
        return
    from velodrome.data.images.contact_sheet import class_counts, draw, write

    splits = catalogue.load(name, seed=seed, validation=validation, bad_data=policy)
    path = out or Path(re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip("-.") + ".png")
    write(draw(splits, columns), path)
    counts = class_counts(splits)
    found = {
        "name": name, "sheet": str(path), "classes": splits.classes, "input_shape": list(splits.input_shape),
        "train": len(splits.train), "validation": len(splits.validation), "test": len(splits.test),
        "counts": counts, "notes": list(splits.notes),
    }
    if json:
        print(json_module.dumps(found))
        return
    _print_counts(found)


def _print_counts(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from velodrome.data.bad_data import shown

    table = Table()
    table.add_column("class", overflow="fold")
    for part in ("train", "validation", "test"):
        table.add_column(part, justify="right")
    rows = found["counts"]
    largest = sorted(rows, key=lambda row: -row["train"])[:_MOST_ROWS]
    for row in rows:
        if len(rows) <= _MOST_ROWS or row in largest:
            table.add_row(shown(row["class"]), *(f"{row[part]:,}" for part in ("train", "validation", "test")))
    table.add_section()
    table.add_row(f"{len(rows)} classes", *(f"{found[part]:,}" for part in ("train", "validation", "test")))
    console = Console(highlight=False, markup=False)
    console.print(table)
    for note in found["notes"]:
        console.print(note, soft_wrap=True)
    console.print(f"the contact sheet is {found['sheet']}", soft_wrap=True)


def _text(name: str, policy: BadData) -> dict[str, Any]:
    import numpy as np

    from velodrome.data import catalogue

    text = catalogue.load_text(name, bad_data=policy)
    counts = np.bincount(text.train, minlength=len(text.vocabulary))
    first = np.argsort(-counts, kind="stable")[:20]
    return {
        "name": name, "train": len(text.train), "validation": len(text.validation), "test": len(text.test),
        "vocabulary": len(text.vocabulary),
        "most_frequent": [{"word": text.vocabulary[place], "count": int(counts[place])} for place in first],
        "begins": " ".join(text.vocabulary[place] for place in text.train[:60]),
        "notes": list(text.notes),
    }


def _text_summary(found: dict[str, Any]) -> str:
    frequent = ", ".join(f"{word['word']} {word['count']:,}" for word in found["most_frequent"])
    return "\n".join([
        f"{found['name']}: {found['train']:,} words to train on, {found['validation']:,} for validation, "
        f"{found['test']:,} for test, a vocabulary of {found['vocabulary']:,}",
        f"most frequent: {frequent}", f"begins: {found['begins']} …", *found["notes"],
    ])
