"""The user's own photographs: a folder with a folder a class, a .zip of it, or a table that names image files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from velodrome.data.base import BadData
from velodrome.data.images.listings import list_folders, list_table
from velodrome.data.images.photos import Listing, PhotoSet
from velodrome.data.own.paths import PathFormat, follows_links
from velodrome.data.storage.trees import tree_of
from velodrome.errors import BadRequest

_LARGEST_SIDE = 10_000


def _of_folders(name: str, path: Path, options: Mapping[str, str], bad_data: BadData) -> PhotoSet:
    lister = partial(_list_folders, path, follow_links=follows_links(name, options))
    return PhotoSet(
        name, bad_data, place=str(path.resolve()), lister=lister, size=_size(name, options),
        channels=_channels(name, options), options=(options.get("links"),),
    )


def _of_table(name: str, path: Path, options: Mapping[str, str], bad_data: BadData) -> PhotoSet:
    image, label, part = options.get("image", "image"), options.get("label", "label"), options.get("part")
    follow = follows_links(name, options)
    lister = partial(list_table, path, image=image, label=label, part=part, follow_links=follow)
    return PhotoSet(
        name, bad_data, place=str(path.resolve()), lister=lister, size=_size(name, options),
        channels=_channels(name, options), options=(image, label, part, options.get("links")),
    )


def _list_folders(path: Path, *, follow_links: bool) -> Listing:
    return list_folders(tree_of(path, follow_links=follow_links))


def _size(name: str, options: Mapping[str, str]) -> tuple[int, int] | None:
    if "size" not in options:
        return None
    match = re.fullmatch(r"(\d{1,5})(?:[x×](\d{1,5}))?", options["size"])
    height, width = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not (1 <= height <= _LARGEST_SIDE and 1 <= width <= _LARGEST_SIDE):
        raise BadRequest(f"--dataset {name!r}: size {options['size']!r} is none; write height and width as size=64x48")
    return height, width


def _channels(name: str, options: Mapping[str, str]) -> int | None:
    if "channels" not in options:
        return None
    if options["channels"] not in ("1", "3"):
        raise BadRequest(f"--dataset {name!r}: channels {options['channels']!r}; 1 is grey and 3 is colour")
    return int(options["channels"])


FORMATS = (
    PathFormat(lambda path, options: path.is_dir() or path.suffix.lower() == ".zip", ("size", "channels", "links"),
               _of_folders),
    PathFormat(lambda path, options: path.suffix.lower() in (".csv", ".tsv") and "target" not in options,
               ("size", "channels", "links", "image", "label", "part"), _of_table),
)
