"""The launchers by name, and what `--on` means: a launcher with options behind a colon, or a cluster of clusters.yaml.

The one place that reads it. A launcher is imported when it is used.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from velodrome.clusters import definitions
from velodrome.clusters.definitions import ClusterOptions, validated
from velodrome.clusters.emulated import limits
from velodrome.clusters.launcher import Launcher
from velodrome.errors import BadRequest, which_name
from velodrome.job.job import Job

if TYPE_CHECKING:
    from velodrome.clusters.slurm.launcher import AttachedLauncher

DEFAULT = "local"
_NO_OPTIONS = "velodrome.clusters.definitions:NoOptions"


@dataclass(frozen=True)
class LauncherOffer:
    """A launcher that can be chosen with `--on`."""

    name: str
    #: Module and class: called with its options and the pins of `--place`, unless it takes no options.
    target: str
    description: str
    #: Whether processes run on this machine.
    here: bool = True
    #: Whether the job may read from the terminal, so that nothing else may draw on it.
    interactive: bool = False
    #: What may follow its name and a colon; empty if nothing may.
    options: str = ""
    #: Module and class of its options, a `ClusterOptions`.
    schema: str = _NO_OPTIONS
    #: Whether it can do nothing without options, so that its bare name is no cluster.
    needs_options: bool = False

    @property
    def kind(self) -> type[ClusterOptions]:
        """The class of its options."""
        return _imported(self.schema)  # type: ignore[no-any-return]


LAUNCHERS = (
    LauncherOffer("local", "velodrome.clusters.local.launcher:LocalLauncher", "one process per rank on this machine"),
    LauncherOffer(
        "debug", "velodrome.clusters.debug:DebugLauncher",
        "a job of one process inside the command itself, for breakpoints", interactive=True,
    ),
    LauncherOffer(
        "emulated", "velodrome.clusters.emulated.launcher:EmulatedLauncher",
        "several hosts on this machine, as network namespaces with limited links (Linux, root)",
        options="nodes=N,bandwidth=RATE,latency=TIME,cpu=CORES,memory=BYTES",
        schema="velodrome.clusters.emulated:EmulatedOptions",
    ),
    LauncherOffer(
        "ssh", "velodrome.clusters.ssh.launcher:SshLauncher",
        "hosts that your OpenSSH client reaches, without a shared disk", here=False, options="HOST,HOST",
        schema="velodrome.clusters.ssh:SshOptions", needs_options=True,
    ),
    LauncherOffer(
        "ray", "velodrome.clusters.ray.launcher:RayLauncher",
        "the nodes of a Ray cluster: a running one, or one on this machine that ends with the command", here=False,
        options="ADDRESS", schema="velodrome.clusters.ray:RayOptions",
    ),
    LauncherOffer(
        "slurm", "velodrome.clusters.slurm.launcher:SlurmLauncher",
        "a job of Slurm for each run, submitted from a login node", here=False, options="partition=NAME,time=LIMIT",
        schema="velodrome.clusters.slurm:SlurmOptions",
    ),
)


@dataclass(frozen=True)
class Target:
    """What `--on` and `--place` ask for."""

    #: As the user wrote it.
    name: str
    offer: LauncherOffer
    options: ClusterOptions
    #: Hosts by role, or role and rank.
    pins: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


#: Where a job runs: the text of `--on`, or what it was resolved to.
Where = str | Target


def target_of(where: Where, pins: Mapping[str, str] | None = None) -> Target:
    """What a text of `--on` stands for; `BadRequest` if nothing, or if its options are wrong."""
    if isinstance(where, Target):
        return replace(where, pins={**where.pins, **pins}) if pins else where
    base, colon, text = where.partition(":")
    known = [offer for offer in LAUNCHERS if offer.name == base]
    if not known:
        if (defined := clusters().get(where)) is None:
            hint = which_name(base, _choices(), "velodrome clusters list")
            raise BadRequest(f"--on {where!r}: no such launcher; {hint}")
        return defined_target(defined, pins)
    offer = known[0]
    if colon and not offer.options:
        raise BadRequest(f"--on {where!r}: {base!r} takes no options; write --on {base}")
    if offer.needs_options and not text.strip(" ,"):
        raise BadRequest(f"--on {where!r}: name its hosts or options, as --on {base}:{offer.options}")
    fields = offer.kind.inline(text) if offer.options else {}
    return Target(where, offer, validated(offer.kind, fields, f"--on {where!r}"), pins or {})


def defined_target(defined: definitions.Definition, pins: Mapping[str, str] | None = None) -> Target:
    """What a cluster of a file stands for."""
    where = f"cluster {defined.name!r} in {defined.file}"
    offer = offer_named(defined.launcher, where)
    return Target(defined.name, offer, validated(offer.kind, defined.fields, where), pins or {})


def clusters() -> dict[str, definitions.Definition]:
    """The user's clusters by name; `BadRequest` if one has the name of a launcher."""
    found = definitions.load()
    for offer in LAUNCHERS:
        if offer.name in found:
            raise BadRequest(f"cluster {offer.name!r} in {found[offer.name].file}: that is the name of a launcher; "
                             "choose another one")
    return found


def offer_named(name: str, where: str) -> LauncherOffer:
    """The launcher of that name; `where` begins the sentence if there is none."""
    for offer in LAUNCHERS:
        if offer.name == name:
            return offer
    raise BadRequest(
        f"{where}: launcher {name!r} is unknown; {which_name(name, [offer.name for offer in LAUNCHERS])}"
    )


def _choices() -> list[str]:
    launchers = [f"{one.name}:{one.options}" if one.needs_options else one.name for one in LAUNCHERS]
    return [*launchers, *clusters()]


def launcher_named(where: Where) -> LauncherOffer:
    """The description of the launcher that `--on` stands for; `BadRequest` if there is none."""
    return target_of(where).offer


@contextmanager
def open_launcher(where: Where = DEFAULT) -> Iterator[Launcher]:
    """A launcher, closed at the end of the block."""
    target = target_of(where)
    offer = target.offer
    limits.clean()
    made = _imported(offer.target)
    if offer.options:
        launcher: Launcher = made(target.options, target.pins)
    elif target.pins:
        raise BadRequest(f"--place: --on {target.name} has one host; choose a cluster of several hosts")
    else:
        launcher = made()
    try:
        yield launcher
    finally:
        launcher.close()


@contextmanager
def open_attached(folder: Path) -> Iterator[AttachedLauncher]:
    """The launcher of a run whose hosts live on without a controller; `BadRequest` if there are none.

    They are not touched before the launcher is asked for them, or for their processes.
    """
    from velodrome.clusters.slurm.launcher import AttachedLauncher

    launcher = AttachedLauncher(folder)
    try:
        yield launcher
    finally:
        launcher.close()


def living(folder: Path) -> str | None:
    """What still runs of a run although its controller may be gone, such as `Slurm job 7`; None if nothing does."""
    from velodrome.clusters.slurm.job import living_job

    return living_job(folder)


def refuse_living(folder: Path) -> None:
    """Refuse to start a run again whose processes may still write to its folder."""
    if (found := living(folder)) is not None:
        runs = "" if folder.parent == Path("runs") else f" --runs {shlex.quote(str(folder.parent))}"
        raise BadRequest(f"run {folder.name!r} is still running as {found}: `velodrome attach {folder.name}{runs}` "
                         "takes it over")


def where_of(job: Job, where: Where | None) -> Where:
    """Where a job runs: where the command says, else where the job says, else on this machine."""
    return where if where is not None else job.on if job.on is not None else DEFAULT


@contextmanager
def open_launchers() -> Iterator[Callable[[str], Launcher]]:
    """A function that opens launchers by name, each once; all are closed at the end of the block."""
    with ExitStack() as stack:
        opened: dict[str, Launcher] = {}

        def named(where: str) -> Launcher:
            if where not in opened:
                opened[where] = stack.enter_context(open_launcher(where))
            return opened[where]

        yield named


def _imported(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)
