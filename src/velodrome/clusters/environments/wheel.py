"""Builds a wheel of the training side alone, from the running installation and without a network.

An engine may need an environment whose versions conflict with the controller's; this wheel is what is installed there.
"""

from __future__ import annotations

import hashlib
import re
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from velodrome.errors import VelodromeError

DISTRIBUTION = "velodrome-worker"
#: The packages and modules of `velodrome` that a training process may import: the layers up to `engines`.
TRAINING_SIDE = (
    "callbacks", "data", "engines", "errors", "events", "figures", "files", "folders", "machine", "models", "catalog",
    "printable", "job", "tasks", "training", "transport", "variables",
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
