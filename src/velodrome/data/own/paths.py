"""The user's own data at a path: kinds of it, each a module of `velodrome.data.sources`, and options after a `?`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl

from velodrome import files
from velodrome.data.base import BadData
from velodrome.data.source import Source
from velodrome.errors import BadRequest


@dataclass(frozen=True)
class PathFormat:
    """A kind of data that `path:` may name."""

    #: Whether a file or folder, with these options, is of this kind.
    takes: Callable[[Path, Mapping[str, str]], bool]
    #: Names of the options that it has.
    options: tuple[str, ...]
    #: The data set of a name, at a path, with these options.
    source: Callable[[str, Path, Mapping[str, str], BadData], Source]


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


def check_options(name: str, options: Mapping[str, str], known: tuple[str, ...]) -> None:
    """Refuse options that this kind of data does not have."""
    for option in options:
        if option not in known:
            choices = f"choose from {', '.join(known)}" if known else "there are none for this kind of data"
            raise BadRequest(f"--dataset {name!r}: no option {option!r}; {choices}")


def follows_links(name: str, options: Mapping[str, str]) -> bool:
    """Whether links that lead out of the folder are followed."""
    if options.get("links", "follow") != "follow":
        raise BadRequest(f"--dataset {name!r}: links {options['links']!r}; write links=follow, or leave it out")
    return "links" in options
