"""Finds code of the user's by `module:function`, in the current folder or on PYTHONPATH.

Functions of Python's standard library are refused where the user's own one is expected: `os:system` is a mistake.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import sysconfig
from collections.abc import Callable
from importlib.machinery import PathFinder
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from velodrome.errors import BadRequest


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


def refuse_standard_function(option: str, name: str, found: object) -> None:
    """Refuse a function that the user's module only imported from the standard library."""
    if isinstance(found, FunctionType | BuiltinFunctionType | type):
        refuse_standard(option, name, found.__module__ or "builtins")


def no_module(option: str, name: str, module: str) -> BadRequest:
    return BadRequest(f"{option} {name!r}: no module named {module!r} in {Path.cwd()} or on PYTHONPATH")


def users_roots() -> list[str]:
    """Where modules of the user's are looked for first: the current folder and PYTHONPATH."""
    return [str(Path.cwd()), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]


def file_of_module(module: str, path: list[str]) -> Path | None:
    """The file, or the folder of a package without one, that a module of a path would be imported from; nothing is
    imported."""
    found, places = None, path
    names = module.split(".")
    for count in range(1, len(names) + 1):
        found = PathFinder.find_spec(".".join(names[:count]), places)
        if found is None:
            return None
        places = list(found.submodule_search_locations or ())
    assert found is not None
    return Path(found.origin) if found.origin else Path(places[0]) if places else None


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
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and (module == error.name or module.startswith(f"{error.name}.")):
            raise no_module(option, name, error.name) from None
        raise
    _refuse_another(option, name, found)
    for part in function.split("."):
        if not hasattr(found, part):
            raise BadRequest(f"{option} {name!r}: module {module!r} has no {part!r}")
        found = getattr(found, part)
    if not callable(found):
        raise BadRequest(f"{option} {name!r}: {function!r} is not a {what}")
    refuse_standard_function(option, name, found)
    called: Callable[..., Any] = found
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
