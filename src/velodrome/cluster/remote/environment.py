"""The Python environment of a host: made with the versions of this machine, and verified by hash later."""

from __future__ import annotations

import json
import platform
import re
import tempfile
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from velodrome.cluster.findings import Finding
from velodrome.cluster.remote.group import in_parallel
from velodrome.cluster.remote.link import HostError, Link
from velodrome.cluster.training_wheel import EXTRAS, REQUIREMENTS, training_wheel
from velodrome.errors import BadRequest, headline
from velodrome.offers.registry import engines as known_engines

FOLDER, RECORD, WHEELS = "environment", "environment.json", "wheels"
_INSTALL_SECONDS = 3600.0
_VENV_SECONDS = 180.0
_DIGEST_SECONDS = 300.0
#: What agents use beside the training side: stacks of processes that stall.
_TOOLS = ("py-spy",)
#: Compares every installed file with the hash that its package recorded, and prints one digest, or the first file that
#: differs. Byte code and what has no hash is left out.
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
        found = base64.urlsafe_b64encode(hashlib.new(file.hash.mode, data).digest()).rstrip(b"=").decode()
        if found != file.hash.value:
            wrong = wrong or str(file) + " was changed"
        lines.append(str(file) + "=" + found)
digest = hashlib.sha256("\\n".join(sorted(set(lines))).encode()).hexdigest()
print(json.dumps({"digest": digest, "wrong": wrong}))
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
    found: dict[str, str] = {}
    waiting = [_canonical(name) for name in names]
    while waiting:
        name = waiting.pop()
        if name in found or not _installed(name):
            continue
        found[name] = metadata.version(name)
        for line in metadata.requires(name) or []:
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                waiting.append(_canonical(needed.name))
    return dict(sorted(found.items()))


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def wheels_in(folder: Path, wanted: dict[str, str]) -> list[Path]:
    """The wheels of a folder for these versions; `BadRequest` names those that are missing."""
    if not folder.is_dir():
        raise BadRequest(f"--wheelhouse {str(folder)!r} is no folder")
    found: dict[str, Path] = {}
    for path in sorted(folder.glob("*.whl")):
        name, version = (*path.name.split("-"), "", "")[:2]
        if wanted.get(_canonical(name)) == version:
            found[_canonical(name)] = path
    if missing := [f"{name}=={version}" for name, version in wanted.items() if name not in found]:
        raise BadRequest(
            f"--wheelhouse {str(folder)!r} has no wheel for {', '.join(missing)}: fetch them with `pip download -d "
            f"{folder} {' '.join(missing)}`"
        )
    return list(found.values())


def prepare(
    link: Link, wanted: dict[str, str], wheelhouse: Sequence[Path] | None, own_wheel: Path
) -> dict[str, object]:
    """Make the environment of a host, unless it is there with the same versions and unchanged; what was done."""
    interpreter = str(link.facts["interpreter"])
    minor = ".".join(platform.python_version_tuple()[:2])
    if not str(link.facts["python"]).startswith(f"{minor}."):
        raise HostError(f"{link.host!r} has Python {link.facts['python']} ({interpreter}), and this machine {minor}: "
                        f"set python in clusters.yaml to a Python {minor} there")
    record = _record(link)
    if record is not None and record["pins"] == {**wanted} and _digest(link)["digest"] == record["digest"]:
        return {"host": link.host, "python": _python(link), "changed": False, "digest": record["digest"]}
    _run(link, ["rm", "-rf", f"{link.facts['root']}/{FOLDER}", f"{link.facts['root']}/{RECORD}"], 60.0, "be cleaned up")
    _run(link, [interpreter, "-m", "venv", f"{link.facts['root']}/{FOLDER}"], _VENV_SECONDS, "make an environment")
    sent = [link.put(path, f"{WHEELS}/{path.name}") for path in (own_wheel, *(wheelhouse or ()))]
    words = [_python(link), "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--quiet"]
    if wheelhouse is not None:
        words += ["--no-index", "--find-links", f"{link.facts['root']}/{WHEELS}"]
    _run(link, [*words, sent[0], *(f"{name}=={version}" for name, version in wanted.items())], _INSTALL_SECONDS,
         "install the packages")
    digest = str(_digest(link)["digest"])
    link.put(json.dumps({"pins": wanted, "digest": digest}).encode(), RECORD)
    _run(link, ["rm", "-rf", f"{link.facts['root']}/{WHEELS}"], 60.0, "be cleaned up")
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


def _python(link: Link) -> str:
    return f"{link.facts['root']}/{FOLDER}/bin/python"


def _record(link: Link) -> dict[str, object] | None:
    answer, output = link.run(["cat", f"{link.facts['root']}/{RECORD}"])
    if answer["code"] != 0:
        return None
    try:
        found: dict[str, object] = json.loads(output)
    except ValueError:
        return None
    return found


def _digest(link: Link) -> dict[str, object]:
    answer, output = link.run([_python(link), "-I", "-c", _DIGEST], limit=_DIGEST_SECONDS)
    if answer["code"] != 0:
        return {"digest": None, "wrong": f"its interpreter cannot be started: {headline(answer['errors'])}"}
    found: dict[str, object] = json.loads(output.strip().rpartition("\n")[2])
    return found


def _run(link: Link, words: list[str], limit: float, what: str) -> None:
    answer, _ = link.run(words, limit=limit)
    if answer["code"] != 0:
        lines = [line for line in answer["errors"].strip().splitlines() if "WARNING" not in line] or ["no reason given"]
        raise HostError(f"{link.host!r} cannot {what}: {headline(lines[-1])}")
