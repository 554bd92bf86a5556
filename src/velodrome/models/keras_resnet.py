"""ResNet-20 for small images in Keras: the same network as in `torch_resnet`, with the same initial distribution."""

from __future__ import annotations

import keras
from keras import layers

#: Filters of the stages, and blocks of each: 6 · 3 + 2 = 20 layers with weights.
STAGES, BLOCKS = (16, 32, 64), 3


def resnet20(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """The network for images of (height, width, channels); logits go out."""
    images = keras.Input(input_shape)
    now = layers.ReLU()(_normalised(_convolved(images, STAGES[0])))
    for stage, filters in enumerate(STAGES):
        for block in range(BLOCKS):
            now = _residual(now, filters, begins=stage > 0 and block == 0)
    logits = layers.Dense(classes, kernel_initializer=_he_normal())(layers.GlobalAveragePooling2D()(now))
    return keras.Model(images, logits, name="resnet20")


def _residual(images: keras.KerasTensor, filters: int, *, begins: bool) -> keras.KerasTensor:
    """Two convolutions and a shortcut around them; where a stage begins, half the height and width go out."""
    hidden = layers.ReLU()(_normalised(_convolved(images, filters, stride=2 if begins else 1)))
    hidden = _normalised(_convolved(hidden, filters))
    if begins:
        # The paper's option A: every second pixel, and zeros for the new channels.
        images = layers.MaxPooling2D(1, strides=2)(images)
        images = keras.ops.pad(images, [[0, 0], [0, 0], [0, 0], [0, filters - images.shape[-1]]])
    return layers.ReLU()(layers.Add()([hidden, images]))


def _convolved(images: keras.KerasTensor, filters: int, stride: int = 1) -> keras.KerasTensor:
    if stride > 1:
        # Of an even size, "same" would pad the end alone; the paper and PyTorch pad both sides.
        images = layers.ZeroPadding2D(1)(images)
    padding = "same" if stride == 1 else "valid"
    convolution = layers.Conv2D(
        filters, 3, stride, padding=padding, use_bias=False, kernel_initializer=_he_normal()
    )
    return convolution(images)


def _normalised(images: keras.KerasTensor) -> keras.KerasTensor:
    """Batch normalisation with PyTorch's defaults."""
    return layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(images)


def _he_normal() -> keras.initializers.Initializer:
    """Variance 2 / fan-in. Keras' own `HeNormal` is truncated."""
    return keras.initializers.VarianceScaling(2.0, "fan_in", "untruncated_normal")
