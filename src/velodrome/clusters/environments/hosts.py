"""The Python environments of other hosts: made with the versions of this machine, verified by hash later, and which
interpreter of a host trains with an engine.
"""

from __future__ import annotations

import json
import platform
import re
import secrets
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from velodrome.catalog.base import Engine
from velodrome.catalog.registry import engines as known_engines
from velodrome.clusters import environments
from velodrome.clusters.environments import EXTRAS, REQUIREMENTS, training_side_digest, training_wheel
from velodrome.clusters.launcher import Finding
from velodrome.clusters.remote.group import in_parallel
from velodrome.clusters.remote.link import HostError, HostLost, Link
from velodrome.errors import BadRequest, headline

#: `FOLDER` is a link to one of the folders in `ALL`, which holds its own `RECORD`.
FOLDER, ALL, RECORD, WHEELS = "environment", "environments", "environment.json", "wheels"
_INSTALL_SECONDS = 3600.0
_VENV_SECONDS = 180.0
_DIGEST_SECONDS = 300.0
#: What agents use beside the training side: stacks of processes that stall.
_TOOLS = ("py-spy",)
#: Compares every installed file with the hash that its package recorded, and prints one digest, or the first file that
#: differs. Byte code and what has no hash is left out; scripts, and where a wheel came from, name folders of their host
#: and are no part of the digest.
_DIGEST = """
import base64, hashlib, json, sys
from importlib import metadata
lines, wrong = [], None
for dist in metadata.distributions():
    for file in dist.files or ():
        if file.hash is None or file.suffix == ".pyc":
            continue
        try:
            data = file.locate().read_bytes()
        except OSError:
            wrong = wrong or str(file) + " is missing"
            continue
        actual = base64.urlsafe_b64encode(hashlib.new(file.hash.mode, data).digest()).rstrip(b"=").decode()
        if actual != file.hash.value:
            wrong = wrong or str(file) + " was changed"
        if ".." not in file.parts and file.name != "direct_url.json":
            lines.append(str(file) + "=" + actual)
digest = hashlib.sha256("\\n".join(sorted(set(lines))).encode()).hexdigest()
print(json.dumps({"digest": digest, "wrong": wrong}))
"""

#: Makes the link of `FOLDER` lead to a new environment, at once, and removes the others.
_SWAP = """
import os, shutil, sys
os.chdir(sys.argv[1])
link, folder, new = sys.argv[2:]
if os.path.isdir(link) and not os.path.islink(link):
    os.rename(link, os.path.join(folder, new + ".replaced"))
if os.path.islink(link + ".new"):
    os.unlink(link + ".new")
os.symlink(os.path.join(folder, new), link + ".new")
os.replace(link + ".new", link)
for name in os.listdir(folder):
    if name != new:
        shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
"""


def pins(engines: Iterable[str]) -> dict[str, str]:
    """The versions of all packages that the training side and these engines need, as they are installed here."""
    names = [*REQUIREMENTS, *_TOOLS]
    for engine in known_engines():
        if engine.name in engines:
            names += [package for package in engine.packages if _installed(package)]
    for line in metadata.requires("velodrome") or []:
        needed = Requirement(line)
        if any(f'extra == "{extra}"' in line for extra in EXTRAS) and _installed(needed.name):
            names.append(needed.name)
    versions: dict[str, str] = {}
    waiting = [_canonical(name) for name in names]
    while waiting:
        name = waiting.pop()
        if name in versions or not _installed(name):
            continue
        versions[name] = metadata.version(name)
        for line in metadata.requires(name) or []:
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                waiting.append(_canonical(needed.name))
    return dict(sorted(versions.items()))


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def wheels_in(folder: Path, wanted: dict[str, str]) -> list[Path]:
    """The wheels of a folder for these versions and this Python, of all platforms; `BadRequest` names missing ones."""
    if not folder.is_dir():
        raise BadRequest(f"--wheelhouse {str(folder)!r} is not a folder")
    wheels: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*.whl")):
        with suppress(InvalidWheelFilename):
            name, version, _, tags = parse_wheel_filename(path.name)
            if name in wanted and Version(wanted[name]) == version and any(map(_fits_this_python, tags)):
                wheels.setdefault(name, []).append(path)
    if missing := [f"{name}=={version}" for name, version in wanted.items() if name not in wheels]:
        raise BadRequest(
            f"--wheelhouse {str(folder)!r} has no wheel for {', '.join(missing)} and Python {_minor()}: fetch them "
            f"with `pip download -d {folder} {' '.join(missing)}`"
        )
    return [path for paths in wheels.values() for path in paths]


def _minor() -> str:
    return ".".join(platform.python_version_tuple()[:2])


def _fits_this_python(tag: Tag) -> bool:
    """Whether a wheel with this tag is for our version of Python, whatever its platform: hosts may have another."""
    kind, number = tag.interpreter[:2], tag.interpreter[2:]
    own = _minor().replace(".", "")
    older = number[:1] == "3" and number[1:].isdigit() and int(number[1:]) <= int(own[1:])
    return number == own or (kind == "py" and (number == "3" or older)) or (tag.abi == "abi3" and older)


def prepare(
    link: Link, wanted: dict[str, str], wheelhouse: Sequence[Path] | None, own_wheel: Path
) -> dict[str, object]:
    """Make the environment of a host, unless it is there with the same versions and unchanged; what was done.

    The old one stays in use until the new one is complete: the agent may be running from it.
    """
    interpreter, minor = str(link.facts["base"]), _minor()
    if not str(link.facts["python"]).startswith(f"{minor}."):
        raise HostError(f"{link.host!r} has Python {link.facts['python']} ({interpreter}), but this machine {minor}: "
                        f"set python in clusters.yaml to a Python {minor} there")
    record, ours = _record(link), {"pins": wanted, "velodrome": training_side_digest()}
    if record is not None and {name: record.get(name) for name in ours} == ours:
        now = _digest(link)
        if now["digest"] == record["digest"]:
            return {"host": link.host, "python": _python(link), "changed": False, "digest": record["digest"]}
    root, new, wheels = str(link.facts["root"]), secrets.token_hex(4), f"{WHEELS}/{secrets.token_hex(4)}"
    folder = f"{ALL}/{new}"
    try:
        _run(link, [interpreter, "-m", "venv", f"{root}/{folder}"], _VENV_SECONDS, "make an environment")
        sent = [link.put(path, f"{wheels}/{path.name}") for path in (own_wheel, *(wheelhouse or ()))]
        words = [_python(link, folder), "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--quiet"]
        if wheelhouse is not None:
            words += ["--no-index", "--find-links", f"{root}/{wheels}"]
        _run(link, [*words, sent[0], *(f"{name}=={version}" for name, version in wanted.items())], _INSTALL_SECONDS,
             "install the packages")
        digest = str(_digest(link, folder)["digest"])
        link.put(json.dumps({**ours, "digest": digest}).encode(), f"{folder}/{RECORD}")
        _run(link, [interpreter, "-I", "-c", _SWAP, root, FOLDER, ALL, new], 120.0, "switch to the new environment")
    except HostLost:
        raise
    except HostError:
        link.run(["rm", "-rf", f"{root}/{folder}", f"{root}/{wheels}"], limit=60.0)
        raise
    _run(link, ["rm", "-rf", f"{root}/{wheels}"], 60.0, "be cleaned up")
    return {"host": link.host, "python": _python(link), "changed": True, "digest": digest}


def verify(link: Link) -> list[Finding]:
    """A prepared environment whose files are not those that were installed."""
    record = _record(link)
    if record is None:
        return []
    now = _digest(link)
    if now["digest"] == record["digest"] and not now["wrong"]:
        return []
    what = now["wrong"] or "packages were added or removed"
    return [Finding("error", "versions", link.host, f"its environment is not the one that was prepared: {what}",
                    "run `velodrome clusters prepare` again")]


def prepare_all(links: Sequence[Link], engines: Iterable[str], wheelhouse: Path | None) -> list[dict[str, object]]:
    """Make the environments of all hosts at the same time; what was done on each."""
    wanted = pins(engines)
    wheels = wheels_in(wheelhouse, wanted) if wheelhouse is not None else None
    with tempfile.TemporaryDirectory(prefix="velodrome-wheel-") as folder:
        own = training_wheel(Path(folder))
        return [*in_parallel(links, lambda link: prepare(link, wanted, wheels, own)).values()]


def _python(link: Link, folder: str = FOLDER) -> str:
    return f"{link.facts['root']}/{folder}/bin/python"


def _record(link: Link, path: str | None = None) -> dict[str, Any] | None:
    """The record of an environment on a host, by default of the one that was prepared; None if there is none."""
    ran = link.run(["cat", path or f"{link.facts['root']}/{FOLDER}/{RECORD}"])
    if ran.failed:
        return None
    try:
        record = json.loads(ran.output)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _digest(link: Link, folder: str = FOLDER) -> dict[str, Any]:
    ran = link.run([_python(link, folder), "-I", "-c", _DIGEST], limit=_DIGEST_SECONDS)
    if ran.failed:
        return {"digest": None, "wrong": f"its interpreter cannot be started: {headline(ran.errors)}"}
    return ran.answer


def _run(link: Link, words: list[str], limit: float, what: str) -> None:
    ran = link.run(words, limit=limit)
    if ran.failed:
        lines = [line for line in ran.errors.strip().splitlines() if "WARNING" not in line] or ["no reason given"]
        raise HostError(f"{link.host!r} cannot {what}: {headline(lines[-1])}")


@dataclass(frozen=True)
class Interpreter:
    """An interpreter of a host."""

    path: str
    #: The folder of an engine's own environment to which it belongs, if another version of Velodrome made that.
    outdated: str | None = None


def own_interpreter(link: Link, engine: Engine, folder: str) -> Interpreter | None:
    """The interpreter of an engine's own environment in a folder of a host; None if the engine needs none, or it was
    never completed there."""
    if engine.own_environment is None:
        return None
    home = f"{folder}/{engine.key}"
    record = _record(link, f"{home}/{environments.RECORD}")
    if record is None:
        return None
    current = record == environments.record_of(engine)
    return Interpreter(f"{home}/bin/python", outdated=None if current else home)
