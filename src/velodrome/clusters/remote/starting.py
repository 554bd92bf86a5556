"""Starts a run on hosts: sends the user's code, checkpoints and weights, prepares the data there, and starts the
processes.

The code is one archive, within a limit, always packed to the same bytes. Nothing is imported to find out which files a
job needs: what a module imports is read from its text.
"""

from __future__ import annotations

import ast
import hashlib
import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path

from pathspec import GitIgnoreSpec

from velodrome.catalog.segments import pattern_of_run
from velodrome.clusters import environments
from velodrome.clusters.plan import Plan, command, environment
from velodrome.clusters.remote import MEBIBYTE, RemoteOptions
from velodrome.clusters.remote.group import HostRun, RemoteGroup
from velodrome.clusters.remote.link import HostError, Link
from velodrome.data.own.functions import is_function, users_roots
from velodrome.errors import BadRequest, bytes_text
from velodrome.files import read_bytes
from velodrome.job.job import Job
from velodrome.models.own import own_names
from velodrome.variables import INSTEAD, JOB, MEASURE, TOKEN

_PREPARE = "velodrome.training.host"
_MIRROR = "VELODROME_DATA_MIRROR"
#: Variables of this machine that belong to the job and not to the machine.
_PASSED_ON = (MEASURE, INSTEAD, "VELODROME_STRICT_EVENTS")


@dataclass(frozen=True)
class Request:
    """One attempt at a plan on hosts."""

    plan: Plan
    #: The run's folder on this machine.
    folder: Path
    token: str
    code: Code
    options: RemoteOptions
    #: The interpreter of each host.
    pythons: Mapping[str, str]
    resume: bool


def prepare_host(link: Link, request: Request) -> HostRun:
    """Bring everything that processes need to a host; `HostError` names what failed there."""
    code = send_code(link, request.code)
    run = HostRun(link, send_run(link, request), code, request.pythons[link.host])
    prepare_data(run, request)
    return run


def send_code(link: Link, code: Code) -> str:
    """Unpack the user's code on a host, unless the same code is there; where it lies, empty if there is none."""
    if not code.files:
        return ""
    target = f"code/{code.checksum}"
    answer, _ = link.ask("has", path=target, use=True)
    if not answer["there"]:
        archive = f"{target}.{os.urandom(4).hex()}.tar"
        link.put(code.archive, archive)
        answer, _ = link.ask("unpack", path=archive, to=target, seconds=300.0)
    return str(answer["path"])


def send_run(link: Link, request: Request) -> str:
    """Make the run's folder on a host, with the checkpoints to resume from; where it lies."""
    if request.options.shared_dir is not None:
        folder = str(request.folder.resolve())
        answer, _ = link.ask("has", path=folder)
        if not answer["there"]:
            raise HostError(f"{link.host!r} does not see the run's folder {folder}, although shared_dir is set; let "
                            "--runs lie below the shared folder")
        return folder
    folder = f"{link.facts['folder']}/{request.token}"
    link.put(b"", f"{folder}/logs/.started")
    if request.resume:
        for path in sorted((request.folder / "checkpoints").glob("*.safetensors")):
            link.put(path, f"{folder}/checkpoints/{path.name}")
    link.ask("known", folder=folder)
    link.ask("watch", token=request.token, folder=folder, patterns=["checkpoints/*.safetensors"])
    return folder


def prepare_data(run: HostRun, request: Request) -> None:
    """Let a host fetch and check the data of the job, once for all of its processes."""
    variables = {**host_environment(run, request), JOB: request.plan.job.model_dump_json(exclude_defaults=True)}
    ran = run.link.run(
        [run.python, "-P", "-m", _PREPARE], limit=request.options.data_timeout, cwd=run.code or run.folder,
        environment=variables,
    )
    if ran.failed:
        raise HostError(f"{run.link.host!r} cannot read the data {request.plan.job.dataset!r}: {ran.reason}")


def host_environment(run: HostRun, request: Request) -> dict[str, str]:
    """The variables of every process on a host, on top of the host's own."""
    mirror = request.options.mirror or os.environ.get(_MIRROR, "")
    own = {_MIRROR: mirror} if request.options.mirror or "://" in mirror else {}
    own |= {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    if run.code:
        own["PYTHONPATH"] = run.code
    return own | request.options.environment


def start_all(request: Request, group: RemoteGroup) -> None:
    """Start all processes in the order of the plan, without waiting for one before the next."""
    plan, asked = request.plan, []
    for process in plan.processes:
        run, link = group.hosts[process.host], group.link_of(process)
        asked.append((link, link.send(
            "start", id=process.file_name, token=request.token, cwd=run.code or run.folder,
            words=command(run.python, plan, process, Path(run.folder), resume=request.resume),
            environment={**host_environment(run, request), **environment(plan, process), TOKEN: request.token},
            log=f"{run.folder}/logs/{process.file_name}.log", segments=pattern_of_run(request.token),
        )))
    for link, number in asked:
        link.wait(number, "start")


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
    data = [job.dataset] if job.script is None and is_function(job.dataset) else []
    return list(dict.fromkeys(name.partition(":")[0] for name in [*own_names(job).values(), *data]))


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
    return list(dict.fromkeys(place.resolve() for place in map(Path, users_roots()) if place.is_dir()))


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
        # Its first lines may name an encoding.
        return environments.imported_names(ast.parse(read_bytes(path, _LARGEST_SOURCE)))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return set()


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
