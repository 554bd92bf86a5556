"""What an engine's own environment is made of: what it should be, and what was installed.

The record is written when an environment is complete, so one without it was interrupted.
"""

from __future__ import annotations

import hashlib
import json
from importlib import resources
from pathlib import Path

from velodrome.catalog.base import Engine, OwnEnvironment
from velodrome.clusters.training_wheel import training_side_digest
from velodrome.files import read_json

#: The record in the folder of an environment.
FILE = "velodrome.json"
_LARGEST = 1 << 16


def requirements(own: OwnEnvironment) -> list[str]:
    """The packages of an environment with their exact versions."""
    text = resources.files("velodrome.catalog").joinpath("environments", own.requirements).read_text()
    return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]


def wanted(engine: Engine) -> dict[str, str]:
    """The record of an environment of this engine and this version of Velodrome."""
    own = engine.own_environment
    assert own is not None, "only engines with an environment of their own have a record"
    packages = "\n".join([*requirements(own), *map(repr, own.builds)])
    return {
        "engine": engine.key,
        "requirements": hashlib.sha256(packages.encode()).hexdigest(),
        "training_side": training_side_digest(),
    }


def read(home: Path) -> dict[str, str] | None:
    """The record of an environment; None if it was never completed."""
    try:
        found = read_json(home / FILE, _LARGEST)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def parsed(text: str) -> dict[str, str] | None:
    """The record that another host sent; None if it is none."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def is_current(engine: Engine, home: Path) -> bool:
    """Whether an environment of this engine and this version of Velodrome is there, with its interpreter."""
    return (home / "bin" / "python").exists() and read(home) == wanted(engine)


def outdated(engine: Engine, home: Path) -> str | None:
    """Why an installed environment does not fit this version of Velodrome, with the way out; None if it does."""
    if engine.own_environment is None or (found := read(home)) is None or found == wanted(engine):
        return None
    return f"its environment was made by another version of Velodrome: {engine.install_command}"
