"""The user's own code as one archive: which files a job needs, within a limit, always packed to the same bytes.

Nothing is imported: what a module imports is read from its text.
"""

from __future__ import annotations

import ast
import hashlib
import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path

from pathspec import GitIgnoreSpec

from velodrome.catalog.models import is_own
from velodrome.clusters.remote import MEBIBYTE
from velodrome.data.own.functions import is_function
from velodrome.errors import BadRequest, bytes_text
from velodrome.files import read_bytes
from velodrome.job.job import Job

#: Folders that no code lies in.
_NEVER = frozenset({
    ".git", ".hg", ".venv", "venv", "__pycache__", "node_modules", ".mypy_cache", ".pytest_cache", ".tox",
})
_SECONDS = 30.0
#: Bytes of a file that is searched for imports; nobody writes a larger one by hand.
_LARGEST_SOURCE = 8 << 20
#: Files of the code, and folders within folders; data that lies beside it may have more of both.
_MOST_FILES, _DEEPEST = 100_000, 64
#: A pattern of `.gitignore`, and the folder of that file.
Rule = tuple[Path, GitIgnoreSpec]


@dataclass(frozen=True)
class Code:
    """Files by their names in the archive."""

    files: dict[str, Path] = field(default_factory=dict)

    @cached_property
    def archive(self) -> bytes:
        """An uncompressed tar file without times and owners, so that the same files are the same bytes."""
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for name, path in sorted(self.files.items()):
                data = path.read_bytes()
                about = tarfile.TarInfo(name)
                about.size, about.mode = len(data), 0o755 if os.access(path, os.X_OK) else 0o644
                tar.addfile(about, io.BytesIO(data))
        return stream.getvalue()

    @cached_property
    def checksum(self) -> str:
        return hashlib.sha256(self.archive).hexdigest()[:24]

    @property
    def size(self) -> int:
        return sum(path.stat().st_size for path in self.files.values())

    def listing(self) -> list[dict[str, object]]:
        """Each file with its size: what `velodrome doctor` shows, before it is sent."""
        return [{"name": name, "bytes": path.stat().st_size} for name, path in sorted(self.files.items())]


def code_of(job: Job, folder: str | None = None, limit: int = 50) -> Code:
    """What the hosts need of the user's code: a whole folder, or what the job's own functions and script import."""
    if folder is not None:
        base = Path(folder).expanduser().resolve()
        if not base.is_dir():
            raise BadRequest(f"code: {folder!r} is not a folder on this machine")
        return _limited(Code({str(path.relative_to(base)): path for path in _tree(base)}), limit)
    files: dict[str, Path] = {}
    for name in modules_of(job):
        _add_module(name, files)
    if job.script is not None:
        _add_script(job.script, files)
    if job.weights is not None and not Path(job.weights).is_absolute() and Path(job.weights).is_file():
        files[str(Path(job.weights))] = Path(job.weights).absolute()
    return _limited(Code(files), limit)


def modules_of(job: Job) -> list[str]:
    """The modules that a job names: of its model, task, optimizer, transform and data."""
    named = [job.model, job.task or "", job.optimizer or "", job.transform or ""]
    own = [name for name in named if is_own(name)] if job.script is None else []
    data = [job.dataset] if job.script is None and is_function(job.dataset) else []
    return list(dict.fromkeys(name.partition(":")[0] for name in [*own, *data]))


def _limited(code: Code, limit: int) -> Code:
    if code.size <= limit * MEBIBYTE:
        return code
    largest = sorted(code.listing(), key=lambda file: -int(str(file["bytes"])))[:3]
    names = ", ".join(f"{file['name']} ({bytes_text(int(str(file['bytes'])))})" for file in largest)
    raise BadRequest(
        f"your code has {bytes_text(code.size)}, more than the {limit} MiB of code_limit; the largest files are "
        f"{names}: exclude them in .gitignore, or raise code_limit"
    )


def roots() -> list[Path]:
    """Where the user's modules are looked for: the current folder and PYTHONPATH."""
    places = [Path.cwd(), *(Path(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry)]
    return list(dict.fromkeys(place.resolve() for place in places if place.is_dir()))


def _located(top: str) -> tuple[Path, Path] | None:
    """The file or package folder of a top-level module of the user's own, and the root that it lies in."""
    if top in sys.stdlib_module_names or top == "velodrome" or not top.isidentifier():
        return None
    for root in roots():
        if "site-packages" in root.parts:
            continue
        if (root / top / "__init__.py").is_file() or ((root / top).is_dir() and any((root / top).glob("*.py"))):
            return root / top, root
        if (root / f"{top}.py").is_file():
            return root / f"{top}.py", root
    return None


def _add_module(name: str, files: dict[str, Path]) -> None:
    """Add a module, its package as a whole, and the user's modules that these import."""
    waiting, seen = [name.partition(".")[0]], set[str]()
    while waiting:
        top = waiting.pop()
        located = _located(top) if top not in seen else None
        seen.add(top)
        if located is None:
            continue
        place, root = located
        for path in _tree(place) if place.is_dir() else [place]:
            inside = str(path.relative_to(root))
            if inside not in files:
                files[inside] = path
                if path.suffix == ".py":
                    waiting += sorted(_imports(path))


def _add_script(script: str, files: dict[str, Path]) -> None:
    path = Path(script)
    if path.is_absolute() or ".." in path.parts:
        raise BadRequest(
            f"--script {script!r} does not lie below the current folder: change to the folder of your code, so that "
            "hosts find it at the same place"
        )
    files[str(path)] = path.absolute()
    beside = path.absolute().parent
    for other in sorted(_imports(path)):
        top = other.partition(".")[0]
        for near in (beside / f"{top}.py", beside / top):
            if near.exists() and top not in sys.stdlib_module_names:
                members = _tree(near) if near.is_dir() else [near]
                files.update({str(Path(script).parent / member.relative_to(beside)): member for member in members})
        _add_module(other, files)


def _imports(path: Path) -> set[str]:
    """The top-level names that a file imports absolutely; what it cannot be read for, it fails with later."""
    try:
        tree = ast.parse(read_bytes(path, _LARGEST_SOURCE))  # whose first lines may name an encoding
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names.add(node.module.partition(".")[0])
    return names


def _tree(folder: Path) -> list[Path]:
    """The files of a folder that are not ignored: by Git if it is there, else by `.gitignore` files above and below.

    A folder whose modules are ignored from above is sent nevertheless: it was asked for, and works on this machine.
    """
    listed = _listed_by_git(folder)
    paths = listed if listed is not None else _walked(folder, _rules_above(folder))
    if not any(path.suffix == ".py" for path in paths):
        paths = _walked(folder, ()) or paths
    if len(paths) > _MOST_FILES:
        raise BadRequest(
            f"{str(folder)!r} has more than {_MOST_FILES:,} files, too many for code that is sent to hosts: exclude "
            "what is not code in .gitignore"
        )
    return sorted(path for path in paths if path.is_file() and not _NEVER & set(path.relative_to(folder).parts))


def _listed_by_git(folder: Path) -> list[Path] | None:
    words = ["git", "-C", str(folder), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return None
    return [folder / os.fsdecode(name) for name in done.stdout.split(b"\0") if name]


def _rules(folder: Path) -> list[Rule]:
    """The patterns of a folder's `.gitignore` as Git reads them; lines that are no pattern are left out."""
    file = folder / ".gitignore"
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else []
    rules: list[Rule] = []
    for line in lines:
        with suppress(ValueError):
            rules.append((folder, GitIgnoreSpec.from_lines([line])))
    return rules


def _rules_above(folder: Path) -> list[Rule]:
    """The rules of the folders that a folder lies in, from the root of the user's modules down."""
    top = next((root for root in roots() if folder.is_relative_to(root)), folder)
    between = [parent for parent in reversed(folder.parents) if parent.is_relative_to(top)]
    return [rule for parent in between for rule in _rules(parent)]


def _walked(folder: Path, rules: Sequence[Rule]) -> list[Path]:
    """The files of `_walk`, cut off where there are too many."""
    return list(islice(_walk(folder, rules), _MOST_FILES + 1))


def _walk(folder: Path, rules: Sequence[Rule], depth: int = 0) -> Iterator[Path]:
    """The files of a folder that no rule ignores; its own rules and those of the folders below are added."""
    if depth > _DEEPEST:
        raise BadRequest(f"{str(folder)!r} is more than {_DEEPEST} folders deep: exclude it in .gitignore")
    rules = [*rules, *_rules(folder)]
    with os.scandir(folder) as entries:
        listed = sorted(entries, key=lambda entry: entry.name)
    for entry in listed:
        path, is_folder = folder / entry.name, entry.is_dir(follow_symlinks=False)
        if entry.name in _NEVER or _ignored(path, rules, is_folder):
            continue
        if is_folder:
            yield from _walk(path, rules, depth + 1)
        else:
            yield path


def _ignored(path: Path, rules: Sequence[Rule], is_folder: bool) -> bool:
    """Whether the last rule that matches a path ignores it; a `!` reverts what rules before say."""
    end = "/" if is_folder else ""
    matches = (spec.check_file(f"{path.relative_to(base).as_posix()}{end}").include for base, spec in reversed(rules))
    return next((ignored for ignored in matches if ignored is not None), False)
