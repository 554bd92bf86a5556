"""Your own model, once for each engine. Each function imports its framework itself: the other may be missing.

velodrome train --model own_model:build_torch --engine torch --strategy ddp --workers 2
velodrome train --model own_model:build_keras --engine tensorflow --strategy mirrored --workers 2
"""


def build_torch(input_shape, classes, width=32):
    """A small convolutional network; `input_shape` is channels, height, width."""
    from torch import nn

    channels, height, width_of_image = input_shape
    return nn.Sequential(
        nn.Conv2d(channels, width, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(width * (height // 2) * (width_of_image // 2), classes),
    )


def build_keras(input_shape, classes, width=32):
    """The same in Keras 3; `input_shape` is height, width, channels."""
    import keras

    return keras.Sequential([
        keras.Input(input_shape),
        keras.layers.Conv2D(width, 3, padding="same", activation="relu"),
        keras.layers.MaxPooling2D(2),
        keras.layers.Flatten(),
        keras.layers.Dense(classes),
    ])
