"""A job: one training run as requested. Only what a user may choose lives here; what follows from it is the plan's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    ValidationError,
    create_model,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import InitErrorDetails, PydanticCustomError

from velodrome.catalog.exchange import Consistency
from velodrome.catalog.models import MODEL_NAMES
from velodrome.catalog.options import Positive, parses, placed
from velodrome.catalog.registry import DEFAULT_ENGINE, consistencies, frameworks, options
from velodrome.errors import BadRequest, which_name
from velodrome.job.optimization import Optimization
from velodrome.job.values import Target, in_words, parse_fault

BatchScope = Literal["global", "per-worker"]
Sharding = Literal["auto", "file", "data", "off"]
Pixels = Literal["auto", "unit", "byte", "standardize"]
#: Workers and servers that a job may have, each: plans, names and lists have an entry for every one.
MOST_PROCESSES = 65_536
#: Characters of a script's arguments: splitting them takes time that grows with the square of their length.
LONGEST_ARGUMENTS = 20_000


class Job(Optimization):
    """What to train, how to distribute it, and when to stop.

    The fields here are those of every job. Options of engines, strategies and tasks (`catalog/options.py`) are fields
    like them, and read by `OPTION.of(job)`; `job_fields()` has both.
    """

    model_config = ConfigDict(
        frozen=True, extra="allow", protected_namespaces=(), allow_inf_nan=False, ser_json_inf_nan="constants"
    )

    dataset: str = Field("digits", description="name of a data set; `velodrome data list` shows them")
    model: str = Field(
        "dense-128", description=f"a built-in model ({', '.join(MODEL_NAMES)}), or `module:function` of your own"
    )
    model_args: dict[str, Any] = Field(default_factory=dict, description="arguments passed to the model's function")
    task: str | None = Field(
        None, description="what is learned: classification, regression, binary, multi-label or language-model, or "
        "`module:Class` of your own; by default what the data implies (a target with fractions is regression) and, if "
        "that is known only after loading, what the model is made for"
    )
    engine: str = Field(
        DEFAULT_ENGINE, description="the framework that trains; `velodrome engines` lists them. By default the only "
        "one that has the strategy, else torch, or tensorflow if only that is installed"
    )
    strategy: str = Field("single", description="how the engine distributes training; `velodrome engines` lists them")
    consistency: str | None = Field(
        None, description="consistency model, for strategies that have several: workers wait for one another after "
        "every step (bsp) or never (asp); `velodrome engines` lists them"
    )
    framework: str | None = Field(
        None, description="which framework computes, for engines that train with several (horovod); by default torch"
    )
    implementation: Literal["velodrome", "stock"] = Field(
        "velodrome", description="run the strategy with the parts that Velodrome replaces for speed (velodrome), or "
        "with the framework's own parts only (stock), to see what the replacements gain"
    )
    script: str | None = Field(
        None, description="path of your own script, which every worker runs instead of training a model on a data "
                          "set; the script distributes the training itself"
    )
    script_args: str = Field(
        "", max_length=LONGEST_ARGUMENTS,
        description="arguments of the script, as in a shell; `{seed}`, `{workers}` and computed ones such as "
                    "`{64/workers}` are replaced by the job's values, `{role}`, `{index}`, `{ps_hosts}` and "
                    "`{worker_hosts}` by the process's"
    )
    read: list[str] = Field(
        default_factory=list, description="regular expressions that find figures in what the script prints: each named "
        "group is a figure, as in `loss: (?P<loss>[0-9.]+)`"
    )
    workers: Positive = Field(
        1, le=MOST_PROCESSES, description="training processes (logical devices for mirrored and central-storage)"
    )
    servers: int = Field(
        0, ge=0, le=MOST_PROCESSES, description="parameter servers, for strategies that have them (1 by default), and "
        "for scripts (none by default)"
    )
    batch_size: Positive = Field(128, description="examples per batch")
    batch_scope: BatchScope | None = Field(
        None, description="whether the batch is divided among the workers (global) or each worker has a batch of this "
        "size (per-worker); by default global for synchronous and per-worker for asynchronous strategies"
    )
    epochs: Positive = Field(5, description="passes over the training set, by all workers together")
    steps: Positive | None = Field(None, description="stop after this many training steps, even within an epoch")
    sharding: Sharding = Field(
        "auto", description="how data is sharded over workers: whole files (file), every n-th example (data), all data "
        "to every worker (off), or file if there are enough files and data otherwise (auto)"
    )
    seed: int = Field(1, ge=0, lt=2**32, description="random seed of initial weights, splits and the order of examples")
    validation: float = Field(0.1, ge=0, lt=1, description="fraction of the training set held out for validation")
    pixels: Pixels = Field(
        "auto", description="pixel values fed to the model: from 0 to 1 (unit), from 0 to 255 (byte), or scaled per "
        "channel to mean 0 and standard deviation 1 over the training set (standardize); auto is unit, or byte for a "
        "Keras model that begins with its own Rescaling or Normalization of bytes"
    )
    transform: str | None = Field(
        None, description="`module:function` of your own that changes a training example (augmentation): called with "
        "a dictionary of its arrays and a random number generator seeded by seed, epoch and example"
    )
    bad_data: Literal["skip", "fail"] = Field(
        "fail", description="whether unusable examples of your own data are left out with a warning (skip) or fail the "
        "job (fail)"
    )
    target: Annotated[str, parses(Target.parse)] | None = Field(
        None, description='stop after the epoch that reaches this on validation, such as "accuracy>=0.97"'
    )
    dtype: Literal["float32", "float64", "bfloat16"] = Field(
        "float32", description="floating-point type of weights and arithmetic; with bfloat16 layers compute in it "
        "where that is safe (autocast), and weights, gradients and losses stay float32"
    )
    threads: Positive | None = Field(None, description="threads per process; by default cores are divided evenly")
    start_timeout: float = Field(120.0, gt=0, description="seconds within which every process must have connected")
    stall_timeout: float = Field(300.0, gt=0, description="seconds without progress after which a run is stopped")
    on: str | None = Field(
        None, description="launcher or cluster that the job runs on, as `--on` takes it; by default that of the command"
    )
    keep_going: bool = Field(False, description="let a parameter-server run continue when it loses a worker")
    faults: list[str] = Field(
        default_factory=list,
        description="faults to inject during training, such as `partition node3 20s..30s`, `slow node2 4x from "
                    "10s`, `pause worker0 5s..8s` or `kill worker1 at 15s`, in seconds since training began"
    )
    checkpoints: bool = Field(True, description="write a checkpoint after every epoch")

    if TYPE_CHECKING:  # names of options are known only to the catalog
        def __init__(self, **fields: Any) -> None: ...

    @model_validator(mode="wrap")
    @classmethod
    def _with_options(cls, given: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        """Validate the fields of every job and the options alike; refuse all other names."""
        if not isinstance(given, Mapping):
            return validate(given)
        fields, mistakes = _in_own_fields(given), list[Any]()
        of_all = cls.model_fields
        try:
            job = validate({name: value for name, value in fields.items() if name in of_all})
        except ValidationError as error:
            mistakes += error.errors()
        try:
            extra = _options_model().model_validate({key: value for key, value in fields.items() if key not in of_all})
        except ValidationError as error:
            mistakes += error.errors()
        if mistakes:
            raise ValidationError.from_exception_data(cls.__name__, [
                InitErrorDetails(type=PydanticCustomError(each["type"], each["msg"]), loc=each["loc"],
                                 input=each["input"]) for each in mistakes
            ])
        assert job.model_extra is not None
        job.model_extra.update(extra)
        job.model_fields_set.update(extra.model_fields_set)
        return job

    @model_serializer(mode="wrap")
    def _in_order(self, serialize: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        """The fields in the order of files. Options are left out like other fields, and where they are not set if
        earlier versions did not write them."""
        fields = serialize(self)
        for name, option in options().items():
            unset, usual = name not in self.model_fields_set, option.of(self) == option.default
            if (info.exclude_unset and unset) or (usual and (info.exclude_defaults or option.after is None)):
                fields.pop(name, None)
        return {name: fields[name] for name in job_fields() if name in fields}

    @field_validator("consistency")
    @classmethod
    def _consistency_parses(cls, text: str | None) -> str | None:
        try:
            if text is not None:
                Consistency.parse(text)
        except ValueError:
            raise ValueError(f"must be {_either(consistencies())}") from None
        return text

    @field_validator("framework")
    @classmethod
    def _framework_is_known(cls, name: str | None) -> str | None:
        if name is not None and name not in frameworks():
            raise ValueError(f"must be {_either(frameworks())}")
        return name

    @field_validator("faults")
    @classmethod
    def _faults_parse(cls, texts: list[str]) -> list[str]:
        for text in texts:
            parse_fault(text)
        return texts

    @property
    def weights_dtype(self) -> Literal["float32", "float64"]:
        """The floating-point type of weights and optimizer state: bfloat16 is for the arithmetic of layers only."""
        return "float64" if self.dtype == "float64" else "float32"


#: The fields of every job by topic, as help and reference show them. Every field belongs to one group.
_GROUPS: dict[str, tuple[str, ...]] = {
    "Data": ("dataset", "pixels", "validation", "sharding", "transform", "bad_data"),
    "Model": ("model", "model_args", "task", "weights", "dtype"),
    "Script": ("script", "script_args", "read"),
    "Distribution": (
        "engine", "strategy", "consistency", "framework", "implementation", "workers", "servers", "threads", "on",
        "keep_going", "start_timeout", "stall_timeout", "faults",
    ),
    "Optimization": (
        "batch_size", "batch_scope", "accumulate", "optimizer", "learning_rate", "scale_rate", "weight_decay",
        "nesterov", "schedule", "schedule_by", "warmup", "milestones", "milestone_factor", "decay", "decay_after",
        "clip_norm", "label_smoothing", "ema", "seed",
    ),
    "Limits": ("epochs", "steps", "target"),
    "Output": ("checkpoints",),
}


@cache
def _options_model() -> type[BaseModel]:
    """The options as a model: it validates them, and refuses other names."""
    if taken := options().keys() & Job.model_fields.keys():
        raise BadRequest(f"an engine has an option {min(taken)!r}, which is a field of every job: update or remove its "
                         "package")
    fields = {name: (option.type, Field(option.default, description=option.help)) for name, option in options().items()}
    config = ConfigDict(extra="forbid", protected_namespaces=(), allow_inf_nan=False)
    return create_model("Options", __config__=config, **fields)  # type: ignore[call-overload, no-any-return]


@cache
def job_fields() -> dict[str, FieldInfo]:
    """Every field of a job, options among them, in the order of files."""
    fields = {**Job.model_fields, **_options_model().model_fields}
    names = placed(Job.model_fields, options().values(), lambda option: option.stored_after or option.after)
    return {name: fields[name] for name in names}


@cache
def job_groups() -> dict[str, list[str]]:
    """The names of all fields of a job by topic, as help and reference show them."""
    topics = dict.fromkeys([*_GROUPS, *(option.group for option in options().values())])
    return {
        group: placed(_GROUPS.get(group, ()), [option for option in options().values() if option.group == group],
                      lambda option: option.after) for group in topics
    }


def default_of(name: str) -> Any:
    """The default of a field of a job."""
    return job_fields()[name].get_default(call_default_factory=True)


def choices_of(name: str, field: FieldInfo) -> tuple[str, ...]:
    """The values of a field of a job or a race, where there are a few that can be listed."""
    if name in ("consistency", "framework"):
        return consistencies() if name == "consistency" else frameworks()
    annotation = field.annotation
    literal = next((part for part in (annotation, *get_args(annotation)) if get_origin(part) is Literal), None)
    return tuple(map(str, get_args(literal)))


def field_taking(name: str, values: Iterable[Any]) -> str:
    """The field that values given for another one are meant for: options may say that a field takes theirs as well."""
    for option in options().values():
        if option.also == name:
            choices = choices_of(option.name, job_fields()[option.name])
            return option.name if all(value in choices for value in values) else name
    return name


def _in_own_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields, with each value in the field that it is meant for."""
    others = [option.also for option in options().values() if option.also in given]
    moved = {name: field for name in filter(None, others) if (field := field_taking(name, [given[name]])) != name}
    for name, field in moved.items():
        if given.get(field) not in (None, given[name]):
            raise ValueError(f"{flag(name)} {given[name]} and {flag(field)} {given[field]}: choose one")
    kept = {name: value for name, value in given.items() if name not in moved}
    return {**kept, **{field: given[name] for name, field in moved.items()}}


def flag(name: str) -> str:
    """A field as messages name it: `--batch-size`."""
    return f"--{name.replace('_', '-')}"


def _either(names: Sequence[str]) -> str:
    """`'a', 'b' or 'c'`."""
    *others, last = map(repr, names)
    return f"{', '.join(others)} or {last}" if others else last


#: The command whose help lists the fields of a job, as options.
FIELDS_LISTED_BY = "velodrome train --help"


def make_job(fields: dict[str, Any]) -> Job:
    """A job, or `BadRequest` with every mistake in it."""
    try:
        return Job.model_validate(fields)
    except ValidationError as error:
        raise BadRequest("; ".join(_sentence(part) for part in error.errors())) from None


def _sentence(error: Any) -> str:
    name = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return f"no field {name!r}: {which_name(name, job_fields(), FIELDS_LISTED_BY)}"
    if not name:  # what several fields say together
        return reason_of(error)
    option = "--fault" if name == "faults" else flag(name)
    value, reason = repr(error["input"]), reason_of(error)
    if isinstance(error["input"], dict | list):
        value = repr(in_words(error["input"]))
    return f"{option}: {reason}" if value in reason else f"{option} {value}: {reason}"


def reason_of(error: Any) -> str:
    """Why pydantic refuses a value, as the end of a sentence."""
    reason = str(error["msg"]).removeprefix("Value error, ").replace("Input should be", "must be")
    return reason.replace("a valid dictionary", "fields by name")
