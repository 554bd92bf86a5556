"""Reads shards back into arrays, block by block: every record's checksum and every file's is compared on the way."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from velodrome import files
from velodrome.data.base import DataError
from velodrome.data.shards.index import Index, ShardFile
from velodrome.data.shards.records import from_records
from velodrome.data.shards.tfrecord import read_block

#: Bytes of images that are decoded at a time.
_BLOCK = 16 << 20


def blocks(
    paths: list[Path], files: tuple[ShardFile, ...], index: Index
) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.int64]]]:
    """Examples in the data set's order: files take turns, one example each, and are decoded side by side."""
    if not files:
        return
    each = index.shape[0] * index.shape[1] * index.shape[2]
    count = max(1, _BLOCK // (each * len(files)))
    readers = [_Reader(path, file, index) for path, file in zip(paths, files, strict=True)]
    longest = max(file.examples for file in files)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for first in range(0, longest, count):
            rows = min(count, longest - first)
            # Where files differ by an example, the shorter ones leave a gap at the end that is cut out.
            images = np.zeros((rows, len(files), *index.shape), np.uint8)
            labels = np.full((rows, len(files)), -1, np.int64)
            reading = [
                pool.submit(reader.read, rows, images[:, k], labels[:, k]) for k, reader in enumerate(readers)
            ]
            for one in reading:
                one.result()
            taken = np.arange(rows)[:, None] < np.array([reader.last for reader in readers])
            yield (images.reshape(-1, *index.shape), labels.ravel()) if taken.all() else (images[taken], labels[taken])
    for reader in readers:
        reader.finish()


class _Reader:
    """One file, read from front to back and summed on the way."""

    def __init__(self, path: Path, file: ShardFile, index: Index) -> None:
        self._path, self._file, self._index = path, file, index
        self._sum, self._place, self._examples = hashlib.sha256(), 0, 0
        #: Examples that the last reading gave.
        self.last = 0

    def read(self, count: int, images: NDArray[np.uint8], labels: NDArray[np.int64]) -> None:
        """The next examples, at most `count`, into the front of these arrays."""
        self.last = 0
        try:
            with files.open_regular(self._path) as stream:
                stream.seek(self._place)
                while self.last < count:
                    block = read_block(stream, count - self.last, repr(str(self._path)))
                    if not len(block):
                        break
                    self._sum.update(block.framed)
                    some, their_labels = from_records(
                        block, self._index.shape, self._index.encoding, repr(str(self._path))
                    )
                    images[self.last : self.last + len(block)] = some
                    labels[self.last : self.last + len(block)] = their_labels
                    self.last += len(block)
                self._place = stream.tell()
        except OSError as error:
            raise DataError(f"{str(self._path)!r} cannot be read: {error.strerror or error}") from None
        self._examples += self.last
        wanted = min(count, self._file.examples - (self._examples - self.last))
        if self.last > wanted:
            raise self._other(f"holds more than the {self._file.examples:,} examples of its index")
        if self.last < wanted:
            raise self._other(f"holds {self._examples:,} examples, and its index says {self._file.examples:,}")

    def finish(self) -> None:
        with files.open_regular(self._path) as stream:
            stream.seek(self._place)
            if stream.read(1):
                raise self._other(f"holds more than the {self._file.examples:,} examples of its index")
        if self._sum.hexdigest() != self._file.sha256:
            raise self._other("has another checksum than its index says")

    def _other(self, what: str) -> DataError:
        return DataError(f"{str(self._path)!r} {what}: write the set again")
