"""How a job optimizes: its optimizer, the schedule of its learning rate, and what is done to gradients and weights.

These are fields of a job (`job/job.py`). What a schedule makes of a step is in `training/loop.py`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, Field, field_validator

from velodrome.catalog.options import Positive, parses

#: The optimizers by name; others are the user's, as `module:function`.
OPTIMIZERS = ("sgd", "momentum", "adam", "adamw")
DEFAULT_LEARNING_RATE: dict[str, float] = {"adam": 0.001, "adamw": 0.001, "sgd": 0.1, "momentum": 0.05}
#: The default of `torch.optim.AdamW`; the other optimizers have none by default.
DEFAULT_WEIGHT_DECAY: dict[str, float] = {"adamw": 0.01}
MOMENTUM = 0.9
ADAM_BETAS = (0.9, 0.999)
#: The outer optimizer of DiLoCo, SGD with Nesterov momentum, as its authors recommend it.
OUTER_RATE, OUTER_MOMENTUM = 0.7, 0.9

#: Files with weights that can be read without running code, by their endings; and those that cannot.
WEIGHTS_FILES = (".safetensors", ".keras", ".weights.h5")
PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle")

Schedule = Literal["constant", "cosine", "linear", "step"]
ScaleRate = Literal["none", "linear", "sqrt"]


class Span(NamedTuple):
    """A number of steps, or of epochs."""

    amount: float
    epochs: bool

    @classmethod
    def parse(cls, text: str) -> Span:
        """From `500`, `500steps` or `2epochs`."""
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(steps?|epochs?)?\s*", text)
        epochs = bool(match and (match[2] or "").startswith("epoch"))
        if match is None or ("." in match[1] and not epochs):
            raise ValueError(f"{text!r} is not a number of steps or epochs: write one such as '500' or '2epochs'")
        return cls(float(match[1]), epochs)

    def steps(self, per_epoch: int) -> int:
        return round(self.amount * per_epoch) if self.epochs else int(self.amount)


def parse_milestones(text: str) -> list[Span]:
    """From `30epochs,60epochs` or `1000+2000`: a comma may already separate the values of a race."""
    return [Span.parse(part) for part in re.split(r"[,+]", text)]


def _as_text(value: Any) -> Any:
    """A number, or a list of them, as a YAML file may hold it."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(map(str, value))
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


Text = Annotated[str, BeforeValidator(_as_text)]


class Optimization(BaseModel):
    """The fields of a job that say how weights are changed."""

    optimizer: str = Field(
        "adam", description="sgd, momentum (SGD with momentum 0.9), adam or adamw (betas 0.9 and 0.999; epsilon is the "
        "framework's default, 1e-8 for PyTorch and 1e-7 for TensorFlow), or `module:function` of your own, which "
        "returns an optimizer of the engine"
    )
    learning_rate: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="learning rate; by default 0.001 for adam and adamw, 0.1 for sgd, "
        "0.05 for momentum"
    )
    scale_rate: ScaleRate = Field(
        "none", description="scale the learning rate with the examples behind one update, relative to --batch-size: "
        "by their ratio (linear) or its square root (sqrt)"
    )
    weight_decay: float | None = Field(
        None, ge=0, allow_inf_nan=False, description="weight decay: decoupled from the gradient for adamw, added to "
        "the gradient (L2) for the others; by default 0.01 for adamw, else 0"
    )
    nesterov: bool = Field(False, description="Nesterov's form of momentum, for the optimizer momentum")
    schedule: Schedule = Field(
        "constant", description="how the learning rate changes after the warm-up: not at all (constant), to 0 at the "
                                "job's last step along a half cosine (cosine) or a line (linear), or by "
                                "--milestone-factor at each milestone (step)"
    )
    schedule_by: Literal["step", "epoch"] = Field(
        "step", description="whether the schedule changes the learning rate at every step or only between epochs"
    )
    warmup: Annotated[Text, parses(Span.parse)] | None = Field(
        None, description="raise the learning rate linearly to its full value over this many steps, or epochs such as "
                          "2epochs"
    )
    milestones: Annotated[Text, parses(parse_milestones)] | None = Field(
        None, description="for --schedule step: the steps or epochs after which the learning rate is multiplied, such "
                          "as 30epochs,60epochs (in --vary with + instead of the comma)"
    )
    milestone_factor: float = Field(
        0.1, gt=0, le=1, description="for --schedule step: factor applied to the learning rate at each milestone"
    )
    decay: float | None = Field(
        None, gt=0, le=1, description="factor applied to the learning rate in each epoch after --decay-after"
    )
    decay_after: int = Field(
        0, ge=0, le=2**63 - 1, description="epochs with the full learning rate before the decay begins"
    )
    clip_norm: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="clip the gradient of a step to this global norm"
    )
    accumulate: Positive = Field(
        1, description="batches whose gradients are added up before one update: the same step as with a batch that "
                       "many times as large, in less memory"
    )
    label_smoothing: float = Field(
        0.0, ge=0, lt=1, description="part of each label that training spreads evenly over all classes, for "
        "classification"
    )
    ema: float | None = Field(
        None, gt=0, lt=1, description="keep an exponential moving average of the weights with this decay, such as "
        "0.999; it is what is evaluated and saved"
    )
    weights: str | None = Field(
        None, description="file with weights to start from: .safetensors, .keras or .weights.h5"
    )

    @field_validator("optimizer")
    @classmethod
    def _optimizer_is_known(cls, name: str) -> str:
        if name not in OPTIMIZERS and ":" not in name:
            raise ValueError(f"must be one of {', '.join(map(repr, OPTIMIZERS))}, or your own as module:function")
        return name

    @field_validator("weights")
    @classmethod
    def _weights_are_no_code(cls, file: str | None) -> str | None:
        name = PurePath(file or "").name.lower()
        if file is None or name.endswith(WEIGHTS_FILES):
            return file
        if name.endswith(PICKLES):
            raise ValueError(
                "it may be a pickle, which can run any code when it is read; save the weights with "
                "safetensors.torch.save_file(model.state_dict(), 'weights.safetensors'), or with model.save_weights of "
                "Keras as .weights.h5"
            )
        raise ValueError(f"weights are read from files that end in {', '.join(WEIGHTS_FILES)}")

    @property
    def has_own_optimizer(self) -> bool:
        """Whether the optimizer is the user's, `module:function`."""
        return ":" in self.optimizer

    @property
    def rate(self) -> float:
        """The learning rate that is used: the requested one, or the optimizer's default. A user's optimizer has its
        own, and this is what it is multiplied with."""
        if self.has_own_optimizer:
            return 1.0
        return DEFAULT_LEARNING_RATE[self.optimizer] if self.learning_rate is None else self.learning_rate

    def rate_of(self, epoch: int) -> float:
        """The learning rate of an epoch, counted from 1, by --decay alone."""
        return self.rate if self.decay is None else self.rate * self.decay ** max(0, epoch - self.decay_after)

    @property
    def decay_of_weights(self) -> float:
        """The weight decay that is used: the requested one, or the optimizer's default."""
        return DEFAULT_WEIGHT_DECAY.get(self.optimizer, 0.0) if self.weight_decay is None else self.weight_decay

    @property
    def rate_changes_within_epoch(self) -> bool:
        """Whether two steps of one epoch may have different learning rates."""
        return self.schedule_by == "step" and (self.schedule != "constant" or self.warmup is not None)

    @property
    def sets_rate(self) -> bool:
        """Whether the learning rate is not the same from the first step to the last, or is scaled."""
        changes = self.schedule != "constant" or self.warmup is not None or self.decay is not None
        return changes or self.scale_rate != "none"
