"""Columns that say which part a row of a table belongs to: found by their names, or noticed by their words."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from velodrome.data.images.listings import PART_NAMES
from velodrome.printable import shown

#: A column of this name, in any case, says which part a row belongs to, if no other is named.
PART_COLUMNS = ("part", "split")


def part_column(heads: Sequence[str], taken: Collection[str]) -> str | None:
    """The column that divides the rows by its name."""
    free = {head.strip().lower(): head for head in reversed(heads) if head not in taken}
    return next((free[name] for name in PART_COLUMNS if name in free), None)


def looks_like_parts(words: Collection[str]) -> bool:
    """Whether these words, all that a column has, name the training part and another one, and nothing else."""
    parts = {PART_NAMES.get(word.strip().lower()) for word in words}
    return None not in parts and len(parts) > 1


def overlooked_note(column: str, used_as: str, way_out: str) -> str:
    """The sentence about a column that seems to divide the rows, and is not called so."""
    return f"column {shown(column)!r} seems to divide the rows, and is {used_as}: {way_out} divides them by it"
