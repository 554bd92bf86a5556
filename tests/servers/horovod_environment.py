"""Horovod's own environments for the tests, one per framework, made by the product itself.

`python tests/servers/horovod_environment.py torch tensorflow` builds them once, with the network, in about four minutes
each; after that the tests keep their training side current without any.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from velodrome.clusters import environments
from velodrome.clusters.environments import install

HOME = Path(os.environ.get("VELODROME_TEST_CACHE") or "~/.cache/velodrome-test").expanduser() / "engines"


def unavailable(framework: str) -> str:
    """Why Horovod cannot train with a framework here; empty if it can."""
    here = environments.read_record(HOME / f"horovod-{framework}")
    return "" if here else f"Horovod is not installed: python tests/servers/horovod_environment.py {framework}"


def prepare(framework: str) -> None:
    """Install it, or bring its training side up to date."""
    os.environ[environments.FOLDER] = str(HOME)
    install.install("horovod", framework=framework)


if __name__ == "__main__":
    for asked in sys.argv[1:]:
        prepare(asked)
        print(unavailable(asked) or f"Horovod can train with {asked} in {HOME}")
