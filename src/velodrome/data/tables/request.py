"""What of a table is asked for: targets, features, the column of parts, and how categories are encoded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from velodrome.data import delimited
from velodrome.data.split import part_column
from velodrome.data.tables.columns import MOST_COLUMNS
from velodrome.data.tables.encoding import How
from velodrome.errors import BadRequest
from velodrome.printable import shown


@dataclass(frozen=True)
class Request:
    """The columns of a table by what they are for."""

    targets: tuple[str, ...]
    features: tuple[str, ...]
    #: The column that divides the rows; None if they are drawn.
    part: str | None
    #: Whether the column of parts was named, so that its values must be parts.
    part_named: bool
    #: Columns whose numbers are only names.
    categorical: tuple[str, ...]
    how: How
    #: `number` or `class`; None if the values of the target decide.
    predict: str | None
    #: Whether targets of numbers are standardised as features are.
    scale_targets: bool
    #: What was decided without being asked for, as sentences.
    notes: tuple[str, ...] = ()

    @property
    def wanted(self) -> tuple[str, ...]:
        """Every column that is read."""
        return (*self.features, *self.targets, *((self.part,) if self.part else ()))


def heads_of(path: Path) -> list[str]:
    """The names of a table's columns, as its header says."""
    if path.suffix.lower() in (".parquet", ".pq"):
        from velodrome.data.tables.files import heads

        found = heads(path)
    else:
        found = delimited.columns(path)
    if len(found) > MOST_COLUMNS:
        raise BadRequest(
            f"{str(path)!r} has {len(found):,} columns, and at most {MOST_COLUMNS:,} are read: make a table of those "
            "you need"
        )
    return found


def request_of(name: str, path: Path, options: Mapping[str, str]) -> Request:
    """The request that the options of a data set's name make; columns that are not there are refused."""
    heads = heads_of(path)
    twice = [head for head, count in Counter(heads).items() if count > 1 and head]
    if twice:
        raise BadRequest(f"{str(path)!r} has two columns {shown(twice[0])!r}: rename one")
    targets = _columns(path, heads, "target", options.get("target", ""))
    if not targets:
        raise BadRequest(f"--dataset {name!r}: name the column to predict as {path.name}?target=COLUMN")
    ignored = _columns(path, heads, "ignore", options.get("ignore", ""))
    part = _part(path, heads, options, targets, ignored)
    notes = []
    if "features" in options:
        features = _columns(path, heads, "features", options["features"])
    else:
        features = tuple(head for head in heads if head and head not in (*targets, *ignored, part))
        if "" in heads:
            notes.append("a column without a name is left out")
    for column in features:
        if column in targets or column == part:
            what = "to predict" if column in targets else "of parts"
            raise BadRequest(f"--dataset {name!r}: column {column!r} is the one {what}, and cannot be a feature too")
        if column in ignored:
            raise BadRequest(f"--dataset {name!r}: column {column!r} is both in features and in ignore")
    if not features:
        raise BadRequest(f"--dataset {name!r}: no column is left as a feature; name some as &features=COLUMN,COLUMN")
    return Request(
        targets=targets, features=features, part=part, part_named=bool(options.get("part")),
        categorical=_columns(path, heads, "categorical", options.get("categorical", "")),
        how="index" if _chosen(name, options, "categories", ("onehot", "index")) == "index" else "onehot",
        predict=_chosen(name, options, "predict", ("number", "class")),
        scale_targets=_chosen(name, options, "scale-target", ("yes", "no")) != "no", notes=tuple(notes),
    )


def _columns(path: Path, heads: Sequence[str], option: str, text: str) -> tuple[str, ...]:
    """Names separated by commas; one whose own name has a comma is found by it."""
    names = [text] if text in heads else [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in heads:
            some = ", ".join(map(shown, heads[:20])) + (f" and {len(heads) - 20:,} more" if len(heads) > 20 else "")
            raise BadRequest(
                f"{str(path)!r} has no column {name!r} but {some}: name the right one as {path.name}?{option}=COLUMN"
            )
    return tuple(dict.fromkeys(names))


def _part(
    path: Path, heads: Sequence[str], options: Mapping[str, str], targets: Sequence[str], ignored: Sequence[str]
) -> str | None:
    if "part" in options:
        found = _columns(path, heads, "part", options["part"])
        if len(found) > 1:
            raise BadRequest(f"{str(path)!r}: part={options['part']!r} names several columns; one divides the rows")
        return found[0] if found else None
    taken = {*targets, *ignored, *_columns(path, heads, "features", options.get("features", ""))}
    return part_column(heads, taken)


def _chosen(name: str, options: Mapping[str, str], option: str, words: tuple[str, ...]) -> str | None:
    word = options.get(option)
    if word is not None and word not in words:
        raise BadRequest(f"--dataset {name!r}: {option} {word!r}; choose {' or '.join(words)}")
    return word
