"""The launchers by name, and what `--on` means: a launcher with options behind a colon, or a cluster of clusters.yaml.

The one place that reads it. A launcher is imported when it is used; packages register theirs as entry points of the
group `velodrome.launchers`, each a `LauncherType`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from velodrome.catalog.registry import Plugins, load
from velodrome.clusters import definitions
from velodrome.clusters.definitions import ClusterOptions, validated
from velodrome.clusters.launcher import Launcher, LauncherType
from velodrome.errors import BadRequest, which_name
from velodrome.job.job import Job

DEFAULT = "local"
#: In the order in which lists show them.
OURS = {
    "local": "velodrome.clusters.local:LAUNCHER", "debug": "velodrome.clusters.local:DEBUG",
    **{name: f"velodrome.clusters.{name}:LAUNCHER" for name in ("emulated", "ssh", "ray", "slurm", "k8s")},
}
LAUNCHERS = Plugins("velodrome.launchers", "launcher", LauncherType, OURS)


@dataclass(frozen=True)
class Target:
    """What `--on` and `--place` ask for."""

    #: As the user wrote it.
    name: str
    launcher: LauncherType
    options: ClusterOptions

    def __str__(self) -> str:
        return self.name


#: Where a job runs: the text of `--on`, or what it was resolved to.
Where = str | Target


def launchers() -> list[LauncherType]:
    """Every launcher, ours first."""
    return LAUNCHERS.all()


def target_of(where: Where, pins: Mapping[str, str] | None = None) -> Target:
    """The launcher and options that a text of `--on` names; `BadRequest` if there are none, or they are wrong."""
    target = where if isinstance(where, Target) else _read(where)
    return replace(target, options=target.options.pinned(pins)) if pins else target


def _read(where: str) -> Target:
    base, colon, text = where.partition(":")
    launcher: LauncherType | None = LAUNCHERS.get(base)
    if launcher is None:
        if (defined := clusters().get(where)) is None:
            hint = which_name(base, _choices(), "velodrome clusters list")
            raise BadRequest(f"--on {where!r}: no such launcher; {hint}")
        return defined_target(defined)
    if colon and not launcher.inline:
        raise BadRequest(f"--on {where!r}: {base!r} takes no options; write --on {base}")
    if launcher.needs_options and not text.strip(" ,"):
        raise BadRequest(f"--on {where!r}: name its hosts or options, as --on {base}:{launcher.inline}")
    return Target(where, launcher, validated(launcher.options, inline(launcher, text), f"--on {where!r}"))


def inline(launcher: LauncherType, text: str) -> dict[str, object]:
    """The fields that stand behind a launcher's name and a colon; `BadRequest` if they cannot be read."""
    try:
        return launcher.options.inline(text) if text else {}
    except BadRequest as error:
        raise BadRequest(f"--on {launcher.name}: {error}") from None


def defined_target(defined: definitions.Definition) -> Target:
    """The launcher and options of a cluster that a file defines."""
    where = f"cluster {defined.name!r} in {defined.file}"
    launcher = launcher_type(defined.launcher, where)
    return Target(defined.name, launcher, validated(launcher.options, defined.fields, where))


def clusters() -> dict[str, definitions.Definition]:
    """The user's clusters by name; `BadRequest` if one has the name of a launcher."""
    defined = definitions.load()
    for name in LAUNCHERS.names():
        if name in defined:
            raise BadRequest(f"cluster {name!r} in {defined[name].file}: that is the name of a launcher; choose "
                             "another one")
    return defined


def launcher_type(name: str, where: str) -> LauncherType:
    """The launcher of that name; `where` begins the sentence if there is none."""
    launcher: LauncherType | None = LAUNCHERS.get(name)
    if launcher is None:
        raise BadRequest(f"{where}: launcher {name!r} is unknown; {which_name(name, LAUNCHERS.names())}")
    return launcher


def _choices() -> list[str]:
    names = [
        f"{launcher.name}:{launcher.inline}" if launcher.needs_options else launcher.name for launcher in launchers()
    ]
    return [*names, *clusters()]


def launcher_named(where: Where) -> LauncherType:
    """The description of the launcher that `--on` stands for; `BadRequest` if there is none."""
    return target_of(where).launcher


@contextmanager
def open_launcher(where: Where = DEFAULT) -> Iterator[Launcher]:
    """A launcher, closed at the end of the block."""
    target = target_of(where)
    clean_up()
    launcher = target.launcher.launcher(target.options)
    try:
        yield launcher
    finally:
        launcher.close()


def clean_up() -> list[str]:
    """Remove what commands that were killed left behind; the names of what was removed."""
    return [name for launcher in launchers() if launcher.cleaner for name in load(launcher.cleaner)()]


@contextmanager
def open_attached(folder: Path) -> Iterator[Launcher]:
    """The launcher of a run whose hosts live on without a controller; `BadRequest` if there are none.

    They are not touched before the launcher is asked for them, or for their processes.
    """
    queues = _with_record(folder)
    if queues is None:
        names = " or ".join(f"--on {launcher.name}" for launcher in launchers() if launcher.record)
        raise BadRequest(f"run {folder.name!r} has no job to attach to: only those of {names} continue without a "
                         "command")
    launcher = queues.launcher.attached(folder)
    try:
        yield launcher
    finally:
        launcher.close()


def _with_record(folder: Path) -> LauncherType | None:
    """The launcher that has stored in a run's folder how its hosts are found again."""
    recording = (launcher for launcher in launchers() if launcher.record)
    return next((launcher for launcher in recording if (folder / str(launcher.record)).exists()), None)


def living(folder: Path) -> str | None:
    """What still runs of a run although its controller may be gone, such as `Slurm job 7`; None if nothing does."""
    queues = _with_record(folder)
    return None if queues is None else queues.launcher.living(folder)


def refuse_living(folder: Path) -> None:
    """Refuse to start a run again whose processes may still write to its folder."""
    if (job := living(folder)) is not None:
        runs = "" if folder.parent == Path("runs") else f" --runs {shlex.quote(str(folder.parent))}"
        raise BadRequest(f"run {folder.name!r} is still running as {job}: `velodrome attach {folder.name}{runs}` "
                         "takes it over")


def where_of(job: Job, where: Where | None) -> Where:
    """Where a job runs: where the command says, else where the job says, else on this machine."""
    return where if where is not None else job.on if job.on is not None else DEFAULT


class Cluster:
    """Where the jobs of a command run: on the launcher that it asks for, or on those that they name themselves.

    Each is opened once, when it is first needed, and serves everything that the command does.
    """

    def __init__(self, where: Where, stack: ExitStack) -> None:
        self.target = target_of(where)
        self.launcher: Launcher = stack.enter_context(open_launcher(self.target))
        self._stack = stack
        self._others: dict[str, Launcher] = {}

    def of(self, job: Job) -> Launcher:
        """The launcher of a job."""
        return self.launcher if job.on is None else self.named(job.on)

    def named(self, where: str) -> Launcher:
        """The launcher that a name stands for."""
        if where == self.target.name:
            return self.launcher
        if where not in self._others:
            self._others[where] = self._stack.enter_context(open_launcher(where))
        return self._others[where]

    def kind_of(self, job: Job) -> LauncherType:
        """What describes the launcher of a job."""
        return self.target.launcher if job.on is None else launcher_named(job.on)


@contextmanager
def open_cluster(where: Where = DEFAULT) -> Iterator[Cluster]:
    """A cluster; its launchers are closed at the end of the block."""
    with ExitStack() as stack:
        yield Cluster(where, stack)
