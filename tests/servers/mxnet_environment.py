"""MXNet's own environment for the tests, made by the product itself.

`python tests/servers/mxnet_environment.py` installs it once, with the network; after that the tests keep its training
side current without any.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from velodrome.clusters import environments
from velodrome.clusters.environments import install

HOME = Path(os.environ.get("VELODROME_TEST_CACHE") or "~/.cache/velodrome-test").expanduser() / "engines"


def unavailable() -> str:
    """Why MXNet cannot train here; empty if it can."""
    if sys.version_info >= (3, 12):
        return f"MXNet has no wheel for Python {sys.version_info.major}.{sys.version_info.minor}"
    here = environments.read_record(HOME / "mxnet")
    return "" if here else "MXNet is not installed: python tests/servers/mxnet_environment.py"


def prepare() -> None:
    """Install it, or bring its training side up to date."""
    os.environ[environments.FOLDER] = str(HOME)
    install.install("mxnet")


if __name__ == "__main__":
    if sys.version_info < (3, 12):
        prepare()
    print(unavailable() or f"MXNet can train in {HOME / 'mxnet'}")
