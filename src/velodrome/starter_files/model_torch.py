"""A model of your own for PyTorch. Train it, or try it first with `velodrome check` and the same options:

COMMAND
"""

from torch import nn


class Net(nn.Module):
    """A small convolutional network. Replace it by your own: any nn.Module will do."""

    def __init__(self, channels, classes, width):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(channels, width, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),  # so that images of any size fit
        )
        self.classifier = nn.Linear(2 * width * 2 * 2, classes)

    def forward(self, images):
        # `images` is (count, channels, height, width), with values from 0 to 1 (see --pixels).
        # Return logits, one number per class. Log-probabilities, a softmax, an object with `.logits` as Hugging Face's
        # models return, and a tuple that begins with the logits are understood, too.
        return self.classifier(self.features(images).flatten(1))


def build(input_shape, classes, width=16):
    """Called in every training process. More arguments of your own: --model-arg width=32."""
    return Net(input_shape[0], classes, width)  # input_shape is channels, height, width
