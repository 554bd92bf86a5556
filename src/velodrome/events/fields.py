"""The base of every record that crosses a process or file boundary, and the kinds of numbers such records hold.

Reading is strict about types and lenient about names: an unknown field was written by a newer version and is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

#: Version of the events and of the result. Raised when a field changes its meaning or goes away; readers accept every
#: version up to this one, and a record without a version is from before versions were written (0).
SCHEMA_VERSION = 1

#: The largest whole number of a record: more is no measurement, and a float, a table or a date cannot hold it.
LARGEST_INT = 2**63 - 1

Number = Annotated[float, Field(allow_inf_nan=False)]
#: A measured quantity that cannot be negative: seconds, rates, per cent.
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
#: The same of one run, in seconds, bytes or per second: no run measures more, and statistics could not count with it.
Measured = Annotated[float, Field(ge=0, le=1e18, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=LARGEST_INT)]
#: A number that starts at 1, such as an epoch.
Positive = Annotated[int, Field(ge=1, le=LARGEST_INT)]


def _refuse_null(value: Any) -> Any:
    if value is None:
        raise PydanticCustomError("null", "null")
    return value


#: Marks a field that may be missing (None in Python) and, if it is there, is not null.
NOT_NULL = BeforeValidator(_refuse_null)


class Record(BaseModel):
    """An immutable record with strictly typed fields; unknown fields are kept."""

    # Validators are built when first used: a command that shows no run, or a worker, pays for few of them.
    model_config = ConfigDict(
        extra="allow", strict=True, frozen=True, populate_by_name=True, protected_namespaces=(), defer_build=True
    )

    def as_json(self) -> dict[str, Any]:
        """Return the fields that were set, as plain JSON values."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


class Scores(Record):
    """A record that holds metrics of any name beside its own fields."""

    def value(self, name: str) -> float | None:
        """Return a metric by its name, whatever else that may mean in Python; None if it is not there."""
        fields = self.__dict__  # not getattr: a metric may be called as a method is
        value = fields[name] if name in fields else (self.model_extra or {}).get(name)
        return value if isinstance(value, int | float) else None


class Counts(Record):
    """Sums over examples, which add up exactly over workers."""

    correct: Count | None = Field(None, description="examples predicted correctly; null where a task has no such count")
    total: Count = Field(description="examples; words of a text")
    loss_sum: Number | None = Field(
        description="sum of their losses; null if it is not finite, and for a script of your own"
    )
    reported: Annotated[dict[str, Number | None] | None, NOT_NULL] = Field(
        None, description="for your own script: its figures by name, as it reported them; `total` is 0 if it did not "
                          "report how many examples they are based on"
    )
    metrics: Annotated[dict[str, Number | None] | None, NOT_NULL] = Field(
        None, description="for your own task: metrics by name, the deciding one first; its counts are stored beside "
                          "them, because only your task can compute metrics from counts"
    )

    @model_validator(mode="after")
    def _correct_within_total(self) -> Counts:
        if self.correct is not None and self.correct > self.total:
            raise ValueError(f"correct ({self.correct}) exceeds total ({self.total})")
        return self


class MetricDefinition(Record):
    """A metric of a task that only a training process knows."""

    name: str = Field(description="its name in counts and history")
    better: Literal["more", "less"] = Field(description="`more` or `less`")
    form: Annotated[str, Field(pattern=r"^,?(\.\d{1,2})?[efg%]?$")] = Field(
        ".4g", description="Python format specification, such as `.5f`"
    )
    margin: Measured = Field(0.0, description="models this close to the best count as equally good")
    relative_margin: bool = Field(False, description="whether the margin is a fraction of the best value")


class Network(Record):
    """Bytes that a host exchanged."""

    inbound: Count = Field(alias="in", description="bytes received, without loopback")
    out: Count = Field(description="bytes sent, without loopback")
    loopback: Count = Field(description="bytes over the loopback interface")


class DataRecord(Record):
    """What a run was trained and tested on."""

    train: Count = Field(description="training examples; of a text, its words")
    validation: Count = Field(description="validation examples")
    test: Count = Field(description="test examples")
    fingerprint: Annotated[str | None, NOT_NULL] = Field(
        None, description="hash of the content of all examples, whatever their order and split; for examples that are "
        "computed on demand, of their number and shape"
    )
    seeded: bool = Field(
        False, description="whether your own function made the examples, which may then differ between seeds"
    )


class FaultBase(Record):
    """What is broken on purpose."""

    fault: str = Field(description="as requested")
    action: str = Field(description="kill, pause, partition or slow")
    target: str = Field(description="the process or host that was named")
    host: str = Field(description="the affected host, or the one that the process runs on")
    factor: Annotated[Measured | None, NOT_NULL] = Field(None, description="how many times slower")


@dataclass(frozen=True)
class Resource:
    """A quantity that every heartbeat measures of its process: `training/sampler.py` reads it.

    From its entry here follow the fields of events and results, its column in tables, its curves and its scalars.
    """

    name: str
    title: str
    unit: str
    form: str
    #: Values are divided by this for display.
    scale: float = 1.0

    @property
    def label(self) -> str:
        """`CPU (% of a core)`."""
        return f"{self.title} ({self.unit})" if self.unit else self.title


CPU = Resource("cpu_percent", "CPU", "% of a core", ",.0f")
MEMORY = Resource("memory_bytes", "memory", "MiB", ",.0f", 2.0**20)
#: Those that are fields of events and results by themselves; all others are in their field `resources`.
OWN_FIELDS = (CPU, MEMORY)
RESOURCES: tuple[Resource, ...] = (*OWN_FIELDS,)

Value = TypeVar("Value")


def resource_fields(values: Mapping[str, Value]) -> dict[str, Any]:
    """Fields of an event, or of a process in a result, from a value for each of `RESOURCES`."""
    own = {resource.name: values[resource.name] for resource in OWN_FIELDS}
    more = {name: value for name, value in values.items() if name not in own}
    return own | ({"resources": more} if more else {})


class Spread(Record):
    """Mean, minimum and maximum over the samples of a process; null without a sample."""

    mean: Measured | None = None
    min: Measured | None = None
    max: Measured | None = None


class CountSpread(Spread):
    """The same of a whole number."""

    min: Count | None = None
    max: Count | None = None


class CpuTime(Record):
    """Core-seconds since the previous heartbeat; two cores that are busy for a second are 2."""

    seconds: Amount = Field(description="length of the interval")
    busy: Amount = Field(description="of the cores that the job may use, whoever used them")
    own: Amount = Field(description="of these, by this process and its children; waiting for a peer may count")
    controller: Amount = Field(description="of these, by the controller, if it runs on the same host")


class HistoryRow(Scores):
    """One epoch of a run. Whatever else it holds is a metric of the run's task."""

    __pydantic_extra__: dict[str, Number | None]

    train_perplexity: Number | None = Field(None, description="language models only: over the words trained on")
    validation_perplexity: Number | None = Field(None, description="language models only: over the validation text")
    epoch: Positive = Field(description="counted from 1")
    train_accuracy: Number | None = Field(
        None, description="over the epoch's training examples as they were trained on, while the weights changed"
    )
    validation_accuracy: Number | None = Field(
        None, description="over the validation set at the end of the epoch; null with `--validation 0`"
    )
    train_loss: Number | None = Field(None, description="mean loss over the epoch's training examples")
    validation_loss: Number | None = Field(None, description="mean loss over the validation set")
    learning_rate: Annotated[Number | None, NOT_NULL] = Field(
        None, description="of the epoch's last step; for your own optimizer, the factor applied to its rate"
    )
    seconds: Measured = Field(description="training time, without validation")
    evaluate_seconds: Measured = Field(description="validation time")


class Implementation(Record):
    """Which parts of a strategy are the framework's own and which are Velodrome's."""

    kind: str = Field(description="`velodrome` (some parts replaced) or `stock` (the framework's own parts only)")
    own: list[str] = Field(default_factory=list, description="the parts that are Velodrome's")
    framework: list[str] = Field(default_factory=list, description="the parts that are the framework's")
    path: str | None = Field(None, description="what carried gradients, e.g. `shared-memory` or `mpi`")


class Layer(Record):
    """One layer of a model in a step of `velodrome check`."""

    name: str = Field(description="its place in the model; in brackets for what belongs to no layer")
    kind: str = Field("", description="its class")
    shape: list[Count] = Field(default_factory=list, description="shape of its first output; empty if it has none")
    parameters: Count = Field(0, description="parameters that it has itself, trained or not")
    seconds: Amount = Field(0.0, description="time in the step, forward and backward, without layers inside it")


class Division(Record):
    """A strategy that divides the model, as it would divide this one."""

    strategy: str = Field(description="its name")
    workers: Positive = Field(description="over how many")
    bytes: Count | None = Field(None, description="sent per step by the worker that sends most; null if refused")
    formula: str = Field("", description="what these bytes are")
    refused: str | None = Field(None, description="why it would refuse the model; null if it would not")
