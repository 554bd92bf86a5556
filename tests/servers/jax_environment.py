"""JAX's own environment for the tests, made by the product itself.

`python tests/servers/jax_environment.py` installs it once, with the network; after that the tests keep its training
side current without any.
"""

from __future__ import annotations

import os
from pathlib import Path

from velodrome.clusters import environments
from velodrome.clusters.environments import install

HOME = Path(os.environ.get("VELODROME_TEST_CACHE") or "~/.cache/velodrome-test").expanduser() / "engines"


def unavailable() -> str:
    """Why JAX cannot train here; empty if it can."""
    here = environments.read_record(HOME / "jax")
    return "" if here else "JAX is not installed: python tests/servers/jax_environment.py"


def prepare() -> None:
    """Install it, or bring its training side up to date."""
    os.environ[environments.FOLDER] = str(HOME)
    install.install("jax")


if __name__ == "__main__":
    prepare()
    print(unavailable() or f"JAX can train in {HOME / 'jax'}")
