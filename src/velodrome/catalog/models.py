"""The models that come with Velodrome, as the controller knows them: names, what they can take. No framework."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from velodrome.catalog.networks import (
    FLATTEN,
    POOL,
    TANH,
    Augment,
    Conv,
    Dense,
    Lstm,
    Network,
    Norm,
    Residual,
    Transformer,
    convolutions,
    dense,
    residual,
)
from velodrome.catalog.options import Option, Positive
from velodrome.errors import BadRequest, which_name

#: Tasks on examples, for which a model returns as many numbers as its function is asked for.
EXAMPLE_TASKS = ("classification", "regression", "binary", "multi-label")

UNROLL = Option[int](
    "unroll", Positive, 20, "time steps of truncated backpropagation, for language models", group="Model",
    after="weights", stored_after="steps",
)
#: Options of tasks.
TASK_OPTIONS: tuple[Option[Any], ...] = (UNROLL,)


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
    #: Empty for a model that is built by a task of somebody else's.
    network: Network = ()
    #: The distribution of the initial weights of its layers; biases are zero.
    start: Literal["glorot-uniform", "he-normal"] = "glorot-uniform"

    @property
    def normalises(self) -> bool:
        """Whether it normalises by the statistics of a batch."""
        return self.contains(Norm, Residual)

    @property
    def draws(self) -> bool:
        """Whether it draws random numbers in training."""
        return self.contains(Augment)

    def contains(self, *kinds: type) -> bool:
        """Whether it has layers of these kinds, or is of one of them."""
        layers = self.network if isinstance(self.network, tuple) else (self.network,)
        return any(isinstance(layer, kinds) for layer in layers)

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that it can learn."""
        return EXAMPLE_TASKS if self.task in EXAMPLE_TASKS else (self.task,)


#: The model for arrays, where a job names none.
ARRAY_MODEL = "mlp"

MODELS = (
    ZooModel("linear", "one dense layer: multinomial logistic regression", network=dense()),
    ZooModel("dense-128", "one hidden layer of 128, relu", network=dense(128)),
    ZooModel("dense-300-100", "two hidden layers of 300 and 100, relu", network=dense(300, 100)),
    ZooModel(
        "lenet5", "20 and 50 filters 5×5, tanh, max-pool 2×2, dense 500", smallest=16,
        # tanh is increasing, so the maximum of a window is the same before and after it: pooling first needs a quarter.
        network=(Conv(20, 5), POOL, TANH, Conv(50, 5), POOL, TANH, FLATTEN, Dense(500), TANH, Dense()),
    ),
    ZooModel(
        "fruit-cnn", "small convolutional network for photos of about 100×100, with augmentation",
        smallest=32, recipe={"batch_size": 64, "epochs": 8},
        network=(Augment(name="augment"), *convolutions(16, 32, 64, 64), *dense(128)),
    ),
    ZooModel(
        ARRAY_MODEL, "for tables and other arrays: two hidden layers of 128 and 64, relu", takes="arrays",
        recipe={"batch_size": 32, "epochs": 40, "learning_rate": 0.003}, network=dense(128, 64),
    ),
    ZooModel(
        "resnet20", "residual network of 20 layers with batch normalisation, as He et al. (2015) describe it for "
        "CIFAR-10", smallest=8, network=residual(16, 32, 64, blocks=3), start="he-normal",
        recipe={
            "optimizer": "momentum", "learning_rate": 0.1, "weight_decay": 1e-4, "schedule": "cosine",
            "batch_size": 128, "epochs": 10,
        },
    ),
    ZooModel(
        "vgg-small", "32 and 64 filters 3×3, max-pool 2×2, dense 1024 twice: many parameters, little arithmetic",
        smallest=4, network=(*convolutions(32, 64), *dense(1024, 1024)),
    ),
    ZooModel(
        "lstm-small", "language model: two LSTM layers of 200, as Zaremba et al. (2014) describe the small one",
        task="language-model", takes="text",
        recipe={
            "optimizer": "sgd", "learning_rate": 1.0, "batch_size": 20, "epochs": 13, "unroll": 20, "decay": 0.5,
            "decay_after": 4, "clip_norm": 5.0,
        },
        network=Lstm(units=200, layers=2, limit=0.1),
    ),
    ZooModel(
        "gpt-mini", "language model: decoder-only transformer, 4 layers of width 128 with 4 heads, context = unroll",
        task="language-model", takes="text",
        recipe={"optimizer": "adam", "learning_rate": 0.001, "batch_size": 20, "epochs": 5, "unroll": 64},
        network=Transformer(layers=4, width=128, heads=4),
    ),
)
MODEL_NAMES = tuple(model.name for model in MODELS)


def models_for(*takes: str, without: tuple[type, ...] = ()) -> tuple[str, ...]:
    """The names of the models that take images, text or arrays, and have no layers of some kinds."""
    return tuple(model.name for model in MODELS
                 if model.network and model.takes in takes and not model.contains(*without))


def text_models() -> str:
    """The names of the models that read text: `lstm-small or gpt-mini`."""
    return " or ".join(model.name for model in MODELS if model.task == "language-model")


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
    file = f"{name.removesuffix('.py')}.py"
    if Path(file).is_file():
        raise BadRequest(f"no model {name!r}, but a file {file}: name the function in it that builds the model, as "
                         f"--model {file.removesuffix('.py')}:build")
    hint = which_name(name, MODEL_NAMES, "velodrome train --help")
    raise BadRequest(f"no model {name!r}: {hint}, or name your own as module:function")


def check_shape(name: str, input_shape: Sequence[int]) -> None:
    """Refuse a model of the zoo that cannot take images of this height, width and channels."""
    smallest = zoo_model(name).smallest
    height, width, *_ = input_shape
    if min(height, width) < smallest:
        raise BadRequest(
            f"model {name!r} needs images of at least {smallest}×{smallest}, and these are {height}×{width}: "
            "choose another model or data set"
        )
