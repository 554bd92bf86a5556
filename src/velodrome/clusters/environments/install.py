"""Creates, repairs and removes the environments of engines that cannot share the controller's.

An environment is complete when its record is there, which is written last: an installation that was interrupted has
none and is made anew. A lock per environment lets several commands ask for the same one at once. Each step has a time
limit, and none outlives the process that started it: uv, which was tried in place of venv and pip, is faster, but has
neither, so two command lines would change and nothing here would go.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import selectors
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from velodrome.catalog.base import Engine, OwnEnvironment, SourceBuild
from velodrome.catalog.registry import engine, engines, forms
from velodrome.clusters import environments
from velodrome.clusters.environments import REQUIREMENTS, training_side_digest, training_wheel
from velodrome.clusters.remote.agent import cleaning
from velodrome.errors import BadRequest, VelodromeError
from velodrome.files import FileLock, write_text
from velodrome.variables import TOKEN

#: A download on a slow line and a build on one core fit.
STEP_SECONDS = 3600.0
#: How long a second command waits for the first one that makes the same environment.
WAIT_SECONDS = 2 * STEP_SECONDS
#: How long importing all that a training process imports may take.
_IMPORT_SECONDS = 300.0


@dataclass(frozen=True)
class Installed:
    """An environment after `install`: where it is, and whether anything had to be done."""

    engine: str
    interpreter: Path
    changed: bool
    seconds: float


def install(
    name: str, progress: Progress = lambda phrase: None, *, framework: str | None = None
) -> Installed:
    """Make the environment of an engine, or repair it; nothing happens if it is complete and current. `framework` is
    for engines that train with several: by default the first of them."""
    began = time.monotonic()
    described = _described(name, framework)
    home = environments.folder() / described.key
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadRequest(f"environments of engines are stored in {str(home.parent)!r}, and that folder cannot be made: "
                         f"{error.strerror}; set ${environments.FOLDER} to one that can") from None
    with _locked(described, progress):
        record = environments.record_of(described)
        changed = not _is_complete(home, described, record)
        if changed:
            refuse_in_use(home, name)
            _make(home, described, record, progress)
    environments.forget()
    return Installed(name, environments.interpreter_of(described.key), changed, time.monotonic() - began)


def remove(
    name: str, progress: Progress = lambda phrase: None, *, framework: str | None = None
) -> bool:
    """Remove the environment of an engine, or those of all its frameworks; whether there was any."""
    removed = False
    for described in forms(name) if framework is None else (engine(name, framework),):
        home = environments.folder() / _described(name, described.framework).key
        if not home.exists():
            continue
        with _locked(described, progress):
            if not home.exists():  # another command was faster
                continue
            refuse_in_use(home, name)
            progress("removing the environment")
            # Without its interpreter it is no environment, even if what follows is interrupted.
            (home / "bin" / "python").unlink(missing_ok=True)
            shutil.rmtree(home)
        removed = True
    environments.forget()
    return removed


def _described(name: str, framework: str | None) -> Engine:
    described = engine(name, framework)
    if described.own_environment is None:
        own = [other.name for other in engines() if other.own_environment is not None]
        raise BadRequest(
            f"engine {name!r} trains in the environment of Velodrome itself and needs none of its own: "
            f"{described.needs[0].install if described.needs else 'there is nothing to install'}; those that do are "
            f"{', '.join(own) or 'none'}"
        )
    return described


@contextmanager
def _locked(described: Engine, progress: Progress) -> Iterator[None]:
    lock = FileLock(environments.folder() / f".{described.key}.lock", poll_seconds=0.2)
    if not lock.acquire(0.0):
        progress("waiting for another command that installs or removes it")
        if not lock.acquire(WAIT_SECONDS):
            raise VelodromeError(f"another command has been installing or removing engine {described.name!r} for "
                                 f"{WAIT_SECONDS / 3600:g} hours: end it, then run this one again")
    try:
        end_leftovers(environments.folder() / described.key)
        yield
    finally:
        lock.release()


def _is_complete(home: Path, described: Engine, record: Mapping[str, str]) -> bool:
    """Whether an environment is what it should be, and its interpreter still starts and imports what it has."""
    ours = next(home.glob("lib/python3*/site-packages/velodrome"), home)
    return (
        environments.read_record(home) == record
        and training_side_digest(ours) == record["training_side"]
        and not _missing_modules(home / "bin" / "python", [*_packages(described), *_training_side(described)])
    )


def _packages(described: Engine) -> list[str]:
    """The modules of the packages in an engine's environment: the framework, and what the training side requires."""
    assert described.own_environment is not None
    return [*REQUIREMENTS.values(), *described.own_environment.modules]


def _training_side(described: Engine) -> list[str]:
    """The modules of Velodrome that a training process imports."""
    return ["velodrome.training.__main__", described.worker]


def _missing_modules(python: Path, modules: Sequence[str]) -> list[str]:
    """Those of the modules that an interpreter cannot import, by importing them; all if it does not start."""
    program = (
        "import importlib, sys\nfor name in sys.argv[1:]:\n    try:\n        importlib.import_module(name)\n"
        "    except Exception:\n        continue\n    print('imported', name, flush=True)"
    )
    try:
        done = subprocess.run([str(python), "-c", program, *modules], cwd="/", env=inherited_variables(), text=True,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=_IMPORT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return list(modules)
    lines = done.stdout.splitlines()
    return [name for name in modules if f"imported {name}" not in lines]


def _make(home: Path, described: Engine, record: Mapping[str, str], progress: Progress) -> None:
    own = described.own_environment
    assert own is not None
    base = _interpreter(described.name, own)
    before = environments.read_record(home)
    python = home / "bin" / "python"
    with tempfile.TemporaryDirectory(prefix="velodrome-install-") as scratch, guarded(home, progress) as steps:
        wheel = training_wheel(Path(scratch))
        if before is not None and before.get("requirements") == record["requirements"] and not _missing_modules(
            python, _packages(described)
        ):
            progress("updating the training side of Velodrome")
            (home / environments.RECORD).unlink()
            _pip(python, ["--no-deps", "--force-reinstall", str(wheel)], steps)
        else:
            progress("creating the environment")
            shutil.rmtree(home, ignore_errors=True)
            steps.run([str(base), "-P", "-m", "venv", str(home)])
            wanted = Path(scratch) / "requirements.txt"
            wanted.write_text("\n".join(environments.pinned_packages(own)) + "\n")
            progress("downloading and installing packages")
            _pip(python, ["--requirement", str(wanted)], steps)
            for build in own.builds:
                progress(f"building {build.requirement}, which takes about {own.minutes:g} minutes on two cores")
                _build(python, build, Path(scratch), steps)
            _pip(python, ["--no-deps", str(wheel)], steps)
    progress("checking that it can be imported")
    if missing := _missing_modules(python, [*_packages(described), *_training_side(described)]):
        raise VelodromeError(f"engine {described.name!r} was installed into {home}, but {', '.join(missing)} cannot be "
                             f"imported there: {python} -c 'import {missing[0]}' shows why")
    write_text(home / environments.RECORD, json.dumps(dict(record), indent=1) + "\n")


def _interpreter(name: str, own: OwnEnvironment) -> Path:
    """An interpreter of a version for which the packages exist: the running one, or one on the path."""
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    if running in own.pythons:
        return Path(sys.executable)
    for version in own.pythons:
        if python := shutil.which(f"python{version}"):
            return Path(python)
    raise BadRequest(f"engine {name!r} needs Python {' or '.join(own.pythons)}, and none is on the path: install "
                     f"one (on Debian: apt install python{own.pythons[0]}-venv)")


def _pip(python: Path, words: Sequence[str], steps: Steps, variables: Mapping[str, str] | None = None) -> None:
    command = [str(python), "-P", "-m", "pip", "install", "--disable-pip-version-check", "--no-input", *words]
    steps.run(command, variables)


def _build(python: Path, build: SourceBuild, scratch: Path, steps: Steps) -> None:
    # Compilers that came as packages, such as MPICH's, are beside the interpreter.
    path = f"{python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    variables = {"MAKEFLAGS": f"-j{os.cpu_count() or 1}", "PATH": path, **build.variables}
    if build.compiler_options:
        variables["CXX"] = str(_compiler(scratch, build.compiler_options))
    _pip(python, ["--no-build-isolation", "--no-cache-dir", build.requirement], steps, variables)


def _compiler(scratch: Path, replaced: Mapping[str, str]) -> Path:
    """A C++ compiler that is called with some options replaced by others."""
    real = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++")
    if real is None:
        raise BadRequest("a C++ compiler is needed to build this engine: install one (on Debian: apt install g++)")
    cases = "".join(f"    {old}) word={new} ;;\n" for old, new in replaced.items())
    path = scratch / "c++"
    path.write_text(f'#!/bin/sh\nfor word do\n  shift\n  case "$word" in\n{cases}  esac\n  set -- "$@" "$word"\ndone\n'
                    f'exec {real} "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


#: Receives what is being done, as a short phrase; called when a step begins and as it proceeds.
Progress = Callable[[str], None]
_SHOWN_LINES = 15
#: Modules by which a process trains, or waits to.
_TRAINING = frozenset({"velodrome.training", "velodrome.training.template", "velodrome.run.manual"})


def inherited_variables() -> dict[str, str]:
    """The variables of this process, without those by which another interpreter would find our packages."""
    return {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}


@dataclass(frozen=True)
class Steps:
    """Runs one command after the other; all of them, and what they start, carry a token."""

    token: str
    progress: Progress

    def run(self, words: Sequence[str], variables: Mapping[str, str] | None = None) -> None:
        """Run a command; its output becomes progress, and its last lines the reason if it fails."""
        deadline = time.monotonic() + STEP_SECONDS
        process = subprocess.Popen(
            words, env={**inherited_variables(), **(variables or {}), TOKEN: self.token}, cwd="/", bufsize=0,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )
        last: deque[str] = deque(maxlen=_SHOWN_LINES)
        try:
            for line in _lines(process, deadline):
                last.append(line)
                if phrase := _phrase(line):
                    self.progress(phrase)
            code = process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise VelodromeError(
                f"a step took more than {STEP_SECONDS / 60:g} minutes: {' '.join(words[:5])} …"
            ) from None
        finally:
            _end(process)
        if code:
            shown = "\n".join(last)
            raise VelodromeError(f"'{' '.join(words[:5])} …' ended with code {code}:\n{shown}")


@contextmanager
def guarded(home: Path, progress: Progress) -> Iterator[Steps]:
    """Steps that write into a folder; if this process is killed, a guardian ends them."""
    token = _token(home)
    guardian = cleaning.start_guardian(token)
    try:
        yield Steps(token, progress)
    finally:
        cleaning.dismiss(guardian)


def end_leftovers(home: Path) -> None:
    """End the steps of a process that was killed; its guardian may not have done so yet. Only the holder
    of the folder's lock may call it: nobody else has steps then."""
    if left := cleaning.end_all(cleaning.of_run, _token(home)):
        raise VelodromeError(f"processes of an installation that was killed still use {str(home)!r} and cannot be "
                             f"ended: kill {' '.join(map(str, left))}, then run the command again")


def refuse_in_use(home: Path, name: str) -> None:
    """Refuse to touch an environment in which something trains: it may still import modules."""
    python = {str(folder / "bin" / "python") for folder in (home, home.resolve())}
    training = [
        process.pid for process in psutil.process_iter(["cmdline"])
        if (words := process.info["cmdline"] or [""])[0] in python and _TRAINING & set(words)
    ]
    if training:
        raise VelodromeError(f"engine {name!r} is training now (process {', '.join(map(str, training))}): wait until "
                             "its runs have ended, or end them, then run the command again")


def _token(home: Path) -> str:
    return f"install-{hashlib.sha256(str(home.resolve()).encode()).hexdigest()[:24]}"


def _lines(process: subprocess.Popen[bytes], deadline: float) -> Iterator[str]:
    """The lines that a process prints, as they come; `TimeoutExpired` if there is no end of them by the deadline."""
    assert process.stdout is not None
    rest = b""
    with process.stdout as stream, selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or not selector.select(left):
                raise subprocess.TimeoutExpired(process.args, STEP_SECONDS)
            data = os.read(stream.fileno(), 1 << 16)
            *whole, rest = (rest + data).split(b"\n")
            if not data and rest:
                whole.append(rest)
            yield from (line.decode(errors="replace").rstrip() for line in whole)
            if not data:
                return


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process that has not been waited for, and its process group."""
    if process.returncode is None:
        cleaning.kill_group(process.pid)
        process.wait()


def _phrase(line: str) -> str:
    """What a line of pip's output says about its progress; empty if nothing."""
    match = re.match(r"\s*(Downloading|Building wheel for|Installing collected packages)[: ]*(.*)", line)
    if match is None:
        return ""
    what = match[2].split("/")[-1].split(" (")[0]
    shown = what if len(what) < 60 else what[:57] + "…"
    return f"{match[1].lower()} {shown}".replace("installing collected", "installing")
