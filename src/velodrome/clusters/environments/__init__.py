"""The Python environments in which engines train: which interpreter an engine uses, what that interpreter has, the
record of an environment of the engine's own, and the wheel of the training side that is installed there.

The controller never looks into another environment by itself: it asks its interpreter (`velodrome/training/probe.py`).
The record is written when an environment is complete, so one without it was interrupted. The wheel is built from the
running installation and without a network: the versions in that environment may conflict with the controller's.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from importlib import metadata, resources
from pathlib import Path

from velodrome.catalog import registry
from velodrome.catalog.base import Engine, OwnEnvironment, Probe, Strategy
from velodrome.catalog.models import is_own
from velodrome.catalog.registry import DEFAULT_ENGINE, engines
from velodrome.errors import VelodromeError, headline
from velodrome.files import read_json, read_text

#: The program that answers a probe, in the environment of the interpreter that is asked.
PROBE = "velodrome.training.probe"
#: An interpreter answers in a tenth of a second; a cold disk or a busy machine may take many times that.
PROBE_SECONDS = 30.0
#: Variable with the folder of engine environments: one folder an engine, by its name.
FOLDER = "VELODROME_ENVIRONMENTS"


class BrokenInterpreter(VelodromeError):
    """An interpreter that cannot be started, or has no training side."""


def folder() -> Path:
    """Where engine environments are installed."""
    return Path(os.environ.get(FOLDER) or "~/.local/share/velodrome/environments").expanduser()


def interpreter_of(key: str) -> Path:
    """The interpreter that trains with an engine, by its key: that of its own environment, or the controller's."""
    home = folder() / key
    if registry.engine_with_key(key).own_environment is not None and not (home / RECORD).exists():
        return Path(sys.executable)
    own = home / "bin" / "python"
    return own if own.exists() else Path(sys.executable)


def forget() -> None:
    """Ask every interpreter anew: what is installed has changed."""
    _answer.cache_clear()


def probe(python: Path) -> Probe:
    """What an interpreter has of all that any engine needs; each interpreter is asked once."""
    known = registry.all_forms()
    needs = [need for engine in known for need in engine.needs]
    needs += [need for engine in known for strategy in engine.strategies for need in strategy.needs]
    packages = {package for engine in known for package in engine.packages}
    return _ask(python, tuple(sorted({need.module for need in needs})), tuple(sorted(packages)))


def has_module(python: Path, module: str) -> bool:
    """Whether an interpreter, started in the current folder, can import a module."""
    answer = _ask(python, (module,), ())
    return module in answer.modules or module in answer.folders


def missing(engine: Engine, strategy: Strategy) -> list[str]:
    """What keeps a strategy from running here, each as a sentence that says how to fix it; empty if nothing does."""
    if reason := outdated(engine, folder() / engine.key):
        return [reason]
    try:
        return engine.missing(strategy, probe(interpreter_of(engine.key)))
    except BrokenInterpreter as error:
        return [str(error)]


def default_engine(model: str | None = None, script: str | None = None) -> str:
    """The engine of jobs that name none: that which a model or script of one's own is written for; else torch, or
    another one if only that is installed."""
    own = engine_of_script(script) if script else engine_of_model(model) if model and is_own(model) else None
    if own is not None:
        return own
    for engine in sorted(engines(), key=lambda engine: engine.name != DEFAULT_ENGINE):
        if not missing(engine, engine.strategies[0]):
            return engine.name
    return DEFAULT_ENGINE


def _ask(python: Path, modules: tuple[str, ...], packages: tuple[str, ...]) -> Probe:
    answer = _answer(python, modules, packages)
    if isinstance(answer, BrokenInterpreter):
        raise answer
    return answer


@cache
def _answer(python: Path, modules: tuple[str, ...], packages: tuple[str, ...]) -> Probe | BrokenInterpreter:
    """What an interpreter answered, or why it did not: one that hangs must not be waited for again."""
    words = [*(f"--module={name}" for name in modules), *(f"--package={name}" for name in packages)]
    try:
        fields = json.loads(run_probe(python, words))
    except BrokenInterpreter as error:
        return error
    return Probe(
        fields["interpreter"], fields["python"], frozenset(fields["modules"]), fields["versions"],
        frozenset(fields["folders"]),
    )


def run_probe(python: Path, words: Sequence[str]) -> str:
    """The line with which an interpreter answers, or `BrokenInterpreter`."""
    try:
        done = subprocess.run(
            [str(python), "-P", "-m", PROBE, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=PROBE_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise BrokenInterpreter(f"interpreter '{python}' did not answer within {PROBE_SECONDS:g} s") from error
    except OSError as error:
        raise BrokenInterpreter(f"interpreter '{python}' cannot be started: {error.strerror or error}") from error
    answer = done.stdout.strip().rpartition("\n")[2]
    if done.returncode != 0 or not answer.startswith("{"):
        reason = done.stderr.strip().rpartition("\n")[2] or f"it ended with code {done.returncode}"
        raise BrokenInterpreter(f"interpreter '{python}' cannot train: {headline(reason)}")
    return answer


#: The record in the folder of an environment.
RECORD = "velodrome.json"
_LARGEST = 1 << 16


def pinned_packages(own: OwnEnvironment) -> list[str]:
    """The packages of an environment with their exact versions."""
    text = resources.files("velodrome.catalog").joinpath("environments", own.requirements).read_text()
    return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]


def record_of(engine: Engine) -> dict[str, str]:
    """The record of an environment of this engine and this version of Velodrome."""
    own = engine.own_environment
    assert own is not None, "only engines with an environment of their own have a record"
    packages = "\n".join([*pinned_packages(own), *map(repr, own.builds)])
    return {
        "engine": engine.key,
        "requirements": hashlib.sha256(packages.encode()).hexdigest(),
        "training_side": training_side_digest(),
    }


def read_record(home: Path) -> dict[str, str] | None:
    """The record of an environment; None if it was never completed."""
    try:
        record = read_json(home / RECORD, _LARGEST)
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def is_current(engine: Engine, home: Path) -> bool:
    """Whether an environment of this engine and this version of Velodrome is there, with its interpreter."""
    return (home / "bin" / "python").exists() and read_record(home) == record_of(engine)


def outdated(engine: Engine, home: Path) -> str | None:
    """Why an installed environment does not fit this version of Velodrome, and how to fix it; None if it does."""
    if engine.own_environment is None or (record := read_record(home)) is None or record == record_of(engine):
        return None
    return f"its environment was made by another version of Velodrome: {engine.install_command}"


#: Longer code is not examined.
_LONGEST = 1_000_000
_ENGINES = {
    "torch": "torch", "lightning": "torch", "pytorch_lightning": "torch", "accelerate": "torch",
    "keras": "tensorflow", "tensorflow": "tensorflow", "tf_keras": "tensorflow",
}


def engine_of_model(name: str) -> str | None:
    """The engine that `module:function` is written for; None if its imports do not say so."""
    module, _, function = name.partition(":")
    inside = module.replace(".", "/")
    for path in (Path(f"{inside}.py"), Path(inside, "__init__.py")):
        if (tree := _tree(path)) is not None:
            named = [node for node in tree.body if getattr(node, "name", "") == function]
            return _engine(named) or _engine([tree])
    return None


def engine_of_script(path: str) -> str | None:
    """The engine whose framework a script imports; None if that is none, or if it imports several."""
    tree = _tree(Path(path))
    return None if tree is None else _engine([tree])


def _tree(path: Path) -> ast.Module | None:
    with suppress(OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return ast.parse(read_text(path, _LONGEST))
    return None


def _engine(nodes: list[ast.stmt] | list[ast.Module]) -> str | None:
    """The one engine that is imported anywhere in these parts of a program."""
    imported = {_ENGINES[name] for part in nodes for name in imported_names(part) if name in _ENGINES}
    return imported.pop() if len(imported) == 1 else None


def imported_names(program: ast.AST) -> set[str]:
    """The top-level names that a part of a program imports absolutely."""
    names: set[str] = set()
    for node in ast.walk(program):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names.add(node.module.partition(".")[0])
    return names


DISTRIBUTION = "velodrome-worker"
#: The packages and modules of `velodrome` that a training process may import: the layers up to `engines`.
TRAINING_SIDE = (
    "callbacks", "data", "engines", "errors", "events", "figures", "files", "machine", "models", "catalog",
    "consistency", "job", "tasks", "training", "transport", "variables",
)
#: What the training side imports besides frameworks: packages, each with its module. The versions are those that the
#: controller requires, except:
REQUIREMENTS = {
    "filelock": "filelock", "fsspec": "fsspec", "google-crc32c": "google_crc32c", "numpy": "numpy", "pillow": "PIL",
    "protobuf": "google.protobuf", "psutil": "psutil", "pydantic": "pydantic", "safetensors": "safetensors",
}
#: The controller requires numpy 2; frameworks that are no longer developed need numpy 1.
WIDER = {"numpy": "numpy>=1.23"}
#: Extras that make sense on the training side.
EXTRAS = ("hdfs", "mpi", "s3")
_ROOT = Path(__file__).parents[2]
_WHEEL = "Wheel-Version: 1.0\nGenerator: velodrome\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def training_wheel(folder: Path) -> Path:
    """Build the wheel in a folder; its path."""
    version = metadata.version("velodrome")
    stem = f"{DISTRIBUTION.replace('-', '_')}-{version}"
    path = folder / f"{stem}-py3-none-any.whl"
    described = {
        f"{stem}.dist-info/METADATA": _metadata(version),
        f"{stem}.dist-info/WHEEL": _WHEEL,
    }
    records = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        contents = [(name, source.read_bytes()) for name, source in _files()]
        contents += [(name, text.encode()) for name, text in described.items()]
        for name, content in contents:
            wheel.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
            digest = urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            records.append(f"{name},sha256={digest},{len(content)}")
        record = f"{stem}.dist-info/RECORD"
        wheel.writestr(zipfile.ZipInfo(record), "\n".join([*records, f"{record},,", ""]), zipfile.ZIP_DEFLATED)
    return path


def training_side_digest(root: Path = _ROOT) -> str:
    """A checksum of everything that the wheel holds: an environment with another one has another version of it. `root`
    is the folder of an installed `velodrome`, by default the running one."""
    digest = hashlib.sha256()
    for name, source in _files(root):
        digest.update(f"{name}\0".encode() + hashlib.sha256(source.read_bytes()).digest())
    return digest.hexdigest()


def requirements() -> list[str]:
    """What the training side requires, as the lines of its metadata."""
    required = metadata.requires("velodrome") or []
    lines = [line for line in required if "extra ==" not in line and _name(line) in REQUIREMENTS]
    if unknown := set(REQUIREMENTS) - {_name(line) for line in lines}:
        raise VelodromeError(
            f"the installed velodrome does not require {', '.join(sorted(unknown))}: install this version again"
        )
    extras = [line for line in required if any(f'extra == "{extra}"' in line for extra in EXTRAS)]
    return [WIDER.get(_name(line), line) for line in lines] + extras


def _name(requirement: str) -> str:
    return re.match(r"[A-Za-z0-9._-]*", requirement)[0].lower()  # type: ignore[index]


def _metadata(version: str) -> str:
    python = metadata.metadata("velodrome")["Requires-Python"]
    lines = [
        "Metadata-Version: 2.1", f"Name: {DISTRIBUTION}", f"Version: {version}",
        "Summary: The training side of Velodrome, for environments of engines", f"Requires-Python: {python}",
        *(f"Provides-Extra: {extra}" for extra in EXTRAS), *(f"Requires-Dist: {line}" for line in requirements()),
    ]
    return "\n".join(lines) + "\n"


def _files(root: Path = _ROOT) -> Iterator[tuple[str, Path]]:
    """Every file of the training side, package data included, with its name in the wheel."""
    for name in ("__init__", *TRAINING_SIDE):
        module = root / f"{name}.py"
        paths = [module] if module.exists() else sorted((root / name).rglob("*"))
        for path in [*paths, root / "py.typed"] if name == "__init__" else paths:
            if path.is_file() and "__pycache__" not in path.parts:
                yield f"velodrome/{path.relative_to(root).as_posix()}", path
