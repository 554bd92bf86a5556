"""Reports what an interpreter has, as one line of JSON: `python -m velodrome.worker.probe --module torch`.

Only the standard library is imported, so that the answer comes at once.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Iterable, Sequence
from importlib import metadata
from importlib.util import find_spec
from typing import Any


def has_module(name: str) -> bool:
    """Whether a module can be found, without importing it."""
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):  # a parent package that is missing, or a module without a spec
        return False


def versions_of(packages: Iterable[str]) -> dict[str, str]:
    """The versions of those packages that are installed, read from their metadata."""
    found = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def answer(modules: Iterable[str], packages: Iterable[str]) -> dict[str, Any]:
    """This interpreter: its Python version, which of the modules it has, and the versions of the packages."""
    return {
        "interpreter": sys.executable,
        "python": platform.python_version(),
        "modules": [module for module in modules if has_module(module)],
        "versions": versions_of(packages),
    }


def reply(words: Sequence[str] | None = None) -> str:
    """The answer to what the words of a command line ask for, as one line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m velodrome.worker.probe", description=__doc__)
    parser.add_argument("--module", action="append", default=[], help="a module to look for")
    parser.add_argument("--package", action="append", default=[], help="a package whose version to report")
    options = parser.parse_args(words)
    return json.dumps(answer(options.module, options.package))


if __name__ == "__main__":
    print(reply())
