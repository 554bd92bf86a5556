"""What processes count in an evaluation, summed over them; and which test examples a model got right, stored as text in
a result: one bit for each example, in the order of the test set."""

from __future__ import annotations

import base64
import binascii
import hashlib
import zlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from velodrome.errors import shown
from velodrome.tasks.base import Counts

CorrectnessBits = NDArray[np.bool_]
Vector = NDArray[np.float64]

#: A confusion matrix of more classes is unreadable and large.
MAX_CONFUSION_CLASSES = 100
#: Bytes that a float64 carries exactly.
_BYTES = 6
#: Examples whose bits are read from a result: each takes a bit there, and several bytes here.
MOST_EXAMPLES = 1 << 24
#: Images that take part in a fingerprint.
_SAMPLED = 64


def to_vector(bits: CorrectnessBits) -> NDArray[np.float64]:
    """Numbers whose sum over processes has the bits of all of them, if no two processes evaluate the same example."""
    packed = np.packbits(bits)
    rows = np.zeros((-(-len(packed) // _BYTES), 8), np.uint8)
    rows[:, :_BYTES] = np.pad(packed, (0, -len(packed) % _BYTES)).reshape(-1, _BYTES)
    return rows.view("<u8").ravel().astype(np.float64)


def from_vector(vector: NDArray[np.float64], count: int) -> CorrectnessBits:
    """The bits of so many examples, from what `to_vector` returned or the sum of several."""
    rows = np.rint(vector).astype("<u8").view(np.uint8).reshape(-1, 8)
    return np.unpackbits(np.ascontiguousarray(rows[:, :_BYTES]).ravel(), count=count).astype(np.bool_)


def encode(bits: CorrectnessBits) -> str:
    """The bits as a result holds them: compressed by zlib, in base64."""
    return base64.b64encode(zlib.compress(np.packbits(bits).tobytes(), 9)).decode()


def decode(text: str, count: int) -> CorrectnessBits:
    """The bits of so many examples that `encode` wrote; ValueError if they are not that."""
    if not 0 <= count <= MOST_EXAMPLES:
        raise ValueError(f"the answers of {shown(count, 20)} examples are not read: at most {MOST_EXAMPLES:,}")
    stream = zlib.decompressobj()
    try:
        # What is longer than so many bits was not written for so many examples, however well it compresses.
        packed = stream.decompress(base64.b64decode(text, validate=True), -(-count // 8) + 1)
    except (binascii.Error, zlib.error, ValueError) as error:
        raise ValueError(f"the answers cannot be decoded: {error}") from None
    bits = np.unpackbits(np.frombuffer(packed, np.uint8))
    if not stream.eof or len(packed) != -(-count // 8) or bits[count:].any():
        raise ValueError(f"the answers are not those of {count} examples")
    return bits[:count].view(np.bool_)


def fingerprint(images: NDArray[np.uint8], labels: NDArray[np.int64]) -> str:
    """Equal for equal examples in the same order; made of all labels and some images."""
    sample = np.unique(np.linspace(0, len(labels) - 1, _SAMPLED).astype(np.int64))
    digest = hashlib.sha256(np.ascontiguousarray(labels, "<i8").tobytes())
    for place in sample:
        digest.update(np.ascontiguousarray(images[place]).tobytes())
    return digest.hexdigest()[:16]


class Evaluated(NamedTuple):
    """What a process counted in an evaluation of a part; `summed`, what all of them did."""

    counts: Counts
    #: Examples of each true class (row) by predicted class (column), flattened; None where it is not counted.
    confusion: Vector | None = None
    #: For every example of the part, whether it was classified correctly; None where no answer is right.
    answers: CorrectnessBits | None = None
    #: For every example of the part, its scores, flattened, zero where another process has it; None where a task needs
    #: none.
    scores: Vector | None = None

    def summed(self, names: Sequence[str], total: Callable[[Vector], Vector]) -> Evaluated:
        """The sums over processes by one message; `total` returns the sum of the processes' vectors."""
        bits = None if self.answers is None else to_vector(self.answers)
        optional = [np.zeros(0) if each is None else each for each in (self.confusion, self.scores, bits)]
        parts = [self.counts.vector(names), *optional]
        sums = np.split(total(np.concatenate(parts)), np.cumsum([len(each) for each in parts[:-1]]))
        return Evaluated(
            Counts.of(sums[0], names), None if self.confusion is None else sums[1],
            None if self.answers is None else from_vector(sums[3], len(self.answers)),
            None if self.scores is None else sums[2],
        )
