"""How the user's own data and code are named: a path with options after a `?`, or `module:function`.

A module is looked for in the current folder and on PYTHONPATH. Functions of Python's standard library are refused where
the user's own one is expected: `os:system` is a mistake.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any
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
    """A path with `~` expanded; that of an unknown user stays as it is, and is not found."""
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


def _is_standard(module: str) -> bool:
    """Whether a module is Python's; a file of that name in the current folder or on PYTHONPATH is the user's."""
    top = module.partition(".")[0]
    if top not in sys.stdlib_module_names:
        return False
    own = [str(Path.cwd()), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return PathFinder.find_spec(top, own) is None


def refuse_standard(option: str, name: str, module: str) -> None:
    """Refuse `module:function` if the module is Python's; nothing is imported."""
    if _is_standard(module):
        raise BadRequest(
            f"{option} {name!r}: {module!r} is a module of Python's standard library; name a function of your own"
        )


def refuse_standard_function(option: str, name: str, function: object) -> None:
    """Refuse a function that the user's module only imported from the standard library."""
    if isinstance(function, FunctionType | BuiltinFunctionType | type):
        refuse_standard(option, name, function.__module__ or "builtins")


def is_function(name: str) -> bool:
    """Whether a name has the form `module:function`."""
    module, colon, function = name.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), *function.split(".")))


def no_module(option: str, name: str, module: str) -> BadRequest:
    return BadRequest(f"{option} {name!r}: no module named {module!r} in {Path.cwd()} or on PYTHONPATH")


def users_roots() -> list[str]:
    """Where modules of the user's are looked for first: the current folder and PYTHONPATH."""
    return [str(Path.cwd()), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]


def file_of_module(module: str, path: list[str]) -> Path | None:
    """The file, or the folder of a package without one, that a module of a path would be imported from; nothing is
    imported."""
    spec, places = None, path
    names = module.split(".")
    for count in range(1, len(names) + 1):
        spec = PathFinder.find_spec(".".join(names[:count]), places)
        if spec is None:
            return None
        places = list(spec.submodule_search_locations or ())
    assert spec is not None
    return Path(spec.origin) if spec.origin else Path(places[0]) if places else None


def is_installed(file: Path) -> bool:
    """Whether a file is of Python or of an installed package, and not a person's."""
    python = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")]
    return any(part in ("site-packages", "dist-packages") for part in file.parts) or any(
        file.resolve().is_relative_to(folder) for folder in python
    )


def imported(option: str, name: str, what: str = "function") -> Callable[..., Any]:
    """Import what `module:name` says, and refuse what cannot be called. Errors inside the user's module pass through.

    The current folder is searched from now on, and not earlier: in a process that runs no code of the user's, no file
    there takes the place of a module that a library imports.
    """
    module, _, function = name.partition(":")
    refuse_standard(option, name, module)
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        member: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and (module == error.name or module.startswith(f"{error.name}.")):
            raise no_module(option, name, error.name) from None
        raise
    _refuse_another(option, name, member)
    for part in function.split("."):
        if not hasattr(member, part):
            raise BadRequest(f"{option} {name!r}: module {module!r} has no {part!r}")
        member = getattr(member, part)
    if not callable(member):
        raise BadRequest(f"{option} {name!r}: {function!r} is not a {what}")
    refuse_standard_function(option, name, member)
    called: Callable[..., Any] = member
    return called


def _refuse_another(option: str, name: str, module: ModuleType) -> None:
    """Refuse a module of a library that was imported before, where the user has a file of that name."""
    file, own = getattr(module, "__file__", None), file_of_module(module.__name__, users_roots())
    if own is not None and own.is_file() and file is not None and is_installed(Path(file)) and not own.samefile(file):
        raise BadRequest(f"{option} {name!r}: {str(own)!r} has the name of a module that is imported already, from "
                         f"{file!r}: rename your file")


def users_function(option: str, name: str, arguments: int = 0) -> Callable[..., Any]:
    """Import the function of an option, which will be called with so many arguments."""
    called = imported(option, name)
    try:
        inspect.signature(called).bind(*[None] * arguments)
    except ValueError:
        pass  # nothing is known of its arguments
    except TypeError as error:
        how = f"with {arguments} arguments" if arguments else "without arguments"
        function = name.partition(":")[2]
        raise BadRequest(f"{option} {name!r}: {function!r} is called {how}: {error}") from None
    return called
