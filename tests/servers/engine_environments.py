"""The environments of engines that have one of their own, for the tests, made by the product itself.

`python tests/servers/engine_environments.py mxnet horovod-torch` installs them once, with the network; after that the
tests keep their training side current without any.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from velodrome.catalog.base import Engine, Strategy
from velodrome.catalog.registry import engine_with_key
from velodrome.clusters import environments
from velodrome.clusters.environments import install

HOME = Path(os.environ.get("VELODROME_TEST_CACHE") or "~/.cache/velodrome-test").expanduser() / "engines"


def unavailable(engine: Engine, strategy: Strategy) -> str:
    """Why a strategy cannot run here; empty if it can. Brings the engine's environment up to date if there is one; the
    variable of `environments.FOLDER` must say HOME."""
    if engine.own_environment is not None:
        if environments.read_record(HOME / engine.key) is None:
            return f"{engine.key} is not installed: python tests/servers/engine_environments.py {engine.key}"
        install.install(engine.name, framework=engine.framework)
    return "; ".join(environments.missing(engine, strategy))


if __name__ == "__main__":
    os.environ[environments.FOLDER] = str(HOME)
    for key in sys.argv[1:]:
        asked = engine_with_key(key)
        install.install(asked.name, print, framework=asked.framework)
        print(unavailable(asked, asked.strategies[0]) or f"{key} can train in {HOME / key}")
