"""What a model looked at: how much less probable its answer becomes where a part of the picture is covered."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from velodrome.models.served import MOST_OF_BATCH
from velodrome.serving.answers import answers_of, probabilities_of
from velodrome.serving.model import Array, BadInput, LoadedModel

#: Rows and columns of the map, at most; each cell is one forward pass.
_CELLS = 14


@dataclass(frozen=True)
class Explanation:
    """A class, its probability, and for each cell of a grid how much of it is lost when the cell is covered."""

    answer: str
    probability: float
    #: Rows from the top, from -1 to 1: positive where the picture speaks for the class.
    grid: list[list[float]]


def occlusion(model: LoadedModel, image: Array) -> Explanation:
    """Cover one square after another with the mean of the picture's border, and see what becomes of the answer.

    `image` is a batch of one, as the graph takes it.
    """
    about = model.about
    if about.task != "classification" or not about.inputs[0].image:
        raise BadInput(f"a map is drawn for classifiers of pictures, and this task is {about.task}")
    name, (height, width) = about.inputs[0].name, image.shape[1:3]
    rows, columns = min(_CELLS, height), min(_CELLS, width)
    if rows * columns * image.size > MOST_OF_BATCH:
        raise BadInput(f"a picture of {height} × {width} is too large for a map", 413)
    tops, lefts = (np.linspace(0, size, cells + 1).astype(int) for size, cells in ((height, rows), (width, columns)))
    border = np.concatenate([image[0, 0], image[0, -1], image[0, :, 0], image[0, :, -1]])
    grey = border.mean(0).astype(image.dtype)
    # A square covers its neighbours by half, so that no edge between two cells hides what lies on it.
    reach_y, reach_x = max(1, height // rows // 2), max(1, width // columns // 2)
    covered = np.repeat(image, rows * columns, axis=0)
    for row in range(rows):
        for column in range(columns):
            place = row * columns + column
            covered[place, max(0, tops[row] - reach_y) : tops[row + 1] + reach_y,
                    max(0, lefts[column] - reach_x) : lefts[column + 1] + reach_x] = grey
    plain = probabilities_of(about, model.scores({name: image}))[0]
    best = int(plain.argmax())
    lost = plain[best] - probabilities_of(about, model.scores({name: covered}))[:, best]
    first = answers_of(about, model.scores({name: image}), 1)[0][0]
    grid = np.round(lost.reshape(rows, columns), 4).tolist()
    return Explanation(first["class"], first["probability"], grid)
