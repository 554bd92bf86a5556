"""What engines and strategies describe of themselves: what they need, offer and refuse. No framework here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from velodrome.catalog.exchange import BSP, NONE, SCRIPT, Consistency, Exchange
from velodrome.catalog.options import Option, Request
from velodrome.catalog.world import World

#: The form of a strategy that trains: with the parts that Velodrome replaces, or with the framework's own only.
Kind = Literal["velodrome", "stock"]
#: What became of a framework's development: releases, none for years, or ended by its owners.
Upstream = Literal["maintained", "dormant", "retired"]

#: What examples are: images of bytes, a text, or arrays of numbers (tables among them).
DataKind = Literal["images", "text", "arrays"]


@dataclass(frozen=True)
class Need:
    """A Python module that must be importable, and the command that installs it."""

    module: str
    install: str


MPI_NEEDS = (Need("mpi4py", 'pip install "velodrome[mpi]"'),)


@dataclass(frozen=True)
class Probe:
    """What an interpreter answered when it was asked what it has."""

    #: Path of the interpreter, as it names itself.
    interpreter: str
    #: Its Python version.
    python: str
    #: Those of the modules that were asked for which it can import.
    modules: frozenset[str]
    #: Versions of those of the packages that were asked for which are installed.
    versions: Mapping[str, str]
    #: Those of the modules that were asked for which are folders without code of their own (namespace packages).
    folders: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Implementation:
    """Which parts of a strategy are the framework's and which are Velodrome's, in short phrases."""

    #: What Velodrome does in place of the framework.
    own: tuple[str, ...] = ()
    #: What the framework does.
    framework: tuple[str, ...] = ()
    #: What does the work under `--implementation stock`; empty for a strategy that has no stock form.
    stock: tuple[str, ...] = ()
    #: What of Velodrome's the stock form keeps.
    kept: tuple[str, ...] = ()

    def report(self, kind: Kind, path: str | None = None) -> dict[str, Any]:
        """What a result records: the form that trained, its parts, and the path of the gradients if there are several
        ("shared-memory", "mpi")."""
        own, framework = (self.kept, self.stock) if kind == "stock" else (self.own, self.framework)
        return {"kind": kind, "own": list(own), "framework": list(framework), "path": path}


def nothing_changed(job: Request) -> Mapping[str, Any]:
    return {}


def one_group(job: Request) -> int:
    return 1


@dataclass(frozen=True)
class Strategy:
    """One way in which an engine splits the work of a job over processes."""

    name: str
    description: str
    consistency: Consistency = BSP
    #: Those that `--consistency` may choose from, if there are several; the first is the default.
    consistencies: tuple[Consistency, ...] = ()
    #: Those under which the learning rate stays what it was at the start.
    constant_rate: tuple[Consistency, ...] = ()
    #: Role names in start order. "worker" stands for `workers` processes, "server" for `servers`; any other is one.
    roles: tuple[str, ...] = ("worker",)
    #: True where all workers are logical devices inside one process.
    one_process: bool = False
    #: The largest number of workers that makes sense (1 for `single`).
    max_workers: int | None = None
    #: Asks for something no install command brings ("a TPU"); None if it can run.
    hardware: str | None = None
    needs: tuple[Need, ...] = ()
    #: Whether its engine's own launcher starts servers on the hosts of workers, as Velodrome then does by default.
    servers_beside_workers: bool = False
    #: Roles that listen on a port.
    listens: tuple[str, ...] = ()
    #: How its workers exchange what they computed; None where that is not known.
    exchange: Exchange | None = None
    #: Its options, with their defaults under it.
    options: Mapping[Option[Any], Any] = field(default_factory=dict, hash=False)
    #: What the options of a job become under it; raises `BadRequest` for those that do not go together.
    complete: Callable[[Request], Mapping[str, Any]] = field(default=nothing_changed, hash=False)
    #: What options change about the bytes that are exchanged: arguments of `traffic_of`; None where no formula knows.
    exchanged: Callable[[Request], Mapping[str, Any] | None] = field(default=nothing_changed, hash=False)
    #: The optimizer of a job that names none, where it is not the usual one.
    optimizer: str | None = None
    #: Whether each worker computes a part of a batch; otherwise all compute all of it, each with a part of the model.
    divides_batch: bool = True
    #: Groups of workers, each of which has the whole model: where not each worker computes a part of a batch, each
    #: group does.
    groups: Callable[[Request], int] = field(default=one_group, hash=False)
    #: What each process has only a part of, in short phrases ("weights", "optimizer state"); examples are not meant.
    shards: tuple[str, ...] = ()
    #: Whether several workers end with the weights of one, up to rounding, where the model allows it.
    exact: bool = True
    #: Whether a race with several workers of it also needs one alone, because part of what it gains has nothing to do
    #: with distribution.
    needs_control: bool = False
    #: Why an optimizer of the user's own cannot step under it and what to choose, as part of a sentence; None if it
    #: can.
    no_own_optimizer: str | None = None
    #: Values of `--dtype` that it computes in; None for all that its engine does.
    dtypes: tuple[str, ...] | None = None
    #: Tasks that it cannot train, each with the reason as part of a sentence.
    not_tasks: Mapping[str, str] = field(default_factory=dict, hash=False)
    #: Why a race that varies nothing leaves it out, as part of a sentence; None if it takes part.
    not_raced: str | None = None
    implementation: Implementation = Implementation()

    def with_consistency(self, chosen: Consistency) -> Strategy | None:
        """The same strategy under another of its consistency models, None if it has no such one."""
        models = {known.model for known in (self.consistency, *self.consistencies)}
        return replace(self, consistency=chosen) if chosen.model in models else None

    @property
    def synchronous(self) -> bool:
        """Whether workers go through the steps together; otherwise each updates the weights by itself."""
        return self.consistency.synchronous

    @property
    def keeps_rate(self) -> bool:
        """Whether nothing may change the learning rate in the course of training."""
        return self.consistency.model in {known.model for known in self.constant_rate}

    @property
    def has_servers(self) -> bool:
        return "server" in self.roles

    @property
    def uses_mpi(self) -> bool:
        """Whether its processes are MPI ranks."""
        return MPI_NEEDS[0] in self.needs

    def processes(self, workers: int, servers: int) -> list[tuple[str, int]]:
        """Role and rank of every process of a job, in start order."""
        counts = {"worker": 1 if self.one_process else workers, "server": servers}
        return [(role, rank) for role in self.roles for rank in range(counts.get(role, 1))]

    @property
    def chief(self) -> str:
        """The role whose rank 0 reports the epochs and the result."""
        return "chief" if "chief" in self.roles else "worker"


def single(implementation: Implementation) -> Strategy:
    """The strategy of one process."""
    return Strategy(
        "single", "one process, not distributed: what everything else is measured against",
        consistency=NONE, max_workers=1, exchange="none", implementation=implementation,
    )


#: Stands for data set, strategy and consistency of a job whose script decides them.
SCRIPT_LABEL = "script"
#: What a script of the user's own is to every engine.
OF_SCRIPT = Strategy(
    SCRIPT_LABEL, "your own script: it brings its own distribution", consistency=SCRIPT, roles=("worker", "server"),
    listens=("worker", "server"),
)


#: The variables that a framework, or a user's code written for it, expects in one process of a job. Our own learners
#: read `Context.world` instead.
Environment = Callable[[Strategy, World], Mapping[str, str]]


def no_environment(strategy: Strategy, world: World) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True)
class SourceBuild:
    """A package that is compiled when its environment is made, because no wheel of it fits."""

    requirement: str
    #: Environment variables of the build.
    variables: Mapping[str, str] = field(default_factory=dict)
    #: Options of the C++ compiler that are replaced: sources that are no longer developed name old standards.
    compiler_options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class OwnEnvironment:
    """How `velodrome engines install` makes the environment of an engine whose versions conflict with ours."""

    #: Packages with their exact versions: the name of a file in `catalog/environments`.
    requirements: str
    #: Modules that the finished environment must be able to import.
    modules: tuple[str, ...]
    #: What it costs, as measured: megabytes to download, megabytes on disk, minutes on two cores.
    download_mb: int
    disk_mb: int
    minutes: float
    #: Versions of Python for which the packages exist, best first.
    pythons: tuple[str, ...] = ("3.11",)
    builds: tuple[SourceBuild, ...] = ()


@dataclass(frozen=True)
class Engine:
    """A framework that trains: what it offers and how its processes find one another."""

    name: str
    description: str
    strategies: tuple[Strategy, ...]
    #: Module with `train(context)`, imported only in a worker process.
    worker: str
    #: Bytes of memory that one process takes before data and model, measured.
    memory_bytes: int
    needs: tuple[Need, ...] = ()
    environment: Environment = field(default=no_environment)
    #: Packages whose version goes into the result.
    packages: tuple[str, ...] = ()
    #: Tasks, or sides that several tasks share (`Task.side`), that its worker or `engines/NAME/tasks.py` implements.
    tasks: tuple[str, ...] = ()
    #: The engine whose sides of tasks its worker uses, if they are not its own.
    tasks_of: str | None = None
    #: The models of the zoo that it has, and no other ones; None for all of them and the user's own.
    models: tuple[str, ...] | None = None
    #: Which framework it trains with, for an engine that trains with several; each has an environment of its own.
    framework: str | None = None
    #: Whether its developers still release it.
    upstream: Upstream = "maintained"
    #: How its environment is made, if it cannot share the controller's.
    own_environment: OwnEnvironment | None = None
    #: Fields of a job that it cannot use and that must be left out.
    without: tuple[str, ...] = ()
    #: Values of `--dtype` that it computes in.
    dtypes: tuple[str, ...] = ("float32", "float64", "bfloat16")
    #: Optimizers that it has by name, and whether it takes those of the user's own.
    optimizers: tuple[str, ...] = ("sgd", "momentum", "adam", "adamw")
    own_optimizers: bool = True
    #: Endings of files with weights that it starts from.
    weights_files: tuple[str, ...] = (".safetensors",)
    #: Options of all of its strategies, with their defaults.
    options: Mapping[Option[Any], Any] = field(default_factory=dict, hash=False)
    #: Kinds of data that it trains on.
    takes: tuple[DataKind, ...] = ("images", "text", "arrays")
    #: The engine that writes its models as ONNX, for one that does not do so itself: it has the same networks, and
    #: their weights have the same names there.
    exported_by: str | None = None
    #: Whether processes may be forked from one that has imported it.
    forks: bool = True
    #: Whether its processes can reach each other at IPv6 addresses.
    ipv6: bool = True

    @property
    def key(self) -> str:
        """Its name, with the framework if there are several: what its environment is called."""
        return self.name if self.framework is None else f"{self.name}-{self.framework}"

    @property
    def title(self) -> str:
        """What sentences call it."""
        return f"engine {self.name}" + ("" if self.framework is None else f" with --framework {self.framework}")

    @property
    def install_command(self) -> str:
        """The command that makes its environment."""
        framework = "" if self.framework is None else f" --framework {self.framework}"
        return f"velodrome engines install {self.name}{framework}"

    def missing(self, strategy: Strategy, probe: Probe) -> list[str]:
        """What keeps a strategy from running in the probed interpreter, each as a sentence that says how to fix it."""
        if strategy.hardware:
            return [f"needs {strategy.hardware}"]
        return [
            f"Python module {need.module!r} is not installed: {need.install}"
            for need in (*self.needs, *strategy.needs)
            if need.module not in probe.modules
        ]
