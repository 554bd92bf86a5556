"""Reports what an interpreter has, as one line of JSON: `python -m velodrome.training.probe --module torch`.

Only the standard library is imported, so that the answer comes at once.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Iterable, Sequence
from importlib import metadata
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def found_as(name: str) -> str | None:
    """What an import of the name would find: a `module`, a `folder` (a namespace package, or something of the current
    folder, which is the user's), or None. Imports nothing."""
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):  # a parent package that is missing, or a module without a spec
        return None
    if spec is None:
        return "folder" if PathFinder.find_spec(name, [str(Path.cwd())]) is not None else None
    return "folder" if spec.origin is None else "module"


def versions_of(packages: Iterable[str]) -> dict[str, str]:
    """The versions of those packages that are installed, read from their metadata."""
    versions = {}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def answer(modules: Iterable[str], packages: Iterable[str]) -> dict[str, Any]:
    """Describe this interpreter: its Python version, which of the modules it has, and the versions of the packages.

    Namespace packages are listed separately: a folder named `mxnet` in the current directory is not MXNet.
    """
    kinds = {module: found_as(module) for module in modules}
    return {
        "interpreter": sys.executable,
        "python": platform.python_version(),
        "modules": [module for module, kind in kinds.items() if kind == "module"],
        "folders": [module for module, kind in kinds.items() if kind == "folder"],
        "versions": versions_of(packages),
    }


def reply(words: Sequence[str] | None = None) -> str:
    """Parse command-line arguments and return the description that they request, as one line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m velodrome.training.probe", description=__doc__)
    parser.add_argument("--module", action="append", default=[], help="a module to look for")
    parser.add_argument("--package", action="append", default=[], help="a package whose version to report")
    options = parser.parse_args(words)
    return json.dumps(answer(options.module, options.package))


if __name__ == "__main__":
    print(reply())
