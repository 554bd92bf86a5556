"""Which test examples a model got right: summed over processes, and stored as text in a result.

One bit for each example, in the order of the test set.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import zlib

import numpy as np
from numpy.typing import NDArray

from velodrome.errors import shown

CorrectnessBits = NDArray[np.bool_]

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
