"""Models in the forms in which Keras users publish them: nothing in them but `build` knows of Velodrome."""

from __future__ import annotations

from typing import Any

import keras
from keras import constraints, layers, regularizers

Shape = tuple[int, int, int]


def preprocessing(input_shape: Shape, classes: int, augment: bool = False) -> keras.Model:
    """Takes bytes: rescales, normalises and perhaps augments them inside the model."""
    inputs = keras.Input(shape=input_shape)
    x = layers.Rescaling(1.0 / 255)(inputs)
    x = layers.Normalization(axis=-1, mean=[0.3], variance=[0.09])(x)
    if augment:
        x = layers.RandomFlip("horizontal")(x)
    x = layers.Conv2D(6, 3, padding="same", activation="relu")(x)
    x = layers.Flatten()(layers.MaxPooling2D(2)(x))
    return keras.Model(inputs, layers.Dense(classes)(x))


def regularized(input_shape: Shape, classes: int) -> keras.Model:
    """Penalties on a kernel, a bias and the activity of a layer, and a softmax at the end."""
    inputs = keras.Input(shape=input_shape)
    x = layers.Flatten()(inputs)
    x = layers.Dense(
        12, activation="tanh", kernel_regularizer=regularizers.L1L2(l1=1e-3, l2=1e-2),
        bias_regularizer=regularizers.L2(1e-2), activity_regularizer=regularizers.L2(1e-2),
    )(x)
    return keras.Model(inputs, layers.Dense(classes, activation="softmax")(x))


def constrained(input_shape: Shape, classes: int) -> keras.Model:
    """Kernels that may not grow beyond a norm, or below zero."""
    inputs = keras.Input(shape=input_shape)
    x = layers.Conv2D(5, 3, activation="tanh", kernel_constraint=constraints.MaxNorm(0.4, axis=[0, 1, 2]))(inputs)
    x = layers.Dense(7, activation="relu", kernel_constraint="non_neg", bias_constraint=_halved)(layers.Flatten()(x))
    return keras.Model(inputs, layers.Dense(classes)(x))


@keras.saving.register_keras_serializable()
def _halved(weights: Any) -> Any:
    """Differs whenever it is applied more than once."""
    return 0.5 * weights


def spectral(input_shape: Shape, classes: int) -> keras.Model:
    """A layer that assigns to the kernel of another one when it is called."""
    inputs = keras.Input(shape=input_shape)
    x = layers.SpectralNormalization(layers.Dense(7))(layers.Flatten()(inputs))
    return keras.Model(inputs, layers.Dense(classes)(x))


class ResidualBlock(layers.Layer):
    def __init__(self, filters: int, **options: Any) -> None:
        super().__init__(**options)
        self.conv1, self.conv2 = (layers.Conv2D(filters, 3, padding="same", use_bias=False) for _ in range(2))
        self.bn1, self.bn2 = layers.BatchNormalization(), layers.BatchNormalization()
        self.shortcut = layers.Conv2D(filters, 1)

    def call(self, x: Any, training: bool = False) -> Any:
        y = keras.ops.relu(self.bn1(self.conv1(x), training=training))
        y = self.bn2(self.conv2(y), training=training)
        return keras.ops.relu(y + self.shortcut(x))


class ResidualNet(keras.Model):
    """A subclass that is built when it is first called."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.block, self.pool, self.head = ResidualBlock(6), layers.GlobalAveragePooling2D(), layers.Dense(classes)

    def call(self, x: Any, training: bool = False) -> Any:
        return self.head(self.pool(self.block(x, training=training)))


class ClassToken(layers.Layer):
    """Puts a learned token before the patches, and adds learned positions."""

    def build(self, shape: Any) -> None:
        _, tokens, width = shape
        self.token = self.add_weight(shape=(1, 1, width), initializer="zeros", name="token")
        self.positions = self.add_weight(shape=(1, tokens + 1, width), initializer="random_normal", name="positions")

    def call(self, x: Any) -> Any:
        token = keras.ops.repeat(self.token, keras.ops.shape(x)[0], axis=0)
        return keras.ops.concatenate([token, x], axis=1) + self.positions


def vision_transformer(input_shape: Shape, classes: int, patch: int = 4, width: int = 12) -> keras.Model:
    inputs = keras.Input(shape=input_shape)
    x = layers.Conv2D(width, patch, patch)(inputs)
    x = ClassToken()(layers.Reshape((-1, width))(x))
    y = layers.LayerNormalization()(x)
    x = layers.Add()([x, layers.MultiHeadAttention(2, width // 2)(y, y)])
    y = layers.Dense(2 * width, activation="gelu")(layers.LayerNormalization()(x))
    x = layers.Add()([x, layers.Dense(width)(y)])
    return keras.Model(inputs, layers.Dense(classes)(layers.LayerNormalization()(x)[:, 0]))


def shared(input_shape: Shape, classes: int) -> keras.Model:
    """One layer used twice, a frozen one, and a dictionary of outputs."""
    inputs = keras.Input(shape=input_shape)
    x = layers.Dense(10, trainable=False)(layers.Flatten()(inputs))
    again = layers.Dense(10, activation="tanh")
    x = again(again(x))
    return keras.Model(inputs, {"logits": layers.Dense(classes)(x), "features": x})


def build(input_shape: Shape, classes: int, kind: str, **arguments: Any) -> keras.Model:
    if kind == "subclass":
        return ResidualNet(classes)
    makers = {
        "preprocessing": preprocessing, "regularized": regularized, "constrained": constrained,
        "spectral": spectral,
        "vit": vision_transformer, "shared": shared,
    }
    return makers[kind](input_shape, classes, **arguments)
