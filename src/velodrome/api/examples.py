"""`examples.list` and `copy`: the example files that are installed with the package."""

from __future__ import annotations

import builtins
from importlib import resources
from pathlib import Path
from typing import Any

from velodrome import files
from velodrome.errors import BadRequest


def _contents() -> dict[str, bytes]:
    """The example files by name."""
    found = resources.files("velodrome").joinpath("example_files").iterdir()
    return {file.name: file.read_bytes() for file in sorted(found, key=lambda file: file.name) if file.is_file()}


def list() -> builtins.list[dict[str, Any]]:
    """Every example file with its name and the sentence it begins with."""
    first_lines = {name: content.decode().partition("\n")[0] for name, content in _contents().items()}
    return [{"name": name, "about": line.strip('# "')} for name, line in first_lines.items()]


def copy(folder: str | Path = "examples", *, force: bool = False) -> dict[str, Any]:
    """Copy all example files into a folder; ``folder`` and ``files`` are the paths that were written.

    Args:
        folder: where to write them; created if it is missing.
        force: replace files that differ from the examples.
    """
    target = Path(folder)
    if target.exists() and not target.is_dir():
        raise BadRequest(f"'{target}' is a file, not a folder: name another folder for the examples")
    contents = _contents()
    if not force and (changed := [name for name, content in contents.items() if _differs(target / name, content)]):
        raise BadRequest(
            f"'{target}' has other versions of {', '.join(changed)}: name another folder, or replace them with --force"
        )
    target.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        files.write_bytes(target / name, content)
    return {"folder": str(target), "files": [str(target / name) for name in contents]}


def _differs(path: Path, content: bytes) -> bool:
    return path.exists() and not (path.is_file() and path.read_bytes() == content)
