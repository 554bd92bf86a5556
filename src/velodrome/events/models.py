"""Every event that a training process or the controller reports: one model per kind, and their union `Event`.

The descriptions are the reference (docs/reference/events.md is generated from them).
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field

from velodrome.events.fields import (
    NOT_NULL,
    Amount,
    Count,
    Counts,
    CpuTime,
    DataRecord,
    Division,
    FaultBase,
    HistoryRow,
    Implementation,
    Layer,
    Measured,
    MetricDefinition,
    Network,
    Number,
    Positive,
    Record,
)

Phase = Literal["import", "connect", "data", "build", "train", "evaluate", "save", "script"]
PHASES: tuple[str, ...] = get_args(Phase)

#: Why a process ends early. `request`: the job cannot be done as requested (exit code 2). `user`: the user's own code
#: raised. `peer`: another process of the job went away, so this one is not the cause. `port`: retry on another port.
Cause = Literal["request", "user", "peer", "port", "engine"]


class EventBase(Record):
    """What every event has."""

    time: Number = Field(description="Unix seconds, by the clock of the process's own host")
    role: str | None = Field(None, description="role of the process: worker, server, chief …; null for the controller")
    rank: Count | None = Field(None, description="rank of the process within its role, counted from 0")
    received: Annotated[Number | None, NOT_NULL] = Field(
        None, description="Unix seconds, by the controller's clock, when the controller read the event"
    )

    @property
    def controller_time(self) -> float:
        """When it happened by the controller's clock, as closely as known: hosts may have other clocks."""
        return self.time if self.received is None else self.received


class HelloEvent(EventBase):
    """First event of every process: where it runs and what it runs on."""

    kind: Literal["hello"]
    host: str = Field(description="host name")
    clock: Number = Field(description="Unix seconds by the host's clock, to compare with `received`")
    interpreter: str = Field(description="path of the Python interpreter")
    python: str = Field(description="version of Python")
    versions: dict[str, str] = Field(description="versions of the packages that take part, by name")
    cores: Count = Field(description="cores that the process may use")
    memory_bytes: Count = Field(description="memory of the host")
    gpus: list[str] = Field(default_factory=list, description="names of the GPUs that the process sees")
    heartbeat_seconds: Annotated[Amount | None, NOT_NULL] = Field(
        None, description="seconds from now to the first `resources` event, and between two; 0 if none will come"
    )
    machine: Annotated[str | None, NOT_NULL] = Field(
        None, description="identifies the running kernel: hosts of one machine, such as emulated ones, share its cores"
    )
    schema_version: Annotated[Count | None, NOT_NULL] = Field(
        None, alias="schema", description="version of the event schema that the process writes"
    )


class PhaseEvent(EventBase):
    """A phase of the work begins or ends."""

    kind: Literal["phase"]
    phase: Phase = Field(description="import, connect, data, build, train, evaluate or save; "
                         "script for all that a script of your own does")
    state: Literal["begin", "end"] = Field(description="begin or end")
    seconds: Annotated[Amount | None, NOT_NULL] = Field(None, description="how long the phase took (when it ends)")
    epoch: Annotated[Positive | None, NOT_NULL] = Field(None, description="the epoch it belongs to, if any")
    part: Annotated[Literal["validation", "test"] | None, NOT_NULL] = Field(
        None, description="what is evaluated: validation or test"
    )


class DataEvent(DataRecord, EventBase):
    """What the chief loaded: runs are compared only if their data are the same."""

    kind: Literal["data"]


class ProgressEvent(EventBase):
    """Training progress; a few times a second."""

    kind: Literal["progress"]
    epoch: Positive = Field(description="counted from 1")
    step: Count = Field(description="steps done in this epoch")
    steps: Count = Field(description="steps of this epoch in total; 0 if that is not known")
    examples: Count = Field(description="examples trained on in this epoch, by all workers")
    seconds: Amount = Field(description="since the epoch began")
    loss: Number | None = Field(None, description="mean over this process's examples since its previous progress event")
    accuracy: Number | None = Field(None, description="accuracy over the same examples; null where a task has none")
    metrics: dict[str, Number | None] = Field(
        default_factory=dict, description="all metrics of the task over the same examples, by name"
    )
    learning_rate: Annotated[Number | None, NOT_NULL] = Field(
        None, description="of the last step; for your own optimizer, the factor applied to its rate"
    )
    total_steps: Annotated[Positive | None, NOT_NULL] = Field(
        None, description="steps of the whole training, if a script of your own reports them"
    )
    total_epochs: Annotated[Positive | None, NOT_NULL] = Field(
        None, description="epochs of the whole training, if a script of your own reports them"
    )


class EpochEvent(EventBase):
    """End of an epoch, reported by the chief. Counts are sums over all workers, each example once."""

    kind: Literal["epoch"]
    epoch: Positive = Field(description="counted from 1")
    seconds: Amount = Field(description="training time")
    evaluate_seconds: Amount = Field(description="validation time")
    steps: Count = Field(description="steps since the job began")
    train: Counts = Field(description="counts over the epoch's training examples, as they were trained on")
    validation: Counts = Field(description="counts over the validation set")
    learning_rate: Annotated[Number | None, NOT_NULL] = Field(
        None, description="of the epoch's last step; for your own optimizer, the factor applied to its rate"
    )


class ResourcesEvent(EventBase):
    """Heartbeat of a process, every second."""

    kind: Literal["resources"]
    cpu_percent: Amount = Field(
        description="per cent of one core, so two busy threads are 200; waiting for a peer may count as busy"
    )
    memory_bytes: Count = Field(description="resident memory of the process")
    resources: dict[str, Amount] = Field(
        default_factory=dict, description="other measurements of the process, by name; none so far"
    )
    network: Network = Field(description="bytes that the *host* exchanged since the previous heartbeat")
    steps: Count = Field(0, description="training steps done so far")
    seen: Count = Field(0, description="batches evaluated so far")
    waiting: bool = Field(False, description="whether the process is in a call that waits for others")
    cpu_time: Annotated[CpuTime | None, NOT_NULL] = Field(
        None, description="core-seconds of the host and of this process since the previous heartbeat, where the system "
        "counts them"
    )

    def values(self) -> dict[str, float]:
        """The value of each resource that was measured, by name."""
        return {"cpu_percent": self.cpu_percent, "memory_bytes": self.memory_bytes, **self.resources}


class StalenessEvent(EventBase):
    """Age, in updates, of the weights from which an asynchronous strategy computed its gradients."""

    kind: Literal["staleness"]
    epoch: Annotated[Positive | None, NOT_NULL] = Field(None, description="counted from 1")
    mean: Measured = Field(description="over the updates since the previous staleness event")
    max: Measured = Field(description="largest staleness among them")
    updates: Annotated[Count | None, NOT_NULL] = Field(None, description="number of updates")
    ages: dict[str, Count] = Field(default_factory=dict, description="number of updates by their staleness, if known")
    lead: Annotated[Count | None, NOT_NULL] = Field(
        None, description="the most steps that a worker was ahead of the slowest when it began one, if known"
    )


class SharesEvent(EventBase):
    """Time that a process trained and the part of it spent in collectives, where the engine exposes it."""

    kind: Literal["shares"]
    train_seconds: Amount = Field(description="training time")
    collective_seconds: Amount = Field(description="time of these in calls that exchange gradients")
    waited_seconds: Annotated[Amount | None, NOT_NULL] = Field(
        None, description="time of the latter in which it waited for other workers, where that is measured"
    )


class CheckpointEvent(EventBase):
    """A checkpoint has been written completely."""

    kind: Literal["checkpoint"]
    epoch: Positive = Field(description="the epoch after which it was written")
    file: str = Field(description="its name in `checkpoints/`")


class WarningEvent(EventBase):
    """Something a person should know; the run continues."""

    kind: Literal["warning"]
    message: str = Field(description="one sentence")


class ErrorEvent(EventBase):
    """The process ends early."""

    kind: Literal["error"]
    cause: str = Field(
        "engine",
        description="request (the job cannot be done as requested), user (your code raised), peer (another process "
        "went away), port (it is in use) or engine",
    )
    message: str = Field(description="one sentence")
    traceback: str | None = Field(None, description="from the first line of your own code on, if it was involved")


class Warmup(Record):
    """The first steps of training, which throughput leaves out."""

    steps: Count = Field(description="number of steps")
    examples: Count = Field(description="examples trained on")
    seconds: Amount = Field(description="training time")


class Pace(Record):
    """Training alone, from which throughput is computed."""

    seconds: Amount = Field(description="training time")
    examples: Count = Field(description="examples trained on, by all workers")
    steps: Count = Field(0, description="number of steps")
    warmup: Warmup = Field(description="the first steps, included in the above")


class PaceEvent(EventBase):
    """How fast one process of a script of your own trained, by what it reported; at the end of the script."""

    kind: Literal["pace"]
    pace: Pace = Field(description="training alone, and its warm-up: of this process only")


class InspectionEvent(EventBase):
    """What a step takes, as `velodrome check` measured it."""

    kind: Literal["inspection"]
    layers: list[Layer] = Field(description="in the order in which they are called")
    batch: Positive = Field(description="examples of the step")
    seconds: Amount = Field(description="duration of an undisturbed step")
    weight_bytes: Count = Field(description="of all weights, and of buffers where the engine counts them")
    gradient_bytes: Count = Field(description="of the gradients, which is what synchronous workers exchange")
    optimizer_bytes: Count | None = Field(None, description="of the optimizer's state; null if the engine cannot tell")
    activation_bytes: Count | None = Field(None, description="kept by the forward pass for the backward pass")
    data_bytes: Count = Field(description="of the examples in memory")
    mapped_bytes: Count = Field(0, description="of the examples that stay on disk and are mapped")
    divisions: list[Division] = Field(
        default_factory=list, description="what strategies that divide the model would do with it"
    )


class ResultEvent(EventBase):
    """The job is done, reported by the chief."""

    kind: Literal["result"]
    test: Counts = Field(description="counts over the test set")
    test_answers: str | None = Field(
        None, description="which test examples were classified correctly, encoded as in result.json; null where no "
        "answer is right or wrong"
    )
    test_fingerprint: str | None = Field(None, description="equal for equal test sets; null as above")
    history: list[HistoryRow] = Field(description="one row per epoch, as in result.json")
    parameters: Count | None = Field(description="trainable parameters of the model; null for a script of your own")
    confusion: list[list[Count]] | None = Field(
        None, description="confusion matrix over the test set: rows are true classes, columns predicted ones; "
        "null if not counted"
    )
    class_names: list[str] = Field(
        default_factory=list, description="names of the classes in the order of `confusion`; empty if they have none"
    )
    steps: Count | None = Field(description="training steps in total; null if a script of your own did not report them")
    reached_target: Annotated[bool | None, NOT_NULL] = Field(None, description="whether the target ended training")
    test_seconds: Amount = Field(0.0, description="duration of the evaluation on the test set")
    pace: Pace = Field(description="training alone, and its warm-up")
    implementation: Implementation | None = Field(
        None, description="how the strategy was implemented, if the engine reports it"
    )
    pixels: str | None = Field(
        None, description="pixel values that were fed to the model: unit, byte or standardize; null for a text"
    )
    metrics: list[MetricDefinition] = Field(
        default_factory=list,
        description="the metrics of your own task, the deciding one first; empty for tasks that come with "
                    "Velodrome"
    )


class LostEvent(EventBase):
    """With `--keep-going`, a parameter-server run continues without a worker."""

    kind: Literal["lost"]
    message: str = Field(description="one sentence")


class WaitEvent(EventBase):
    """What the controller waits for before it can start processes, such as the nodes of a queue."""

    kind: Literal["wait"]
    message: str = Field(description="one sentence")


class FaultEvent(FaultBase, EventBase):
    """Something is broken on purpose (`--fault`), or is whole again."""

    kind: Literal["fault"]
    state: Literal["begin", "end"] = Field(description="begin or end")


class TrafficEvent(EventBase):
    """What a host exchanged during the run by the counters of its own network, at the end of the run."""

    kind: Literal["traffic"]
    host: str = Field(description="host name")
    network: Network = Field(description="bytes since the run's processes were started")


Event = Annotated[
    HelloEvent | PhaseEvent | DataEvent | ProgressEvent | EpochEvent | ResourcesEvent | StalenessEvent | SharesEvent
    | CheckpointEvent | WarningEvent | ErrorEvent | PaceEvent | InspectionEvent | ResultEvent | LostEvent
    | FaultEvent | TrafficEvent | WaitEvent,
    Field(discriminator="kind"),
]
Kind = Literal[
    "hello", "phase", "data", "progress", "epoch", "resources", "staleness", "shares", "checkpoint", "warning", "error",
    "pace", "inspection", "result", "lost", "fault", "traffic", "wait",
]
KINDS: tuple[str, ...] = get_args(Kind)
#: The model of each kind.
MODELS: dict[str, type[EventBase]] = {
    get_args(model.model_fields["kind"].annotation)[0]: model for model in get_args(get_args(Event)[0])
}
