"""A text as the language model sees it: words as numbers, in three parts that never share a line."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

EOS, UNKNOWN = "<eos>", "<unk>"
#: Words that are read at a time for a fingerprint.
_WORDS_AT_ONCE = 1_000_000


@dataclass(frozen=True)
class Text:
    """Each part is one long row of places in `vocabulary`; every line ends with the place of `<eos>`."""

    name: str
    train: NDArray[np.int32]
    validation: NDArray[np.int32]
    test: NDArray[np.int32]
    vocabulary: list[str]
    #: What was left out or changed on the way, as sentences for the reader of a run.
    notes: tuple[str, ...] = ()
    #: As in `ExampleSet`; a text has none of the last two.
    kind: ClassVar[Literal["text"]] = "text"
    caveats: ClassVar[tuple[str, ...]] = ()
    columns: ClassVar[Mapping[str, Any]] = MappingProxyType({})

    def identity(self) -> dict[str, Any]:
        """What the text of a run is recognized by: words of each part, and a fingerprint of all and the vocabulary."""
        counts = {"train": len(self.train), "validation": len(self.validation), "test": len(self.test)}
        content = hashlib.blake2b(json.dumps(counts).encode(), digest_size=8)
        content.update("\n".join(self.vocabulary).encode())
        for part in (self.train, self.validation, self.test):
            for first in range(0, len(part), _WORDS_AT_ONCE):
                content.update(np.ascontiguousarray(part[first : first + _WORDS_AT_ONCE]).data)
        return {**counts, "fingerprint": content.hexdigest()}


def vocabulary_of(lines: Iterable[Sequence[str]], *, most: int | None) -> list[str]:
    """`<eos>`, `<unk>` and the words, the most frequent first and equally frequent ones by the alphabet.

    With `most`, only so many words in addition to these two are kept.
    """
    ends = 0
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(line)
        ends += 1
    counts[EOS] += ends
    unknown = counts.pop(UNKNOWN, 0)
    words = sorted(counts, key=lambda word: (-counts[word], word))
    if most is not None:
        words = [EOS, *[word for word in words if word != EOS][:most]]
        unknown = max(unknown, 1)
    if unknown:
        counts[UNKNOWN] = unknown
        words = sorted({*words, UNKNOWN}, key=lambda word: (-counts[word], word))
    return words


def numbered(lines: Iterable[Sequence[str]], vocabulary: Sequence[str]) -> NDArray[np.int32]:
    """Lines as numbers of words in the vocabulary, each ended by `<eos>`; a word it lacks becomes `<unk>`."""
    places = {word: place for place, word in enumerate(vocabulary)}
    end, unknown = places[EOS], places.get(UNKNOWN, -1)
    rows = chain.from_iterable(chain((places.get(word, unknown) for word in line), (end,)) for line in lines)
    numbers = np.fromiter(rows, np.int32)
    if (numbers < 0).any():
        raise ValueError("a word is neither in the vocabulary nor is there a place for unknown ones")
    return numbers
