"""A job: one training run as asked for. Only what the user may say lives here; what follows from it is the plan's."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

BatchScope = Literal["global", "per-worker"]
Optimizer = Literal["sgd", "momentum", "adam"]
Sharding = Literal["auto", "file", "data", "off"]

DEFAULT_LEARNING_RATE: dict[str, float] = {"adam": 0.001, "sgd": 0.1, "momentum": 0.05}
MOMENTUM = 0.9
ADAM_BETAS = (0.9, 0.999)
ADAM_EPSILON = 1e-7

Positive = Annotated[int, Field(ge=1)]


class Job(BaseModel):
    """What to train, how to distribute it, and when to stop."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False, ser_json_inf_nan="constants"
    )

    dataset: str = Field("digits", description="name of a data set; `velodrome data list` shows them")
    model: str = Field("dense-128", description="a model of the zoo, or `module:function` of your own")
    model_args: dict[str, Any] = Field(default_factory=dict, description="arguments passed to the model's function")
    engine: str = Field(
        "torch", description="the framework that trains, `velodrome engines` shows them; where nobody names one, that "
        "of a strategy which only one has"
    )
    strategy: str = Field("single", description="how the engine splits the work; `velodrome engines` shows them")
    implementation: Literal["velodrome", "stock"] = Field(
        "velodrome", description="run the strategy with the parts that Velodrome replaces for speed (velodrome), or "
        "with the framework's own parts only (stock), to see what the difference is worth"
    )
    workers: Positive = Field(1, description="processes that train (logical devices for mirrored and central-storage)")
    servers: int = Field(0, ge=0, description="parameter servers, for strategies that have them (1 unless said)")
    batch_size: Positive = Field(128, description="examples in a batch")
    batch_scope: BatchScope | None = Field(
        None, description="whether the batch is split over the workers (global) or each has its own (per-worker); "
        "global for synchronous and per-worker for asynchronous strategies unless said"
    )
    epochs: Positive = Field(5, description="passes over the training set, by all workers together")
    steps: Positive | None = Field(None, description="stop after so many training steps, even within an epoch")
    optimizer: Optimizer = Field("adam", description="sgd, momentum (0.9) or adam")
    learning_rate: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="0.001 for adam, 0.1 for sgd, 0.05 for momentum unless said"
    )
    decay: float | None = Field(
        None, gt=0, le=1, description="what the learning rate is multiplied with in each epoch beyond --decay-after"
    )
    decay_after: int = Field(0, ge=0, description="epochs with the full learning rate, if it decays at all")
    clip_norm: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="largest norm of a step's gradient; longer are shortened"
    )
    unroll: Positive = Field(20, description="words that a language model sees at a time")
    sharding: Sharding = Field(
        "auto", description="who reads what: whole files to each worker (file), every n-th example (data), everything "
        "to everybody (off), or file where there are enough files and data otherwise (auto)"
    )
    seed: int = Field(1, ge=0, lt=2**32, description="decides initial weights, splits and the order of examples")
    validation: float = Field(0.1, ge=0, lt=1, description="share of the training set kept apart for validation")
    bad_data: Literal["skip", "fail"] = Field(
        "fail", description="whether examples of your own data that cannot be used are left out with a warning (skip) "
        "or end the job (fail)"
    )
    target: str | None = Field(None, description='stop after the epoch that reaches it on validation: "accuracy>=0.97"')
    dtype: Literal["float32", "float64"] = Field("float32", description="numbers the network computes with")
    threads: Positive | None = Field(None, description="threads per process; cores are divided fairly unless said")
    start_timeout: float = Field(120.0, gt=0, description="seconds until every process must have connected")
    stall_timeout: float = Field(300.0, gt=0, description="seconds without progress after which a run is ended")
    keep_going: bool = Field(False, description="let a parameter-server run go on when it loses a worker")
    checkpoints: bool = Field(True, description="write a checkpoint after every epoch")

    @field_validator("target")
    @classmethod
    def _target_parses(cls, text: str | None) -> str | None:
        if text is not None:
            Target.parse(text)
        return text

    @property
    def rate(self) -> float:
        """The learning rate that is used: the one asked for, or the optimizer's default."""
        return DEFAULT_LEARNING_RATE[self.optimizer] if self.learning_rate is None else self.learning_rate

    def rate_of(self, epoch: int) -> float:
        """The learning rate of an epoch, counted from 1."""
        return self.rate if self.decay is None else self.rate * self.decay ** max(0, epoch - self.decay_after)


class Target(BaseModel):
    """A condition on a validation metric that ends training early, such as ``accuracy>=0.97``."""

    model_config = ConfigDict(frozen=True)

    metric: Literal["accuracy", "loss", "perplexity"]
    comparison: Literal[">=", "<="]
    value: float

    @classmethod
    def parse(cls, text: str) -> Target:
        match = re.fullmatch(r"\s*(accuracy|loss|perplexity)\s*(>=|<=)\s*([0-9.eE+-]+)\s*", text)
        try:
            value = float(match[3]) if match else math.nan
        except ValueError:
            value = math.nan
        if match is None or not math.isfinite(value):
            raise ValueError(f"{text!r} is no target: write one such as 'accuracy>=0.97' or 'loss<=0.1'")
        return cls(metric=match[1], comparison=match[2], value=value)  # type: ignore[arg-type]

    def reached(self, accuracy: float, loss: float) -> bool:
        perplexity = math.exp(min(loss, 700.0))
        value = {"accuracy": accuracy, "loss": loss, "perplexity": perplexity}[self.metric]
        return value >= self.value if self.comparison == ">=" else value <= self.value
