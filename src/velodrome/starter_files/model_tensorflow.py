"""A model of your own for Keras 3. Train it, or try it first with `velodrome check` and the same options:

COMMAND
"""

import keras
from keras import layers


def build(input_shape, classes, width=16):
    """Called in every training process. More arguments of your own: --model-arg width=32.

    A small convolutional network. Replace it by your own: Sequential, functional or a subclass of keras.Model.
    """
    return keras.Sequential([
        keras.Input(input_shape),  # height, width, channels; values from 0 to 1 (see --pixels)
        layers.Conv2D(width, 3, padding="same", activation="relu"),
        layers.MaxPooling2D(2),
        layers.Conv2D(2 * width, 3, padding="same", activation="relu"),
        layers.GlobalAveragePooling2D(),  # so that images of any size fit
        # Logits, one number per class; a softmax at the end is understood, too. What compile() is given is ignored: the
        # optimizer is --optimizer, and the loss is that of the task.
        layers.Dense(classes),
    ])
