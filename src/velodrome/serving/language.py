"""A language model that answers: the next words with their probabilities, and text that it continues by itself."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from velodrome.data.text import EOS, UNKNOWN
from velodrome.serving.answers import probabilities_of
from velodrome.serving.model import NOT_FINITE, Array, BadInput, LoadedModel

LONGEST_TEXT = 20_000
MOST_WORDS = 200
#: Of the words so far, so many at most are read by a model that carries a state.
_READ = 500


class Reader:
    """A place in a text: the words so far, and the state that the model carries after them."""

    def __init__(self, model: LoadedModel) -> None:
        self._model, about = model, model.about
        self._words: list[int] = []
        self._state = {one.name: np.zeros([1 if axis < 0 else axis for axis in one.shape], np.float32)
                       for one in about.state}
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
            raise BadInput(f"the text has {len(text):,} characters, and at most {LONGEST_TEXT:,} are read", 413)
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
