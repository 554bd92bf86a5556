"""The launchers by name: where jobs can run. A launcher is imported when it is used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module

from velodrome.cluster.launcher import Launcher
from velodrome.errors import BadRequest

DEFAULT = "local"


@dataclass(frozen=True)
class LauncherOffer:
    """A launcher that can be chosen with `--on`."""

    name: str
    #: Module and class.
    target: str
    description: str
    #: Whether processes run on this machine.
    here: bool = True
    #: Whether the job may read from the terminal, so that nothing else may draw on it.
    interactive: bool = False


LAUNCHERS = (
    LauncherOffer("local", "velodrome.cluster.local.launcher:LocalLauncher", "one process per rank on this machine"),
    LauncherOffer(
        "debug", "velodrome.cluster.debug.launcher:DebugLauncher",
        "a job of one process inside the command itself, for breakpoints", interactive=True,
    ),
)


def launcher_named(name: str) -> LauncherOffer:
    """The description of a launcher; `BadRequest` with the known ones if there is none of that name."""
    for offer in LAUNCHERS:
        if offer.name == name:
            return offer
    raise BadRequest(f"--on {name!r}: no such launcher; choose from {', '.join(offer.name for offer in LAUNCHERS)}")


@contextmanager
def open_launcher(name: str = DEFAULT) -> Iterator[Launcher]:
    """A launcher, closed at the end of the block."""
    module, _, attribute = launcher_named(name).target.partition(":")
    launcher: Launcher = getattr(import_module(module), attribute)()
    try:
        yield launcher
    finally:
        launcher.close()
