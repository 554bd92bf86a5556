"""Which code a job that was read from a file may run: the one place that decides.

A job names code as `module:function` (model, task, optimizer, transform, data) or as a script. Where a person names it,
on the command line or in Python, it runs, and that is recorded outside of all run folders, by the path and the content
of its file. A stored run, which somebody else may have made, runs only what is recorded, or what the person names with
`--trust-code`; a file with a job or a race also what lies beside it or in the current folder. No file widens that.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import sys
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from velodrome import files
from velodrome.catalog.models import is_own
from velodrome.clusters import LAUNCHERS, definitions
from velodrome.data import catalogue
from velodrome.data.own.functions import file_of_module, is_installed, users_roots
from velodrome.errors import BadRequest, VelodromeError
from velodrome.job.job import Job
from velodrome.models.own import own_names

OPTION = "--trust-code"
#: The fields of a job that can name code, or what it is called with.
_NAMING = {"script", "script_args", "model", "model_args", "task", "optimizer", "transform", "dataset", "on"}


@dataclass(frozen=True)
class Code:
    """Code that a job names, and where it lies on this machine."""

    #: The field of the job.
    field: str
    #: `module:function`, the path of a script, or a cluster.
    name: str
    #: What it is called with, as JSON: other arguments are another use of it.
    arguments: str
    #: Empty if nothing of that name is found here.
    file: str
    sha256: str

    @property
    def is_users(self) -> bool:
        """Whether it is a file of a person's, and not of Python or of an installed package."""
        if not self.file:
            return False
        path = Path(self.file)
        return not is_installed(path) and not _inside(path, Path(__file__).parents[1])

    def lies_in(self, folders: Iterable[Path]) -> bool:
        """Whether it is a file of a person's below one of these folders, and not in a stored run."""
        path = Path(self.file)
        stored = any((parent / "job.yaml").is_file() and (parent / "events.jsonl").is_file() for parent in path.parents)
        return self.is_users and not stored and any(_inside(path, folder) for folder in folders)

    @property
    def is_recorded(self) -> bool:
        return self._record.is_file()

    def record(self) -> None:
        """Remember that the user has named it, or confirmed it; where that cannot be written, he is asked again."""
        with suppress(OSError):
            state_folder().mkdir(mode=0o700, parents=True, exist_ok=True)
            files.write_text(self._record, json.dumps(asdict(self), indent=2) + "\n", sync=False, shared=True)

    @property
    def _record(self) -> Path:
        key = json.dumps(asdict(self), sort_keys=True)
        return state_folder() / f"{hashlib.sha256(key.encode()).hexdigest()}.json"

    def __str__(self) -> str:
        where = self.file or f"not found in {Path.cwd()} or on PYTHONPATH"
        return f"{self.field} {self.name!r} ({where})"


class UntrustedCode(BadRequest):
    """A file names code that nobody here has named or confirmed."""

    def __init__(self, message: str, codes: Sequence[Code]) -> None:
        allowed = " ".join(f"{OPTION} {shlex.quote(code.name)}" for code in codes)
        super().__init__(f"{message}: {', '.join(map(str, codes))}; code runs with all of your permissions: if you "
                         f"trust it, add {allowed}")
        self.codes = tuple(codes)


def state_folder() -> Path:
    """Where it is recorded what was trusted: `$XDG_STATE_HOME/velodrome/trusted-code`."""
    state = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser()
    return state / "velodrome" / "trusted-code"


def code_of(job: Job, *, launched: bool = True) -> list[Code]:
    """The code that a job names; with `launched` also the cluster, whose definition has commands."""
    codes = []
    if job.script is not None:
        codes.append(_code("script", job.script, {"arguments": job.script_args}, Path(job.script).absolute()))
    else:
        for field, name in own_names(job).items():
            arguments = job.model_args if field == "model" else {}
            codes.append(_code(field, name, arguments, _module_file(name)))
        if _is_function(job.dataset):
            codes.append(_code("dataset", job.dataset, {}, _module_file(job.dataset)))
    if launched and job.on is not None:
        codes += _cluster(job.on)
    return codes


def _code(field: str, name: str, arguments: object, path: Path | None) -> Code:
    resolved, digest = "", ""
    with suppress(OSError):
        if path is not None and path.exists():
            resolved = str(path.resolve())
            digest = files.sha256_of(resolved) if path.is_file() else ""
    return Code(field, name, json.dumps(arguments, sort_keys=True, default=str), resolved, digest)


def _module_file(name: str) -> Path | None:
    module = name.partition(":")[0]
    with suppress(ValueError, ImportError, OSError):  # of a name that is none, or a broken path
        return file_of_module(module, [*users_roots(), *sys.path])
    return None


def _is_function(dataset: str) -> bool:
    with suppress(VelodromeError):
        return catalogue.data_set(dataset).from_function
    return False


def _cluster(where: str) -> list[Code]:
    """A launcher that connects to other machines, or a cluster of a file in the current folder; none of the user's own
    configuration."""
    base, colon, _ = where.partition(":")
    with suppress(BadRequest):  # refused by who uses it
        if (launcher := LAUNCHERS.get(base)) is not None:
            return [_code("on", where, {}, None)] if colon and not launcher.here else []
    with suppress(BadRequest):  # said by who uses it
        defined = definitions.find(where)
        if defined is not None and defined.file == Path(definitions.FILE):
            return [_code("on", where, {}, defined.file)]
    return []


def record(jobs: Iterable[Job]) -> None:
    """Remember the code of jobs that a person has started."""
    for job in _differing(jobs):
        for code in code_of(job):
            code.record()


def elsewhere(jobs: Iterable[Job]) -> list[Code]:
    """Code that lies in another folder than the current one, and was not confirmed; clusters aside."""
    return [code for code in _distinct(jobs, ()) if code.field != "on" and not code.is_recorded
            and not code.lies_in([Path.cwd()])]


def admit_stored(job: Job, what: str, folder: Path, trusted: Collection[str] = (), *, launched: bool = False) -> None:
    """Refuse a job of a run folder unless its code is recorded, or named by `trusted`, which records it."""
    codes = code_of(job, launched=launched)
    left = [code for code in codes if not code.is_recorded and code.name not in trusted]
    if left:
        raise UntrustedCode(f"{what} names code that you have not named or confirmed on this machine", left)
    if any(is_own(code.name) for code in codes) and _inside(Path.cwd(), folder) and not any(
        code.file and _inside(Path(code.file), folder) for code in codes
    ):
        raise BadRequest(f"{what} needs {codes[0]}: run this in the folder of your code; in that of the run, its files "
                         "could take the place of modules")
    for code in codes:
        if not code.is_recorded:
            code.record()


def admit_file(
    jobs: Iterable[Job], file: Path, given: Collection[str] = (), trusted: Collection[str] = ()
) -> list[Code]:
    """The code that a file with jobs names; refused if it lies neither beside the file nor in the current folder.

    What is `given` on the command line, or named by `trusted`, may lie anywhere.
    """
    named = _distinct(jobs, given)
    places = (Path.cwd(), file.absolute().parent)
    left = [code for code in named if code.name not in trusted and not code.is_recorded and not code.lies_in(places)]
    if left:
        raise UntrustedCode(f"{str(file)!r} names code that lies neither beside it nor in the current folder", left)
    return named


def admit_race(
    jobs: Iterable[Job], what: str, folder: Path, given: Collection[str], trusted: Collection[str]
) -> list[Code]:
    """The same for a race that is resumed from its own folder: its code must be recorded, or named."""
    jobs = list(_differing(jobs))
    for job in jobs:
        admit_stored(job, what, folder, {*trusted, *given}, launched=True)
    return _distinct(jobs, given)


def _distinct(jobs: Iterable[Job], given: Collection[str]) -> list[Code]:
    """All code of these jobs but that which is given, each once."""
    codes = (code for job in _differing(jobs) for code in code_of(job) if code.name not in given)
    return list({(code.field, code.name): code for code in codes}.values())


def _differing(jobs: Iterable[Job]) -> Iterable[Job]:
    """One of all jobs that name the same code: a race has many."""
    return {job.model_dump_json(include=_NAMING): job for job in jobs}.values()


def _inside(path: Path, folder: Path) -> bool:
    with suppress(OSError):
        return path.resolve().is_relative_to(folder.resolve())
    return False
