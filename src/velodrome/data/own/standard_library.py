"""Refuses functions of Python's standard library where the user's own one is expected: `os:system` is a mistake."""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from types import BuiltinFunctionType, FunctionType

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
