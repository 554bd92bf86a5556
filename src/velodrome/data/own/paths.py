"""The user's own data: `path:` and a folder, an archive, a table or an `.npz` file, with options after a `?`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import parse_qsl

from velodrome import files
from velodrome.data.base import BadData, DataSet
from velodrome.data.images.listings import list_folders, list_table
from velodrome.data.images.photos import Listing, PhotoSet
from velodrome.data.own.npz import NpzSet, holds_images
from velodrome.data.own.npz_arrays import NpzArraySet
from velodrome.data.storage.trees import tree_of
from velodrome.data.tables.data_set import ENDINGS, OPTIONS, TableSet
from velodrome.errors import BadRequest

_TABLES = (".csv", ".tsv")
_LARGEST_SIDE = 10_000


def data_set(rest: str, bad_data: BadData) -> DataSet:
    """The data set that `path:rest` names."""
    name = f"path:{rest}"
    path, options = split_options(rest)
    check_exists(name, path)
    ending = path.suffix.lower()
    lister: Callable[[], Listing]
    chosen: tuple[str | None, ...]
    common = {"name": name, "title": "your own data", "licence": "your own", "homepage": "", "bad_data": bad_data}
    if ending == ".npz":
        check_options(name, options, ())
        return _npz(NpzSet(**common, path=path), NpzArraySet(name, path, bad_data))  # type: ignore[arg-type]
    if ending in ENDINGS and ("target" in options or ending not in _TABLES):
        check_options(name, options, OPTIONS)
        return TableSet(name, path, tuple(sorted(options.items())), bad_data)
    if ending in _TABLES:
        check_options(name, options, ("size", "channels", "links", "image", "label", "part"))
        image, label, part = options.get("image", "image"), options.get("label", "label"), options.get("part")
        follow = follows_links(name, options)
        lister = partial(list_table, path, image=image, label=label, part=part, follow_links=follow)
        chosen = (image, label, part, options.get("links"))
    elif path.is_dir() or ending == ".zip":
        check_options(name, options, ("size", "channels", "links"))
        lister = partial(_list_folders, path, follow_links=follows_links(name, options))
        chosen = (options.get("links"),)
    else:
        raise BadRequest(
            f"--dataset {name!r}: give a folder with a folder a class, a .zip of it, a .csv or .parquet table, or an "
            ".npz file"
        )
    return PhotoSet(
        **common, place=str(path.resolve()), lister=lister, size=_size(name, options),  # type: ignore[arg-type]
        channels=_channels(name, options), options=chosen,
    )


def _npz(images: NpzSet, arrays: NpzArraySet) -> DataSet:
    """Byte images, or arrays of anything. What was prepared before is not read again to find out."""
    if images.is_here() or (not arrays.is_here() and holds_images(images.name, images.path)):
        return images
    return arrays


def check_exists(name: str, path: Path) -> None:
    """Refuse a path that leads nowhere, and what is neither a folder nor a regular file."""
    try:
        if not path.is_dir():
            files.check_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        raise BadRequest(f"--dataset {name!r}: no file or folder {str(path)!r}") from None
    except OSError as error:
        raise BadRequest(f"--dataset {name!r}: {str(path)!r} cannot be read: {error.strerror}") from None
    except ValueError:
        raise BadRequest(f"--dataset {name!r}: no file has a NUL character in its name") from None


def _list_folders(path: Path, *, follow_links: bool) -> Listing:
    return list_folders(tree_of(path, follow_links=follow_links))


def expanded(path: str) -> Path:
    """A path with `~` as the user's folder; an unknown user's stays as it is, and leads nowhere."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def split_options(rest: str) -> tuple[Path, dict[str, str]]:
    """The path before a `?`, and the options after it; a `?` that belongs to the path's name stays there."""
    whole = expanded(rest)
    if "?" not in rest or os.path.lexists(whole):
        return whole, {}
    before, _, after = rest.rpartition("?")
    try:
        return expanded(before), dict(parse_qsl(after, keep_blank_values=True, strict_parsing=True))
    except ValueError:
        raise BadRequest(f"{rest!r}: write options as ?name=value&name=value") from None


def check_options(name: str, options: dict[str, str], known: tuple[str, ...]) -> None:
    """Refuse options that this kind of data does not have."""
    for option in options:
        if option not in known:
            choices = f"choose from {', '.join(known)}" if known else "there are none for this kind of data"
            raise BadRequest(f"--dataset {name!r}: no option {option!r}; {choices}")


def follows_links(name: str, options: dict[str, str]) -> bool:
    """Whether links that lead out of the folder are followed."""
    if options.get("links", "follow") != "follow":
        raise BadRequest(f"--dataset {name!r}: links {options['links']!r}; write links=follow, or leave it out")
    return "links" in options


def _size(name: str, options: dict[str, str]) -> tuple[int, int] | None:
    if "size" not in options:
        return None
    match = re.fullmatch(r"(\d{1,5})(?:[x×](\d{1,5}))?", options["size"])
    height, width = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not (1 <= height <= _LARGEST_SIDE and 1 <= width <= _LARGEST_SIDE):
        raise BadRequest(f"--dataset {name!r}: size {options['size']!r} is none; write height and width as size=64x48")
    return height, width


def _channels(name: str, options: dict[str, str]) -> int | None:
    if "channels" not in options:
        return None
    if options["channels"] not in ("1", "3"):
        raise BadRequest(f"--dataset {name!r}: channels {options['channels']!r}; 1 is grey and 3 is colour")
    return int(options["channels"])
