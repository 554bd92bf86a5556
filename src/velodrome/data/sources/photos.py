"""The user's own photographs: which there are and what they show, by their folders or by the rows of a table.

One folder a class, or folders for training, validation and test above them, also in a .zip; or a column with the
image's file and one with its label. A table cannot make Velodrome read outside the folder it lies in, and links there
only if the user says so.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping
from functools import partial
from itertools import groupby
from pathlib import Path, PurePosixPath

from velodrome.data.base import BadData, Faults, WrongData
from velodrome.data.own.tables import TEXT, check_columns, columns, read_rows
from velodrome.data.photos import Listing, PhotoSet
from velodrome.data.source import PathFormat, follows_links
from velodrome.data.split import PART_NAMES, TEST, TRAIN, VALIDATION, looks_like_parts, overlooked_note, part_column
from velodrome.data.storage.trees import File, FolderTree, Tree, tree_of
from velodrome.errors import BadRequest, shown


def list_folders(tree: Tree) -> Listing:
    """Every image by the folder it is in; what is no image by its name is not looked at."""
    from velodrome.data.pictures import ENDINGS

    parts = _parts_of(tree)
    depth = 2 if parts else 1
    files_of: dict[tuple[int, str], list[File]] = {}
    for folder in tree.folders:
        pieces = PurePosixPath(folder).parts
        if len(pieces) == depth:
            files_of[parts.get(pieces[0], TRAIN), pieces[-1]] = []
    ignored = 0
    for file in tree.files:
        pieces = PurePosixPath(file.name).parts
        if len(pieces) <= depth or PurePosixPath(file.name).suffix.lower() not in ENDINGS:
            ignored += 1
        else:
            files_of[parts.get(pieces[0], TRAIN), pieces[depth - 1]].append(file)
    faults = Faults()
    for lost in tree.lost:
        # Where classes are expected it may have been one; further down only images count.
        if lost.name.count("/") < depth or PurePosixPath(lost.name).suffix.lower() in ENDINGS:
            faults.add(lost.what, lost.name, lost.reason)
    names = sorted({name for _, name in files_of})
    if not names:
        wrong = "".join(f"; it has {fault}" for fault in faults.all())
        raise BadRequest(
            f"{tree.place!r} has no folders: put the images of each class into a folder named after the class{wrong}"
        )
    empty = [
        name for name, group in groupby(sorted(files_of, key=lambda key: key[1]), key=lambda key: key[1])
        if not any(files_of[key] for key in group)
    ]
    rows = [(file, name, part) for (part, name), files in sorted(files_of.items()) for file in files]
    notes = [f"{ignored:,} files whose names are not those of images were ignored"] if ignored else []
    if not parts:
        notes += _maybe_parts(tree)
    return Listing.of(tree, rows, faults=faults.all(), notes=tuple(notes), empty=tuple(empty))


def _parts_of(tree: Tree) -> dict[str, int]:
    """Which top folders are parts of the data set; none, if they are its classes."""
    tops = [name for name in tree.folders if "/" not in name]
    parts = {name: PART_NAMES[name.lower()] for name in tops if name.lower() in PART_NAMES}
    if TRAIN not in parts.values() or not any("/" in name for name in tree.folders):
        return {}
    if others := [name for name in tops if name not in parts]:
        raise BadRequest(
            f"{tree.place!r} has folders for parts ({', '.join(parts)}) and others beside them "
            f"({', '.join(others[:5])}): put every class below train/, validation/ or test/"
        )
    if len(set(parts.values())) < len(parts):
        raise BadRequest(f"{tree.place!r} has two folders for the same part: keep one of {', '.join(parts)}")
    return parts


def _maybe_parts(tree: Tree) -> list[str]:
    """A sentence if the folders that were taken as classes look like parts: all have folders of the same names."""
    within: dict[str, set[str]] = {name: set() for name in tree.folders if "/" not in name}
    for name in tree.folders:
        top, slash, rest = name.partition("/")
        if slash and "/" not in rest:
            within[top].add(rest)
    common = sorted(set.intersection(*within.values())) if within else []
    if len(within) < 2 or len(common) < 2:
        return []
    return [
        f"the folders {', '.join(map(shown, sorted(within)[:5]))} were taken as classes, although all of them have the "
        f"folders {', '.join(map(shown, common[:5]))}: if they are parts, name them train, validation and test"
    ]


#: From this share of whole numbers on, a label that is not one is a mistake.
_MOSTLY = 0.9


def list_table(path: Path, *, image: str, label: str, part: str | None, follow_links: bool = False) -> Listing:
    """Every row whose image lies in the table's folder and whose label can be read.

    Without a name for it, `part` is a column `part` or `split`; an empty name is none.
    """
    check_columns(path, {"image": image, "label": label, **({"part": part} if part else {})})
    faults = Faults()
    tree = FolderTree(path.parent, follow_links=follow_links)
    folder = path.parent.resolve()
    lines = list(read_rows(path, faults))
    notes: tuple[str, ...] = ()
    if part is None:
        part, notes = _part_column(path, lines, {image, label})
    rows: list[tuple[File, str, int, int]] = []
    labels: dict[str, None] = {}
    for line, cells in lines:
        named, text = cells[image].strip(), cells[label].strip()
        if {"\n", "\r"} & {*named, *text}:
            faults.add("rows with a line break in the image or the label", f"line {line}", text)
            continue
        if not text:
            faults.add("rows without a label", f"line {line}")
            continue
        part_of_row = PART_NAMES.get(cells[part].strip().lower()) if part else TRAIN
        if part_of_row is None:
            faults.add("rows of an unknown part", f"line {line}", cells[part or ""])
            continue
        labels[text] = None
        file = _file(folder, named, follow_links=follow_links)
        if isinstance(file, str):
            faults.add("rows whose image is missing or outside the table's folder", f"line {line}", f"{named}: {file}")
            continue
        rows.append((file, text, part_of_row, line))
    empty = tuple(sorted(labels.keys() - {text for _, text, _, _ in rows}))
    rows = _without_odd_labels(rows, faults)
    if len({text for _, text, _, _ in rows}) == len(rows) > 2:
        raise BadRequest(
            f"{str(path)!r}: every row has a label of its own in column {label!r}; name the column with the class as "
            f"{path.name}?label=COLUMN"
        )
    return Listing.of(tree, [row[:3] for row in rows], faults=faults.all(), notes=notes, empty=empty)


def _part_column(
    path: Path, lines: list[tuple[int, dict[str, str]]], taken: set[str]
) -> tuple[str | None, tuple[str, ...]]:
    """The column that says which part a row belongs to, where none was named, and a sentence about it."""
    heads = columns(path)
    column = part_column(heads, taken)
    if column is None:
        return None, tuple(
            overlooked_note(head, "not used", f"{path.name}?part={head}") for head in heads
            if head not in taken and looks_like_parts({cells[head] for _, cells in lines})
        )
    words = Counter(cells[column].strip().lower() for _, cells in lines)
    sizes = Counter[int]()
    for word, count in words.items():
        if word in PART_NAMES:
            sizes[PART_NAMES[word]] += count
    if not sizes:
        some = ", ".join(shown(word) for word, _ in words.most_common(3))
        return None, (f"column {column!r} is not used: its values ({some}) are not train, validation or test",)
    return column, (
        f"column {column!r} divides the rows: {sizes[TRAIN]:,} train, {sizes[VALIDATION]:,} validation, "
        f"{sizes[TEST]:,} test; {path.name}?part= ignores it",
    )


def _file(folder: Path, named: str, *, follow_links: bool) -> File | str:
    """The file a row names, or why there is none. A name never leads out of the folder, and a link only if asked to."""
    if not named or "\0" in named:
        return "no name of a file" if named else "no name"
    written, real = Path(os.path.normpath(folder / named)), Path(os.path.realpath(folder / named))
    place = written if follow_links else real
    if not place.is_relative_to(folder):
        linked = written.is_relative_to(folder)
        return "outside, by a link (add ?links=follow to the name to follow it)" if linked else "outside"
    try:
        relative = place.relative_to(folder)
        about = place.stat()
    except OSError as error:
        return error.strerror or "cannot be read"
    return File.of(relative.as_posix(), place, about) if place.is_file() else "no file"


def _without_odd_labels(rows: list[tuple[File, str, int, int]], faults: Faults) -> list[tuple[File, str, int, int]]:
    """Where nearly all labels are whole numbers, the others do not parse."""
    odd = [row for row in rows if not row[1].isdecimal()]
    if not odd or len(odd) > (1 - _MOSTLY) * len(rows):
        return rows
    for _, text, _, line in odd:
        faults.add("labels that are not whole numbers like the others", f"line {line}", text)
    return [row for row in rows if row[1].isdecimal()]


_LARGEST_SIDE = 10_000


def _of_folders(name: str, path: Path, options: Mapping[str, str], bad_data: BadData) -> PhotoSet:
    follow = follows_links(options)
    return PhotoSet(
        name, bad_data, place=str(path.resolve()), lister=lambda: list_folders(tree_of(path, follow_links=follow)),
        size=_size(options), channels=_channels(options), options=(options.get("links"),),
    )


def _of_table(name: str, path: Path, options: Mapping[str, str], bad_data: BadData) -> PhotoSet:
    image, label, part = options.get("image", "image"), options.get("label", "label"), options.get("part")
    follow = follows_links(options)
    lister = partial(list_table, path, image=image, label=label, part=part, follow_links=follow)
    return PhotoSet(
        name, bad_data, place=str(path.resolve()), lister=lister, size=_size(options),
        channels=_channels(options), options=(image, label, part, options.get("links")),
    )


def _size(options: Mapping[str, str]) -> tuple[int, int] | None:
    if "size" not in options:
        return None
    match = re.fullmatch(r"(\d{1,5})(?:[x×](\d{1,5}))?", options["size"])
    height, width = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not (1 <= height <= _LARGEST_SIDE and 1 <= width <= _LARGEST_SIDE):
        raise WrongData(f"size {options['size']!r} is not valid; write height and width as size=64x48")
    return height, width


def _channels(options: Mapping[str, str]) -> int | None:
    if "channels" not in options:
        return None
    if options["channels"] not in ("1", "3"):
        raise WrongData(f"channels {options['channels']!r}; 1 is grey and 3 is colour")
    return int(options["channels"])


FORMATS = (
    PathFormat(lambda path, options: path.is_dir() or path.suffix.lower() == ".zip", ("size", "channels", "links"),
               _of_folders),
    PathFormat(lambda path, options: path.suffix.lower() in TEXT and "target" not in options,
               ("size", "channels", "links", "image", "label", "part"), _of_table),
)
