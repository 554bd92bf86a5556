"""A job: one training run as requested. Only what a user may choose lives here; what follows from it is the plan's."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from velodrome.catalog.models import MODEL_NAMES
from velodrome.catalog.registry import DEFAULT_ENGINE
from velodrome.job.faults import parse_fault
from velodrome.job.optimization import Optimization
from velodrome.job.optimization import Positive as Positive

BatchScope = Literal["global", "per-worker"]
Sharding = Literal["auto", "file", "data", "off"]
Pixels = Literal["auto", "unit", "byte", "standardize"]
#: Workers and servers that a job may have, each: plans, names and lists have an entry for every one.
MOST_PROCESSES = 65_536
#: Characters of a script's arguments: splitting them takes time that grows with the square of their length.
LONGEST_ARGUMENTS = 20_000
#: What `--schedule` also takes: no schedule of the learning rate has these names.
PIPELINE_SCHEDULES = ("gpipe", "1f1b")


class Job(Optimization):
    """What to train, how to distribute it, and when to stop."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False, ser_json_inf_nan="constants"
    )

    dataset: str = Field("digits", description="name of a data set; `velodrome data list` shows them")
    model: str = Field(
        "dense-128", description=f"a built-in model ({', '.join(MODEL_NAMES)}), or `module:function` of your own"
    )
    model_args: dict[str, Any] = Field(default_factory=dict, description="arguments passed to the model's function")
    task: str | None = Field(
        None, description="what is learned: classification, regression, binary, multi-label or language-model, or "
        "`module:Class` of your own; by default what the data implies (a target with fractions is regression) and, "
        "where only loading would show it, what the model is for"
    )
    engine: str = Field(
        DEFAULT_ENGINE, description="the framework that trains; `velodrome engines` lists them. By default the only "
        "one that has the strategy, else torch, or tensorflow if only that is installed"
    )
    strategy: str = Field("single", description="how the engine distributes training; `velodrome engines` lists them")
    consistency: Literal["bsp", "asp"] | None = Field(
        None, description="consistency model, for strategies that have several: workers wait for one another after "
        "every step (bsp) or never (asp); `velodrome engines` lists them"
    )
    framework: Literal["torch", "tensorflow"] | None = Field(
        None, description="which framework computes, for engines that train with several (horovod); by default torch"
    )
    sync_every: Positive | None = Field(
        None, description="for local-sgd and diloco: steps after which the workers combine their weights; by default 8 "
        "for local-sgd and 50 for diloco"
    )
    compress: str | None = Field(
        None, description="for ddp: how gradients are compressed before they are summed: fp16, bf16, or powersgd:RANK "
        "for matrices of that rank; by default they are not"
    )
    micro_batches: Positive | None = Field(
        None, description="for pipeline: parts of a batch that pass through the stages one after another; by default "
        "two for each worker, and at least 4"
    )
    pipeline_schedule: Literal["gpipe", "1f1b"] | None = Field(
        None, description="for pipeline: all forward passes before all backward passes (gpipe), or one backward pass "
        "after each forward pass as soon as possible, which keeps fewer activations (1f1b); by default 1f1b; "
        "--schedule takes these two names as well"
    )
    mesh: str | None = Field(
        None, description="for fsdp and tensor: several groups of workers, as data=2,tensor=2: two groups divide "
        "the batch, and two workers of each group the model; by default one group"
    )
    implementation: Literal["velodrome", "stock"] = Field(
        "velodrome", description="run the strategy with the parts that Velodrome replaces for speed (velodrome), or "
        "with the framework's own parts only (stock), to see what the difference is worth"
    )
    script: str | None = Field(
        None, description="path of a script of your own, which every worker runs in place of a model on a data set; it "
        "brings its own distribution"
    )
    script_args: str = Field(
        "", max_length=LONGEST_ARGUMENTS, description="arguments of the script, as in a shell; `{seed}`, `{workers}` "
        "and computed ones such as `{64/workers}` stand for the job's"
    )
    read: list[str] = Field(
        default_factory=list, description="regular expressions that find figures in what the script prints: each named "
        "group is a figure, as in `loss: (?P<loss>[0-9.]+)`"
    )
    workers: Positive = Field(
        1, le=MOST_PROCESSES, description="training processes (logical devices for mirrored and central-storage)"
    )
    servers: int = Field(
        0, ge=0, le=MOST_PROCESSES, description="parameter servers, for strategies that have them (1 by default)"
    )
    batch_size: Positive = Field(128, description="examples per batch")
    batch_scope: BatchScope | None = Field(
        None, description="whether the batch is divided among the workers (global) or each worker has a batch of this "
        "size (per-worker); by default global for synchronous and per-worker for asynchronous strategies"
    )
    epochs: Positive = Field(5, description="passes over the training set, by all workers together")
    steps: Positive | None = Field(None, description="stop after this many training steps, even within an epoch")
    unroll: Positive = Field(20, description="time steps of truncated backpropagation, for language models")
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
    target: str | None = Field(
        None, description='stop after the epoch that reaches this on validation, as "accuracy>=0.97"'
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
    fusion_threshold_mb: float | None = Field(
        None, ge=0, le=16_384, description="for horovod: megabytes of gradients collected into one all-reduce; 0 sends "
        "each by itself, by default Horovod's own 128"
    )
    cycle_time_ms: float | None = Field(
        None, gt=0, le=60_000, description="for horovod: milliseconds between two checks for gradients that are ready; "
        "by default Horovod's own 1"
    )
    timeline_steps: int | None = Field(
        None, ge=0, le=2**63 - 1, description="for horovod: first steps whose timeline is saved with the run "
        "(`horovod-timeline.json`); by default 20, no more than throughput leaves out"
    )
    keep_going: bool = Field(False, description="let a parameter-server run continue when it loses a worker")
    faults: list[str] = Field(
        default_factory=list, description="faults to inject during training, as `partition node3 20s..30s`, "
        "`slow node2 4x from 10s`, `pause worker0 5s..8s` or `kill worker1 at 15s`, in seconds since training began"
    )
    checkpoints: bool = Field(True, description="write a checkpoint after every epoch")

    @model_validator(mode="before")
    @classmethod
    def _schedule_of_a_pipeline(cls, fields: Any) -> Any:
        """Read `--schedule gpipe` and `--schedule 1f1b` as the pipeline's."""
        if not isinstance(fields, Mapping) or fields.get("schedule") not in PIPELINE_SCHEDULES:
            return fields
        chosen = fields["schedule"]
        if fields.get("pipeline_schedule") not in (None, chosen):
            raise ValueError(f"--schedule {chosen} and --pipeline-schedule {fields['pipeline_schedule']}: choose one")
        rest = {name: value for name, value in fields.items() if name != "schedule"}
        return {**rest, "pipeline_schedule": chosen}

    @field_validator("target")
    @classmethod
    def _target_parses(cls, text: str | None) -> str | None:
        if text is not None:
            Target.parse(text)
        return text

    @field_validator("compress")
    @classmethod
    def _compression_parses(cls, text: str | None) -> str | None:
        if text is not None:
            Compression.parse(text)
        return text

    @field_validator("mesh")
    @classmethod
    def _mesh_parses(cls, text: str | None) -> str | None:
        if text is not None:
            Mesh.parse(text)
        return text

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


#: The fields of a job by topic, as help and reference show them. Every field belongs to one group.
GROUPS: dict[str, tuple[str, ...]] = {
    "Data": ("dataset", "pixels", "validation", "sharding", "transform", "bad_data"),
    "Model": ("model", "model_args", "task", "weights", "unroll", "dtype"),
    "Script": ("script", "script_args", "read"),
    "Distribution": (
        "engine", "strategy", "consistency", "framework", "sync_every", "compress", "micro_batches",
        "pipeline_schedule", "mesh", "implementation", "workers", "servers", "threads", "on", "keep_going",
        "fusion_threshold_mb", "cycle_time_ms", "timeline_steps", "start_timeout", "stall_timeout",
        "faults",
    ),
    "Optimization": (
        "batch_size", "batch_scope", "accumulate", "optimizer", "learning_rate", "scale_rate", "weight_decay",
        "nesterov", "schedule", "schedule_by", "warmup", "milestones", "milestone_factor", "decay", "decay_after",
        "clip_norm", "label_smoothing", "ema", "seed",
    ),
    "Limits": ("epochs", "steps", "target"),
    "Output": ("checkpoints",),
}


class Compression(NamedTuple):
    """How gradients are compressed."""

    kind: Literal["fp16", "bf16", "powersgd"]
    #: Of the matrices that PowerSGD sends in place of a gradient.
    rank: int = 0

    @classmethod
    def parse(cls, text: str) -> Compression:
        """From `fp16`, `bf16` or `powersgd:RANK`."""
        kind, _, rank = text.partition(":")
        if text in ("fp16", "bf16"):
            return cls(text)  # type: ignore[arg-type]
        if kind == "powersgd" and rank.isascii() and rank.isdigit() and int(rank) > 0:
            return cls("powersgd", int(rank))
        raise ValueError(f"{text!r} is no compression: choose fp16, bf16, or powersgd:RANK as powersgd:4")


class Mesh(NamedTuple):
    """Workers in groups: the groups divide a batch, and the workers of each group a model."""

    groups: int
    #: The strategy that divides the model, and among how many workers.
    strategy: str
    members: int

    @classmethod
    def parse(cls, text: str) -> Mesh:
        """From `data=2,tensor=2`."""
        match = re.fullmatch(r"\s*data=(\d+)\s*,\s*([a-z][a-z0-9-]*)=(\d+)\s*", text)
        if match is None or not int(match[1]) or not int(match[3]):
            raise ValueError(f"{text!r} is no mesh: write one such as data=2,tensor=2")
        return cls(int(match[1]), match[2], int(match[3]))


class Target(BaseModel):
    """A condition on a validation metric that ends training early, such as ``accuracy>=0.97``."""

    model_config = ConfigDict(frozen=True)

    #: A metric of the job's task, which is checked where the task is known.
    metric: str
    comparison: Literal[">=", "<="]
    value: float

    @classmethod
    def parse(cls, text: str) -> Target:
        match = re.fullmatch(r"\s*([A-Za-z][\w.-]*)\s*(>=|<=)\s*([0-9.eE+-]+)\s*", text)
        try:
            value = float(match[3]) if match else math.nan
        except ValueError:
            value = math.nan
        if match is None or not math.isfinite(value):
            raise ValueError(f"{text!r} is not a target: write one such as 'accuracy>=0.97' or 'loss<=0.1'")
        return cls(metric=match[1], comparison=match[2], value=value)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return f"{self.metric}{self.comparison}{self.value:g}"

    def reached(self, metrics: Mapping[str, float | None]) -> bool:
        """Whether validation metrics, by name, meet the condition; one that is unknown or not finite does not."""
        value = metrics.get(self.metric)
        if value is None:
            return False
        return value >= self.value if self.comparison == ">=" else value <= self.value
