"""What a model's scores say: classes with probabilities, numbers with names, what it looked at, and the next words.

Many requests are answered at a time: examples that arrive while the model is busy are computed together, next. Nobody
waits for a batch to fill: a lone request is computed at once.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import numpy as np

from velodrome.data.sources.text import EOS, UNKNOWN
from velodrome.models.description import MOST_OF_BATCH, Served
from velodrome.serving.model import NOT_FINITE, Array, BadInput, LoadedModel

Response = list[dict[str, Any]]
#: Classes that are listed, unless more are asked for.
TOP = 10
_FEW = 64
_CLASSES = frozenset({"classification", "language-model", "binary", "multi-label"})


def responses_of(about: Served, scores: Array, top: int = TOP) -> list[Response]:
    """For each example, what the model says: classes with probabilities, the most probable first, or numbers."""
    return [response_of(about, row, top) for row in numbers_of(about, scores).tolist()]


def numbers_of(about: Served, scores: Array) -> Array:
    """What scores mean, a row for each example: a probability for each class, or numbers in the units of the data."""
    if about.task in ("classification", "language-model"):
        return probabilities_of(about, scores)
    flat = scores.reshape(len(scores), -1)
    if about.task == "binary":
        yes = _sigmoid(about, flat)[:, :1]
        return np.concatenate([1 - yes, yes], 1)
    if about.task == "multi-label":
        return _sigmoid(about, flat)
    return _in_units(about, flat)


def response_of(about: Served, row: list[float], top: int = TOP) -> Response:
    """One row of `numbers_of` in words."""
    if about.task not in _CLASSES:
        labels = about.classes if len(about.classes) == len(row) else [f"output {n + 1}" for n in range(len(row))]
        return [{"name": name, "value": value} for name, value in zip(labels, row, strict=True)]
    names = about.vocabulary or about.classes
    return [{"class": names[place] if place < len(names) else str(place), "probability": round(row[place], 6)}
            for place in _largest(row, top)]


def probabilities_of(about: Served, scores: Array) -> Array:
    """Probabilities of a classifier, one row for each example."""
    numbers = scores.astype(np.float64)
    if about.outputs in ("softmax", "probabilities"):
        return numbers
    if about.outputs == "sigmoid":
        shares: Array = numbers / np.maximum(numbers.sum(1, keepdims=True), 1e-12)
        return shares
    raised = np.exp(numbers - numbers.max(1, keepdims=True))
    probabilities: Array = raised / raised.sum(1, keepdims=True)
    return probabilities


def _sigmoid(about: Served, scores: Array) -> Array:
    numbers = scores.astype(np.float64)
    if about.outputs in ("sigmoid", "probabilities", "softmax"):
        return numbers
    probabilities: Array = 0.5 * (1 + np.tanh(0.5 * numbers))
    return probabilities


def _largest(row: list[float], top: int) -> list[int]:
    """The places of the largest numbers, in order."""
    width = len(row)
    if width <= _FEW or width <= top:  # Python sorts a few numbers in a fraction of the time that NumPy takes to begin
        return sorted(range(width), key=row.__getitem__, reverse=True)[:top]
    numbers = np.asarray(row)
    best = np.sort(np.argpartition(-numbers, top)[:top])  # equal ones in the order of the classes
    places: list[int] = best[np.argsort(-numbers[best], kind="stable")].tolist()
    return places


def _in_units(about: Served, scores: Array) -> Array:
    """Predicted numbers in the units of the data: a target that was standardised is brought back."""
    targets = about.encoding.targets if about.encoding else ()
    scaled = [target for target in targets if target.how == "scale"]
    numbers: Array = scores.astype(np.float64)
    if len(scaled) == numbers.shape[1]:
        numbers = numbers * [target.deviation for target in scaled] + [target.mean for target in scaled]
    return numbers


#: Rows and columns of the map, at most; each cell is one forward pass.
_CELLS = 14


@dataclass(frozen=True)
class Explanation:
    """A class, its probability, and for each cell of a grid how much of it is lost when the cell is covered."""

    predicted: str
    probability: float
    #: Rows from the top, from -1 to 1: positive where the picture speaks for the class.
    grid: list[list[float]]


def occlusion(model: LoadedModel, image: Array) -> Explanation:
    """Cover one square after another with the mean of the picture's border, and see what becomes of its probability.

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
    first = responses_of(about, model.scores({name: image}), 1)[0][0]
    grid = np.round(lost.reshape(rows, columns), 4).tolist()
    return Explanation(first["class"], first["probability"], grid)


LONGEST_TEXT = 20_000
MOST_WORDS = 200
#: Of the words so far, so many at most are read by a model that carries a state.
_READ = 500


class Reader:
    """A place in a text: the words so far, and the state that the model carries after them."""

    def __init__(self, model: LoadedModel) -> None:
        self._model, about = model, model.about
        self._words: list[int] = []
        self._state = {state.name: np.zeros([1 if axis < 0 else axis for axis in state.shape], np.float32)
                       for state in about.state}
        self._places = {word: place for place, word in enumerate(about.vocabulary)}
        self._probabilities: Array | None = None

    def read(self, words: Sequence[int]) -> None:
        """Continue behind these words."""
        about = self._model.about
        if not about.state:
            self._words = [*self._words, *words][-(about.context or 1):]
            scores = self._model.run({"words": np.array([self._words], np.int64)})[0]
            self._probabilities = probabilities_of(about, scores[:, -1])[0]
            return
        for word in words[-_READ:]:
            scores, *after = self._model.run({"words": np.array([[word]], np.int64), **self._state})
            self._state = dict(zip(self._state, after, strict=True))
            self._probabilities = probabilities_of(about, scores[:, -1])[0]

    @property
    def probabilities(self) -> Array:
        assert self._probabilities is not None, "something was read"
        return self._probabilities

    def places_of(self, text: str) -> list[int]:
        """The words of a text, a line's end before the first; words that the model does not know are `<unk>`."""
        if len(text) > LONGEST_TEXT:
            raise BadInput(f"the text has {len(text):,} characters, but at most {LONGEST_TEXT:,} are read", 413)
        end = self._places.get(EOS, 0)
        unknown = self._places.get(UNKNOWN, end)
        places = [end]
        for number, line in enumerate(text.split("\n")):
            if number:
                places.append(end)
            places += [self._places.get(word, self._places.get(word.lower(), unknown)) for word in line.split()]
        return places


def next_words(model: LoadedModel, text: str) -> Array:
    """The probability of every word of the vocabulary to follow a text."""
    reader = Reader(model)
    reader.read(reader.places_of(text))
    if not np.isfinite(reader.probabilities).all():
        raise BadInput(NOT_FINITE)
    return reader.probabilities


def unknown_words(model: LoadedModel, text: str) -> list[str]:
    """Words of a text that the model does not know, each once."""
    known = set(model.about.vocabulary)
    return list(dict.fromkeys(word for word in text.split() if word not in known and word.lower() not in known))


def generate(
    model: LoadedModel, text: str, *, words: int = 30, temperature: float = 1.0, seed: int | None = None
) -> Iterator[str]:
    """Words that continue a text, drawn one after another; a temperature of 0 takes the most probable."""
    if not 1 <= words <= MOST_WORDS:
        raise BadInput(f"{words} words: choose a number from 1 to {MOST_WORDS}")
    if not math.isfinite(temperature) or not 0 <= temperature <= 10:
        raise BadInput(f"temperature {temperature}: choose a number from 0 to 10")
    reader = Reader(model)
    reader.read(reader.places_of(text))
    vocabulary, draw = model.about.vocabulary, np.random.default_rng(seed)
    unknown = vocabulary.index(UNKNOWN) if UNKNOWN in vocabulary else None
    for _ in range(words):
        chances = reader.probabilities[: len(vocabulary)].copy()
        if not np.isfinite(chances).all():
            raise BadInput(NOT_FINITE)
        if unknown is not None and len(vocabulary) > 1:
            chances[unknown] = 0.0  # a word that stands for others says nothing
        word = int(chances.argmax()) if temperature == 0 else _drawn(chances, temperature, draw)
        yield vocabulary[word]
        reader.read([word])


def _drawn(chances: Array, temperature: float, draw: np.random.Generator) -> int:
    logits = np.log(np.maximum(chances, 1e-300)) / max(temperature, 1e-3)
    raised = np.exp(logits - logits.max())
    return int(draw.choice(len(raised), p=raised / raised.sum()))


#: Requests that may wait; more are turned away, so that memory stays bounded.
MOST_WAITING = 1_024
#: Requests of a batch: larger ones gain nothing, and the first of them would wait for the last.
MOST_TOGETHER = 8
_Waiting = tuple[Mapping[str, Array], "asyncio.Future[list[float]]"]


class Batcher:
    """A model behind a queue; several calls of it at a time."""

    def __init__(self, model: LoadedModel, executor: Executor, *, at_once: int = 1) -> None:
        self._model, self._executor, self._free = model, executor, at_once
        self._waiting: deque[_Waiting] = deque()
        self._running: set[asyncio.Task[None]] = set()

    async def numbers(self, inputs: Mapping[str, Array]) -> list[float]:
        """The numbers of one example, a batch of one, as `numbers_of` makes them."""
        if len(self._waiting) >= MOST_WAITING:
            raise BadInput("too many requests are waiting: try again in a moment", 503)
        loop = asyncio.get_running_loop()
        response: asyncio.Future[list[float]] = loop.create_future()
        self._waiting.append((inputs, response))
        if self._free:
            self._free -= 1
            task = loop.create_task(self._work())
            self._running.add(task)  # the loop itself holds tasks weakly
            task.add_done_callback(self._running.discard)
        return await response

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                requests: list[_Waiting] = []
                while self._waiting and len(requests) < MOST_TOGETHER:
                    request = self._waiting.popleft()
                    if not request[1].done():  # who gave up needs none
                        requests.append(request)
                if requests:
                    await self._respond(loop, requests)
        finally:
            self._free += 1

    async def _respond(self, loop: asyncio.AbstractEventLoop, requests: Sequence[_Waiting]) -> None:
        try:
            rows = await loop.run_in_executor(self._executor, self._computed, [inputs for inputs, _ in requests])
        except Exception as error:  # of the runtime: each request gets it
            for _, response in requests:
                if not response.done():
                    response.set_exception(error)
            return
        for (_, response), row in zip(requests, rows, strict=True):
            if response.done():
                continue
            if row is None:
                response.set_exception(BadInput(NOT_FINITE))
            else:
                response.set_result(row)

    def _computed(self, examples: Sequence[Mapping[str, Array]]) -> list[list[float] | None]:
        """For each example its numbers, or None if some are not finite."""
        joined = examples[0]
        if len(examples) > 1:
            joined = {name: np.concatenate([example[name] for example in examples]) for name in joined}
        with np.errstate(invalid="ignore"):
            numbers = numbers_of(self._model.about, self._model.scores(joined))
        finite: list[bool] = np.logical_and.reduce(np.isfinite(numbers), axis=1).tolist()
        return [row if good else None for row, good in zip(numbers.tolist(), finite, strict=True)]
