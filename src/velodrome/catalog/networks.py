"""What the networks of the zoo are made of: layers, which each engine builds by one interpreter. No framework here.

A list says what is computed and what saved weights are called; sizes follow from the shape of the data.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

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
