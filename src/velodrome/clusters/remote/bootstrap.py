"""How an agent gets to a host: a line of Python that reads the agent's modules from standard input and runs them."""

from __future__ import annotations

import base64
import json
from importlib import resources

from velodrome.clusters.remote import agent

PACKAGE = agent.__name__
#: In the order in which they import one another.
_MODULES = ("frames", "streams", "cleaning", "leftovers", "host_files", "network", "session")
#: Reads so many bytes, makes modules of them, and serves what follows. The words behind it are the agent's own.
_PROGRAM = """
import json, os, sys, types
size, data = int(sys.argv[1]), b""
while len(data) < size:
    more = os.read(0, size - len(data))
    if not more:
        sys.exit(3)
    data += more
for name, text in json.loads(data):
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = []
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], last, module)
    exec(compile(text, "<" + name + ">", "exec"), module.__dict__)
sys.modules[name].main(sys.argv[2:])
"""
#: The same as one line without anything that a login shell interprets within quotes: csh does so with newlines and `!`.
_LINE = f"import base64;exec(base64.b64decode('{base64.b64encode(_PROGRAM.encode()).decode()}'))"


def source() -> bytes:
    """The agent's modules, as the line of `command` reads them."""
    parts = PACKAGE.split(".")
    found = [(".".join(parts[: number + 1]), "") for number in range(len(parts))]
    folder = resources.files(PACKAGE)
    found += [(f"{PACKAGE}.{name}", (folder / f"{name}.py").read_text(encoding="utf-8")) for name in _MODULES]
    return json.dumps(found).encode()


def command(python: str, session: str, lease: float, root: str, *files: str) -> list[str]:
    """The words that start an agent whose standard input begins with `source`.

    A session's name marks all that it starts, and with it the agent ends. `lease` is how many seconds it waits for its
    controller to be heard again, 0 for ever. `root` is the folder of its caches and of its runs. With an inbox and an
    outbox it serves these files; a third one is a heartbeat that counts as a sign of life too.
    """
    size = str(len(source()))
    return [python, "-I", "-S", "-c", _LINE, size, session, f"{lease:g}", root, *files]
