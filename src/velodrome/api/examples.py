"""`examples.list` and `copy`: the example files that are installed with the package.

`new` writes a commented starter file for a model, a task, data or a script of the user's own, which trains as it is.
"""

from __future__ import annotations

import builtins
import shlex
import sys
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from velodrome import files
from velodrome.clusters.environments import default_engine
from velodrome.errors import BadRequest


def _contents() -> dict[str, bytes]:
    """The example files by name."""
    examples = resources.files("velodrome").joinpath("example_files").iterdir()
    return {file.name: file.read_bytes() for file in sorted(examples, key=lambda file: file.name) if file.is_file()}


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


#: Engines that have starter files.
ENGINES = ("tensorflow", "torch")
#: Where a starter file has the command that trains it, the name of its own module, and its own name.
_COMMAND, _MODULE, _FILE = "COMMAND", "MODULE", "FILE"


@dataclass(frozen=True)
class Starter:
    """A kind of starter file: its default name, and the options of `velodrome train` that use it."""

    file: str
    options: str


STARTERS = {
    "model": Starter("my_model.py", "--model {module}:build --batch-size 32 --epochs 5"),
    "task": Starter(
        "my_task.py", "--model {module}:build --task {module}:Task --dataset digits --batch-size 32 --epochs 5"
    ),
    "data": Starter("my_data.py", "--dataset {module}:load --model dense-128 --batch-size 32 --epochs 3"),
    "script": Starter("my_script.py", "--script {file} --workers 2"),
}


def new(kind: str, file: str | Path | None = None, *, engine: str | None = None) -> dict[str, Any]:
    """Write a starter file; ``file`` is what was written, ``command`` trains it.

    Args:
        kind: ``model``, ``task``, ``data`` or ``script``.
        file: where to write it; by default ``my_model.py`` and so on, in the current folder. Never overwrites.
        engine: ``torch`` or ``tensorflow``; by default the one that is installed.
    """
    if kind not in STARTERS:
        raise BadRequest(f"no starter file for {kind!r}: choose {', '.join(STARTERS)}")
    chosen = engine or default_engine()
    if chosen not in ENGINES:
        raise BadRequest(f"--engine {chosen!r}: choose {' or '.join(ENGINES)}")
    starter = STARTERS[kind]
    path = Path(file or starter.file)
    _check_name(kind, path)
    command = f"velodrome train {starter.options.format(module=path.stem, file=path.name)} --engine {chosen}"
    text = _template(kind, chosen)
    for word, meaning in ((_COMMAND, command), (_MODULE, path.stem), (_FILE, path.name)):
        text = text.replace(word, meaning)
    try:
        # Opened only if it does not exist, so that not even a file that comes into being now is overwritten.
        with path.open("x", encoding="utf-8") as written:
            written.write(text)
    except FileExistsError:
        raise BadRequest(f"'{path}' exists already, and is not overwritten: name another file") from None
    except OSError as error:
        raise BadRequest(f"'{path}' cannot be written: {error.strerror}") from None
    folder = path.parent
    return {"file": str(path), "kind": kind, "engine": chosen,
            "command": command if folder == Path() else f"cd {shlex.quote(str(folder))} && {command}"}


def _check_name(kind: str, path: Path) -> None:
    """Refuse a name that could not be imported, or would hide a module that others import."""
    if path.suffix != ".py" or not path.stem.isidentifier():
        raise BadRequest(f"'{path}' cannot be imported: name a file such as my_{kind}.py, of letters, digits and _")
    if path.stem in sys.stdlib_module_names or path.stem in ("velodrome", "numpy", "torch", "tensorflow", "keras"):
        raise BadRequest(f"'{path}' would hide the module {path.stem!r}: choose another name")


def _template(kind: str, engine: str) -> str:
    """The text of a kind's starter file: that of the engine, or the one that all engines have in common."""
    folder = resources.files("velodrome").joinpath("starter_files")
    own = folder.joinpath(f"{kind}_{engine}.py")
    return (own if own.is_file() else folder.joinpath(f"{kind}.py")).read_text(encoding="utf-8")
