"""The zoo: the models that come with Velodrome, what they can take, and the layers that they are made of. No framework.

A list of layers says what is computed and what saved weights are called; each engine builds it by one interpreter
(`models/*_zoo.py`), and sizes follow from the shape of the data.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from velodrome.catalog.options import Option, Positive
from velodrome.errors import BadRequest, which_name

#: Of one example: height, width and channels of an image, or how many numbers.
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layer:
    """One layer, called after the layer before it."""

    #: What its weights are called; by default its kind and how many of that kind there are so far.
    name: str = field(default="", kw_only=True)

    @property
    def kind(self) -> str:
        return type(self).__name__.lower()

    def output(self, shape: Shape, outputs: int) -> Shape:
        """The shape of what comes out, where the network returns so many outputs."""
        return shape


@dataclass(frozen=True)
class Augment(Layer):
    """In training, flips images from 0 to 1 at random, shifts them by up to a tenth and changes their brightness by as
    much."""


@dataclass(frozen=True)
class Flatten(Layer):
    """All numbers of an example in one row: height first, channels last."""

    def output(self, shape: Shape, outputs: int) -> Shape:
        return (math.prod(shape),)


@dataclass(frozen=True)
class Dense(Layer):
    #: None in the last layer, which has as many as the network has outputs.
    units: int | None = None

    def output(self, shape: Shape, outputs: int) -> Shape:
        return (self.units or outputs,)


@dataclass(frozen=True)
class Conv(Layer):
    filters: int
    size: int
    padding: int = 0
    bias: bool = True

    def output(self, shape: Shape, outputs: int) -> Shape:
        less = self.size - 1 - 2 * self.padding
        return shape[0] - less, shape[1] - less, self.filters


@dataclass(frozen=True)
class Norm(Layer):
    """Batch normalisation."""


@dataclass(frozen=True)
class Pool(Layer):
    """The largest of each 2×2 pixels; a last odd row or column is left out."""

    def output(self, shape: Shape, outputs: int) -> Shape:
        return shape[0] // 2, shape[1] // 2, shape[2]


@dataclass(frozen=True)
class Activation(Layer):
    function: Literal["relu", "tanh"]

    @property
    def kind(self) -> str:
        return self.function


@dataclass(frozen=True)
class Residual(Layer):
    """Two 3×3 convolutions with batch normalisation, and a shortcut around them without parameters: with `stride` 2,
    half the height and width go out, the image is subsampled, and the new channels are zero (option A of He et al.
    2015). The convolutions have no bias, because batch normalisation follows each."""

    filters: int
    stride: int = 1

    def output(self, shape: Shape, outputs: int) -> Shape:
        return -(-shape[0] // self.stride), -(-shape[1] // self.stride), self.filters


@dataclass(frozen=True)
class Average(Layer):
    """The mean of each channel."""

    def output(self, shape: Shape, outputs: int) -> Shape:
        return shape[2:]


@dataclass(frozen=True)
class Lstm:
    """A language model: an embedding, LSTM layers and a softmax, whose weights and biases all start uniform within a
    limit. No gate is favoured, as in the model that Zaremba et al. (2014) published."""

    units: int = 200
    layers: int = 2
    limit: float = 0.1


@dataclass(frozen=True)
class Transformer:
    """A decoder-only language model, arranged as GPT-2 is: normalisation first, learned positions, GELU.

    Words come as their places in a vocabulary, in rows of at most `context`; no row depends on what was read before it.
    The embedding of a word is also its row of the softmax, which has no bias.
    """

    layers: int = 4
    width: int = 128
    heads: int = 4
    #: Standard deviation of the initial weights.
    deviation: float = 0.02

    def deviation_of(self, name: str) -> float:
        """That of a layer: it is smaller where outputs are added to the residual stream."""
        return self.deviation / (math.sqrt(2 * self.layers) if name.endswith(("attended", "contract")) else 1.0)


FLATTEN, POOL, RELU, TANH = Flatten(name="flatten"), Pool(), Activation("relu"), Activation("tanh")


def dense(*units: int) -> tuple[Layer, ...]:
    """Dense layers with so many units, relu after each, and one more for the outputs."""
    hidden = [layer for number in units for layer in (Dense(number), RELU)]
    return FLATTEN, *hidden, Dense()


def convolutions(*filters: int) -> tuple[Layer, ...]:
    """Convolutions 3×3 with so many filters, each with pooling and relu."""
    # relu never decreases, so the maximum of a window is the same before and after it: pooling first needs a quarter.
    return tuple(layer for number in filters for layer in (Conv(number, 3, padding=1), POOL, RELU))


def residual(*stages: int, blocks: int) -> tuple[Layer, ...]:
    """A convolution, stages of so many residual blocks with so many filters, the mean of each channel, and a dense
    layer (He et al. 2015, section 4.2)."""
    made = [
        Residual(filters, 2 if stage > 1 and block == 1 else 1, name=f"stage{stage}_block{block}")
        for stage, filters in enumerate(stages, start=1) for block in range(1, blocks + 1)
    ]
    first = Conv(stages[0], 3, padding=1, bias=False, name="conv"), Norm(name="norm"), Activation("relu", name="relu")
    return *first, *made, Average(name="average"), Dense(name="dense")


Network = tuple[Layer, ...] | Lstm | Transformer


class Sized(NamedTuple):
    """A layer of a network for data of one shape: its name, and the shapes before and after it."""

    name: str
    layer: Layer
    before: Shape
    after: Shape


def sized(layers: Sequence[Layer], shape: Shape, outputs: int) -> Iterator[Sized]:
    """The layers of a network for examples of this shape (height, width, channels), or any shape of arrays."""
    numbers: Counter[str] = Counter()
    for layer in layers:
        numbers[layer.kind] += 1
        after = layer.output(shape, outputs)
        yield Sized(layer.name or f"{layer.kind}{numbers[layer.kind]}", layer, shape, after)
        shape = after


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
    file, is_file = f"{name.removesuffix('.py')}.py", False
    with suppress(OSError):  # a name that is too long for a file
        is_file = Path(file).is_file()
    if is_file:
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
            f"model {name!r} needs images of at least {smallest}×{smallest}, but these are {height}×{width}: choose "
            "another model or data set"
        )
