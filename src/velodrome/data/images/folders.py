"""Photographs in folders: one folder a class, or folders for training, validation and test above them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from pathlib import PurePosixPath

from velodrome.data.bad_data import Faults
from velodrome.data.images.cached_set import TEST, TRAIN, VALIDATION
from velodrome.data.images.photos import Listing
from velodrome.data.storage.trees import File, Tree
from velodrome.errors import BadRequest
from velodrome.printable import shown

#: What a folder above the classes may be called, in small letters.
PART_NAMES: Mapping[str, int] = {
    "train": TRAIN, "training": TRAIN,
    "validation": VALIDATION, "valid": VALIDATION, "val": VALIDATION, "dev": VALIDATION,
    "test": TEST, "testing": TEST,
}


def list_folders(tree: Tree) -> Listing:
    """Every image by the folder it is in; what is no image by its name is not looked at."""
    from velodrome.data.images.decode import ENDINGS

    parts = _parts(tree)
    depth = 2 if parts else 1
    found: dict[tuple[int, str], list[File]] = {}
    for folder in tree.folders:
        pieces = PurePosixPath(folder).parts
        if len(pieces) == depth:
            found[parts.get(pieces[0], TRAIN), pieces[-1]] = []
    ignored = 0
    for file in tree.files:
        pieces = PurePosixPath(file.name).parts
        if len(pieces) <= depth or PurePosixPath(file.name).suffix.lower() not in ENDINGS:
            ignored += 1
        else:
            found[parts.get(pieces[0], TRAIN), pieces[depth - 1]].append(file)
    faults = Faults()
    for lost in tree.lost:
        # Where classes are expected it may have been one; further down only images count.
        if lost.name.count("/") < depth or PurePosixPath(lost.name).suffix.lower() in ENDINGS:
            faults.add(lost.what, lost.name, lost.reason)
    names = sorted({name for _, name in found})
    if not names:
        wrong = "".join(f"; it has {fault}" for fault in faults.found())
        raise BadRequest(
            f"{tree.place!r} has no folders: put the images of each class into a folder named after the class{wrong}"
        )
    empty = [
        name for name, group in groupby(sorted(found, key=lambda key: key[1]), key=lambda key: key[1])
        if not any(found[key] for key in group)
    ]
    names = [name for name in names if name not in empty]
    places = {name: place for place, name in enumerate(names)}
    rows = [(part, places[name], file) for (part, name), files in sorted(found.items()) for file in files]
    notes = [f"{ignored:,} files that are no images by their names were not looked at"] if ignored else []
    if not parts:
        notes += _maybe_parts(tree)
    return Listing(
        tree=tree, files=[file for _, _, file in rows], labels=[label for _, label, _ in rows],
        parts=[part for part, _, _ in rows], class_names=names, faults=faults.found(), notes=tuple(notes),
        empty=tuple(empty),
    )


def _parts(tree: Tree) -> dict[str, int]:
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
