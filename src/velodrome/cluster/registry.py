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
    #: What may follow its name and a colon; empty if nothing may.
    options: str = ""


LAUNCHERS = (
    LauncherOffer("local", "velodrome.cluster.local.launcher:LocalLauncher", "one process per rank on this machine"),
    LauncherOffer(
        "debug", "velodrome.cluster.debug.launcher:DebugLauncher",
        "a job of one process inside the command itself, for breakpoints", interactive=True,
    ),
    LauncherOffer(
        "emulated", "velodrome.cluster.emulated.launcher:EmulatedLauncher",
        "several hosts on this machine, as network namespaces with limited links (Linux, root)",
        options="nodes=N,bandwidth=RATE,cpu=CORES,memory=BYTES",
    ),
)


def launcher_named(name: str) -> LauncherOffer:
    """The description of a launcher, with or without options behind a colon; `BadRequest` if there is none."""
    base, colon, _ = name.partition(":")
    for offer in LAUNCHERS:
        if offer.name == base:
            if colon and not offer.options:
                raise BadRequest(f"--on {name!r}: {base!r} takes no options; write --on {base}")
            return offer
    raise BadRequest(f"--on {name!r}: no such launcher; choose from {', '.join(offer.name for offer in LAUNCHERS)}")


@contextmanager
def open_launcher(name: str = DEFAULT) -> Iterator[Launcher]:
    """A launcher, closed at the end of the block."""
    offer = launcher_named(name)
    module, _, attribute = offer.target.partition(":")
    options = [name.partition(":")[2]] if offer.options else []
    launcher: Launcher = getattr(import_module(module), attribute)(*options)
    try:
        yield launcher
    finally:
        launcher.close()
