"""An environment of old packages for the tests: numpy 1.23.5, and whatever the training side requires beside it.

`python tests/servers/environment.py` downloads the packages once, with the network. After that the tests create the
environment without any network, in a few seconds.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from velodrome.clusters.environments import DISTRIBUTION, requirements, training_wheel

NUMPY = "numpy==1.23.5"
HOME = Path(os.environ.get("VELODROME_TEST_CACHE") or "~/.cache/velodrome-test").expanduser() / "environment"


def _wheels() -> Path:
    """Where the packages are, for this Python and these requirements."""
    wanted = "\n".join([NUMPY, sys.version.split()[0], *requirements()])
    return HOME / hashlib.sha256(wanted.encode()).hexdigest()[:16]


def unavailable() -> str:
    """Why the environment cannot be created here; empty if it can."""
    if sys.version_info >= (3, 12):
        return f"{NUMPY} has no wheel for Python {sys.version_info.major}.{sys.version_info.minor}"
    return "" if _wheels().is_dir() else "its packages were not downloaded: python tests/servers/environment.py"


def prepare() -> None:
    """Download the packages. Needs the network."""
    wheels = _wheels()
    if wheels.is_dir() or sys.version_info >= (3, 12):
        return
    HOME.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=HOME) as name:
        folder = Path(name)
        ours = training_wheel(folder)
        pip = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--only-binary", ":all:"]
        subprocess.run([*pip, "-d", folder / "wheels", str(ours), NUMPY], timeout=300, check=True)
        (folder / "wheels" / ours.name).unlink(missing_ok=True)
        shutil.move(folder / "wheels", wheels)


def create(folder: Path) -> Path:
    """Create the environment in a folder and install the training side into it; its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], timeout=280, check=True)
    python = folder / "bin" / "python"
    ours = training_wheel(folder)
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--disable-pip-version-check"]
    offline = ["--no-index", "--find-links", str(_wheels()), "--no-compile"]
    subprocess.run([*pip, *offline, str(ours), NUMPY], timeout=280, check=True)
    return python


if __name__ == "__main__":
    prepare()
    print(unavailable() or f"an environment with {NUMPY} and {DISTRIBUTION} can be created from {_wheels()}")
