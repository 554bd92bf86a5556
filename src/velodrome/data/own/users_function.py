"""Finds a function of the user's by `module:function`, in the current folder or on PYTHONPATH."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from velodrome.data.own.standard_library import refuse_standard, refuse_standard_function
from velodrome.errors import BadRequest


def no_module(option: str, name: str, module: str) -> BadRequest:
    return BadRequest(f"{option} {name!r}: no module named {module!r} in {Path.cwd()} or on PYTHONPATH")


def users_function(option: str, name: str, arguments: int = 0) -> Callable[..., Any]:
    """Import the function of an option, which will be called with so many arguments."""
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
    for part in function.split("."):
        if not hasattr(found, part):
            raise BadRequest(f"{option} {name!r}: module {module!r} has no {part!r}")
        found = getattr(found, part)
    if not callable(found):
        raise BadRequest(f"{option} {name!r}: {function!r} is not a function")
    refuse_standard_function(option, name, found)
    called: Callable[..., Any] = found
    try:
        inspect.signature(called).bind(*[None] * arguments)
    except ValueError:
        pass  # nothing is known of its arguments
    except TypeError as error:
        how = f"with {arguments} arguments" if arguments else "without arguments"
        raise BadRequest(f"{option} {name!r}: {function!r} is called {how}: {error}") from None
    return called
