"""The models that come with Velodrome, as the controller knows them: names, what they can take. No framework."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from velodrome.errors import BadRequest

#: Tasks on examples, for which a model returns as many numbers as its function is asked for.
EXAMPLE_TASKS = ("classification", "regression", "binary", "multi-label")


@dataclass(frozen=True)
class ZooModel:
    name: str
    description: str
    #: The smallest height and width it can take.
    smallest: int = 1
    #: The task that it is for, unless the data or the job names another one.
    task: str = "classification"
    #: What it is fed: images, rows of words, or arrays of numbers.
    takes: Literal["images", "text", "arrays"] = "images"
    #: Fields of a job that this model brings its own defaults for.
    recipe: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that it can learn."""
        return EXAMPLE_TASKS if self.task in EXAMPLE_TASKS else (self.task,)


MODELS = (
    ZooModel("linear", "one dense layer: multinomial logistic regression"),
    ZooModel("dense-128", "one hidden layer of 128, relu"),
    ZooModel("dense-300-100", "two hidden layers of 300 and 100, relu"),
    ZooModel("lenet5", "20 and 50 filters 5×5, tanh, max-pool 2×2, dense 500", smallest=16),
    ZooModel(
        "fruit-cnn", "small convolutional network for photos of about 100×100, with augmentation",
        smallest=32, recipe={"batch_size": 64, "epochs": 8},
    ),
    ZooModel(
        "lstm-small", "language model: two LSTM layers of 200, as Zaremba et al. (2014) describe the small one",
        task="language-model", takes="text",
        recipe={
            "optimizer": "sgd", "learning_rate": 1.0, "batch_size": 20, "epochs": 13, "unroll": 20, "decay": 0.5,
            "decay_after": 4, "clip_norm": 5.0,
        },
    ),
)


def task_of_model(model: str) -> str:
    """The name of the task that a model is for; the user's own models classify."""
    return "classification" if is_own(model) else zoo_model(model).task


def recipe_of(model: str) -> Mapping[str, Any]:
    """Fields of a job that a model of the zoo brings its own defaults for."""
    return {} if is_own(model) else zoo_model(model).recipe


def is_own(model: str) -> bool:
    """Whether a model is the user's, `module:function`, and not one of the zoo."""
    return ":" in model


def zoo_model(name: str) -> ZooModel:
    for model in MODELS:
        if model.name == name:
            return model
    known = ", ".join(model.name for model in MODELS)
    raise BadRequest(f"no model {name!r}: choose one of {known}, or name your own as module:function")


def check_shape(name: str, input_shape: Sequence[int]) -> None:
    """Refuse a model of the zoo that cannot take images of this height, width and channels."""
    smallest = zoo_model(name).smallest
    height, width, *_ = input_shape
    if min(height, width) < smallest:
        raise BadRequest(
            f"model {name!r} needs images of at least {smallest}×{smallest}, and these are {height}×{width}: "
            "choose another model or data set"
        )
