"""A folder with the wheels that a host needs to train, in the versions of this environment.

`python tests/servers/wheelhouse.py` downloads them once, with the network.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from velodrome.clusters.environments.hosts import pins

HOME = Path(os.environ.get("VELODROME_TEST_CACHE") or "~/.cache/velodrome-test").expanduser() / "wheelhouse"


def folder() -> Path:
    """Where the wheels are, for this Python and these versions."""
    wanted = "\n".join([sys.version.split()[0], *(f"{name}=={version}" for name, version in pins([]).items())])
    return HOME / hashlib.sha256(wanted.encode()).hexdigest()[:16]


def unavailable() -> str:
    """Why there are none; empty if they are there."""
    return "" if folder().is_dir() else "the wheels were not downloaded: python tests/servers/wheelhouse.py"


def prepare() -> None:
    """Download the wheels. Needs the network."""
    if folder().is_dir():
        return
    HOME.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=HOME) as name:
        pip = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--only-binary", ":all:"]
        wanted = [f"{package}=={version}" for package, version in pins([]).items()]
        subprocess.run([*pip, "--no-deps", "-d", f"{name}/wheels", *wanted], timeout=600, check=True)
        shutil.move(f"{name}/wheels", folder())


if __name__ == "__main__":
    prepare()
