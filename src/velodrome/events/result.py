"""The result of a run: what result.json holds, `velodrome train --json` prints and `velodrome.train` returns.

The descriptions are the reference (docs/reference/run-folder.md is generated from them).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from velodrome.events.fields import (
    NOT_NULL,
    Count,
    CountSpread,
    DataRecord,
    FaultBase,
    HistoryRow,
    Implementation,
    Measured,
    MetricDefinition,
    Network,
    Number,
    Positive,
    Record,
    Scores,
    Spread,
)


class TestScore(Scores):
    """How well the trained model does on the whole test set: metrics of its task, and what they were counted from."""

    __pydantic_extra__: dict[str, Number | None]

    perplexity: Number | None = Field(
        None, description="language models only: exp of the loss per word; accuracy and correct are null then"
    )
    accuracy: Number | None = Field(None, description="correct / total")
    loss: Number | None = Field(None, description="mean loss")
    correct: Count | None = Field(None, description="examples classified correctly")
    total: Annotated[Positive | None, NOT_NULL] = Field(
        None, description="examples in the test set; words of a text; missing if a script of your own did not report it"
    )
    answers: Annotated[str | None, NOT_NULL] = Field(
        None, description="which examples were classified correctly, in the order of the test set: one bit each "
                          "(`numpy.packbits`), compressed by zlib, in base64; missing for language models"
    )
    fingerprint: Annotated[str | None, NOT_NULL] = Field(
        None, description="hash of the test set's labels and some of its images: runs with the same one are compared "
                          "example by example"
    )

    @model_validator(mode="after")
    def _correct_within_total(self) -> TestScore:
        if self.correct is not None and self.total is not None and self.correct > self.total:
            raise ValueError(f"correct ({self.correct}) exceeds total ({self.total})")
        return self


class Seconds(Record):
    """Wall-clock seconds as the controller saw them."""

    startup: Measured = Field(description="from the start to the first training step: importing, connecting, building")
    train: Measured | None = Field(
        description="training, without start-up and evaluation; null if a script of your own reported nothing"
    )
    evaluate: Measured | None = Field(description="validation and test; null as above")
    total: Measured = Field(description="from start to end")


class Throughput(Record):
    """Speed of the training phase alone."""

    examples_per_second: Measured | None = Field(description="of all workers together, without the warm-up steps")
    batches_per_second: Measured | None = Field(
        description="the same divided by `batch_of_step` (for a language model, by the words of a step)"
    )
    warmup_steps: Count = Field(0, description="number of first steps that are left out")


class Node(Record):
    """One process of the job."""

    role: str = Field(description="worker, server or chief")
    rank: Count = Field(description="counted from 0 within the role")
    host: str = Field(description="address of its host")
    cpu_percent: Spread = Field(
        description="mean, min and max over the samples, in per cent of one core; null without a sample"
    )
    memory_bytes: CountSpread = Field(description="mean, min and max of resident memory")
    resources: dict[str, Spread] = Field(
        default_factory=dict, description="other measurements of it, by name, in the same form; none so far"
    )
    network_bytes: Network = Field(
        description="in, out and loopback bytes of the process's *host* while the process lived"
    )
    phases: dict[str, Measured] = Field(default_factory=dict, description="seconds spent in each phase")

    def mean(self, resource: str) -> float | None:
        """The mean of a resource over the samples; None if it was not measured."""
        own = {"cpu_percent": self.cpu_percent, "memory_bytes": self.memory_bytes}
        spread = own.get(resource) or self.resources.get(resource)
        return None if spread is None else spread.mean


class HostCpu(Record):
    """How many of a host's cores were in use, on average, while all of the run's processes on it were alive."""

    busy: Measured = Field(description="cores in use, whoever used them")
    own: Measured = Field(description="cores in use by the run's processes and their controller")
    foreign: Measured = Field(description="cores in use by other programs")
    seconds: Measured = Field(description="length of the time that this was measured over")


class Host(Record):
    """One host that took part, as the first process on it reported it."""

    hostname: str = Field(description="host name")
    interpreter: str = Field(description="path of the Python interpreter")
    python: str | None = Field(None, description="version of Python")
    versions: dict[str, str] = Field(description="versions of the packages that took part, by name")
    cores: Count = Field(description="cores that a process may use")
    memory_bytes: Count = Field(description="memory of the host")
    gpus: list[str] = Field(default_factory=list, description="names of the GPUs")
    cpu: Annotated[HostCpu | None, NOT_NULL] = Field(
        None, description="cores in use by the run and by other programs, where the system counts them"
    )
    network_bytes: Annotated[Network | None, NOT_NULL] = Field(
        None, description="in, out and loopback bytes of the host during the run, from its own network counters, "
                          "where the launcher reads them (emulated hosts)"
    )


class FaultRecord(FaultBase):
    """Something that was broken on purpose during a run."""

    start: Measured = Field(description="seconds since the run began")
    end: Measured | None = Field(None, description="seconds since the run began; null if it lasted until the end")


class Machine(Record):
    """The controller's machine."""

    processor: str
    cores: Count
    memory_bytes: Count
    system: str


class Staleness(Record):
    """Age of the weights, in updates, from which gradients were computed."""

    mean: Measured = Field(description="over the updates")
    max: Measured = Field(description="the largest")
    ages: dict[str, Count] = Field(default_factory=dict, description="number of updates by their age, if known")
    lead: Annotated[Count | None, NOT_NULL] = Field(
        None, description="the most steps that a worker was ahead of the slowest when it began one, if known"
    )


class Shares(Record):
    """How training time divides."""

    compute: Measured
    wait: Measured
    communicate: Measured


class RunError(Record):
    """Which process ended the run, and why."""

    message: str = Field(description="one sentence")
    role: Annotated[str | None, NOT_NULL] = Field(None, description="role of the process that is the cause, if one is")
    rank: Annotated[Count | None, NOT_NULL] = Field(None, description="its rank")
    host: Annotated[str | None, NOT_NULL] = Field(None, description="its host")
    cause: str = Field(
        "engine", description="request, user, peer, port, engine, exit, start, stall, disk, controller, interrupt, or "
        "beaten (ended early: it could not win its race any more)"
    )
    traceback: Annotated[str | None, NOT_NULL] = Field(None, description="of your own code, if it raised")
    stack: Annotated[str | None, NOT_NULL] = Field(None, description="of the process that stopped making progress")


class Link(Record):
    """The network between two emulated hosts."""

    bandwidth: Measured | None = Field(None, description="bits per second")
    latency: Measured | None = Field(None, description="seconds, one way")
    round_trip: Measured | None = Field(None, description="seconds, there and back")


class ClusterHost(Record):
    """A host as its launcher described it."""

    cores: Count = Field(description="cores that a process may use")


class Cluster(Record):
    """What the launcher knows about the hosts."""

    hosts: dict[str, ClusterHost] = Field(default_factory=dict, description="by address")
    asked: Link | None = Field(None, description="of an emulated cluster: as requested")
    measured: Link | None = Field(None, description="of an emulated cluster: between two of its nodes")
    accuracy: dict[str, Number | None] | None = Field(None, description="measured divided by asked")
    made_by: dict[str, str | None] | None = Field(None, description="what emulates each of them")


class RunResult(Record):
    """How a run ended."""

    schema_version: Count = Field(
        0, alias="schema", description="version of this schema; missing (0) in results of version 0.1"
    )
    run: str = Field(description="name of the run")
    path: str = Field(description="its folder")
    status: Literal["finished", "failed", "interrupted"] = Field(description="finished, failed or interrupted")
    task: Annotated[str | None, NOT_NULL] = Field(
        None, description="what is learned, e.g. `classification`, `regression` or `module:Class` of your own"
    )
    metrics: Annotated[list[MetricDefinition] | None, NOT_NULL] = Field(
        None, description="the metrics of your own task, the deciding one first; missing for those that come "
        "with Velodrome"
    )
    dataset: str = Field(description="as requested")
    data: Annotated[DataRecord | None, NOT_NULL] = Field(
        None, description="what was loaded of the data set: runs in which it differs are not compared; missing for "
                          "your own script, for a run that ended before loading, and in results of earlier versions"
    )
    model: str = Field(description="as requested")
    engine: str = Field(description="as requested")
    strategy: str = Field(description="as requested")
    script: Annotated[str | None, NOT_NULL] = Field(
        None, description="path of the script of your own that ran, as requested; missing for other runs. Data set, "
        "strategy and consistency are `script` then, and the model is the script"
    )
    not_reported: Annotated[list[str] | None, NOT_NULL] = Field(
        None, description="what the script did not report, as sentences; missing for other runs"
    )
    consistency: Annotated[str | None, NOT_NULL] = Field(
        None, description="of the strategy: none, bsp (workers wait for one another at each step) or asp (they do not)"
    )
    implementation: Annotated[Implementation | None, NOT_NULL] = Field(
        None, description="how the strategy was implemented, if the engine reported it"
    )
    launcher: Annotated[str | None, NOT_NULL] = Field(None, description="what started the processes, e.g. `local`")
    cluster: Annotated[Cluster | None, NOT_NULL] = Field(
        None, description="what the launcher knows about the hosts; of an emulated cluster, what was `asked` for, what "
        "it is `made_by`, the bandwidth (bits per second), round-trip time and latency (seconds) `measured` between "
        "two nodes, and their `accuracy`: measured divided by asked"
    )
    workers: Positive = Field(description="as requested")
    servers: Count = Field(description="parameter servers")
    batch_size: Annotated[Positive | None, NOT_NULL] = Field(
        None, description="as requested; missing for a script of your own, as all that it decides itself"
    )
    batch_scope: Annotated[Literal["global", "per-worker"] | None, NOT_NULL] = Field(
        None, description="global or per-worker"
    )
    batch_of_step: Annotated[Positive | None, NOT_NULL] = Field(
        None, description="examples behind one update of the weights"
    )
    epochs: Count = Field(
        description="epochs trained, fewer than requested if a target or `--steps` ended training"
    )
    optimizer: Annotated[str | None, NOT_NULL] = Field(None, description="as requested")
    learning_rate: Annotated[Number | None, NOT_NULL] = Field(
        None, description="as requested, or the optimizer's default; missing for an optimizer of your own"
    )
    effective_rate: Annotated[Number | None, NOT_NULL] = Field(
        None, description="the learning rate after `--scale-rate`, before any schedule"
    )
    pixels: Annotated[str | None, NOT_NULL] = Field(
        None, description="pixel values that were fed to the model: unit, byte or standardize; missing for a text, and "
        "if the run did not finish"
    )
    seed: Annotated[Count | None, NOT_NULL] = Field(None, description="as requested")
    target: str | None = Field(None, description="as requested")
    reached_target: bool | None = Field(None, description="whether the target ended training")
    steps: Count | None = Field(None, description="training steps in total")
    parameters: Count | None = Field(None, description="trainable parameters of the model")
    test: TestScore | None = Field(
        description="over the whole test set, each example once; null if the run did not get that far"
    )
    history: list[HistoryRow] = Field(description="one row per epoch")
    seconds: Seconds = Field(description="wall-clock seconds as the controller saw them")
    throughput: Throughput = Field(description="of the training phase alone")
    nodes: list[Node] = Field(description="one entry per process")
    hosts: list[Host] = Field(default_factory=list, description="one entry per host that took part")
    versions: dict[str, str] = Field(description="of velodrome, Python, numpy and the engine's packages")
    machine: Annotated[Machine | None, NOT_NULL] = Field(
        None, description="of the controller: processor, cores it may use, memory_bytes and system"
    )
    started: Number = Field(description="Unix seconds")
    ended: Number = Field(description="Unix seconds")
    shares: Annotated[Shares | None, NOT_NULL] = Field(
        None, description="of training time over all processes: compute, wait and communicate, where the engine "
        "exposes it"
    )
    confusion: Annotated[list[list[Count]] | None, NOT_NULL] = Field(
        None, description="confusion matrix over the test set, if it was counted: rows are true classes, columns "
        "predicted ones"
    )
    class_names: Annotated[list[str] | None, NOT_NULL] = Field(
        None, description="names of the classes in the order of `confusion`; empty if they have none"
    )
    staleness: Annotated[Staleness | None, NOT_NULL] = Field(
        None, description="mean and max, if the strategy reported it"
    )
    faults: Annotated[list[FaultRecord] | None, NOT_NULL] = Field(
        None, description="injected faults (`--fault`), in the order in which they happened; missing if there were none"
    )
    warnings: Annotated[list[str] | None, NOT_NULL] = Field(
        None, description="what the run warned of, each sentence once; missing if there was nothing"
    )
    error: Annotated[RunError | None, NOT_NULL] = Field(
        None, description="only if the run did not finish: which process ended it, and why"
    )

    @model_validator(mode="after")
    def _only_a_script_leaves_out(self) -> RunResult:
        """What is not known of a script is known of every other run."""
        needed = {
            "'batch_size'": self.batch_size, "'batch_scope'": self.batch_scope, "'seconds.train'": self.seconds.train,
            "'seconds.evaluate'": self.seconds.evaluate, "'test.total'": self.test is None or self.test.total,
        }
        if self.script is None and (missing := [name for name, value in needed.items() if value is None]):
            raise PydanticCustomError("missing_of_run", "has no {name}", {"name": missing[0]})
        return self
