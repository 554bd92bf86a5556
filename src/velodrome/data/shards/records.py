"""The records of shards: images as PNG, JPEG or raw bytes and back, read block by block, and verified where they are.

Features are named as TensorFlow Datasets names them. Every record's checksum and every file's is compared on the way.
"""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from velodrome import files
from velodrome.data.base import Checked, DataError
from velodrome.data.shards import tfrecord
from velodrome.data.shards.index import ENCODINGS, Encoding, Index, ShardFile, strays
from velodrome.data.shards.tfrecord import Block, read_block
from velodrome.data.storage.store import Store
from velodrome.errors import BadRequest

Shape = tuple[int, int, int]
Images = NDArray[np.uint8]
Labels = NDArray[np.int64]

#: Channels that the formats can hold, and what Pillow calls them.
_MODES: dict[str, dict[int, str]] = {
    "png": {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"},
    "jpeg": {1: "L", 3: "RGB"},
}
#: Features of raw images.
_SIZES = ("height", "width", "channels")
#: TensorFlow's own default.
_JPEG_QUALITY = 95


def check_encoding(encoding: str, shape: Shape) -> Encoding:
    """The encoding of a name; refused if it is unknown, or cannot hold such images."""
    chosen = next((known for known in ENCODINGS if known == encoding), None)
    if chosen is None:
        raise BadRequest(f"--encoding {encoding!r}: choose one of {', '.join(ENCODINGS)}")
    if encoding != "raw" and shape[2] not in _MODES[encoding]:
        raise BadRequest(f"--encoding {encoding!r}: it holds no images with {shape[2]} channels; choose raw")
    return chosen


def to_records(images: Images, labels: Labels, encoding: str) -> bytes:
    """Framed records of some examples."""
    if encoding == "raw":
        sizes = dict(zip(_SIZES, map(int, images.shape[1:]), strict=True))
        rows = tfrecord.encode_rows(sizes, "image", images, "label", labels)
        if rows is not None:
            return tfrecord.frame_rows(rows)
        features: Iterable[dict[str, Any]] = (
            {**sizes, "image": image.tobytes(), "label": int(label)}
            for image, label in zip(images, labels, strict=True)
        )
    else:
        features = (
            {"image": _packed(image, encoding), "label": int(label)}
            for image, label in zip(images, labels, strict=True)
        )
    return tfrecord.frame_all(map(tfrecord.encode, features))


def _packed(image: Images, encoding: str) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    flat = image[..., 0] if image.shape[2] == 1 else image
    picture = Image.fromarray(np.ascontiguousarray(flat))
    if encoding == "png":
        picture.save(out, "PNG")
    else:
        picture.save(out, "JPEG", quality=_JPEG_QUALITY)
    return out.getvalue()


def from_records(block: Block, shape: Shape, encoding: str, where: str) -> tuple[Images, Labels]:
    """Images (count, height, width, channels) and labels of some records; what does not fit is named."""
    size = shape[0] * shape[1] * shape[2]
    if encoding == "raw" and block.rows is not None:
        try:
            quick = tfrecord.decode_rows(block.rows, "image", "label")
        except tfrecord.NotAnExample:
            quick = None
        if quick is not None and quick[0].shape[1] == size:
            return quick[0].reshape(-1, *shape), quick[1]
    records: Sequence[bytes] = [bytes(record) for record in block.records]
    images, labels = np.empty((len(records), *shape), np.uint8), np.empty(len(records), np.int64)
    with _usable(where):
        for place, record in enumerate(records):
            image, labels[place] = tfrecord.decode_image(record, "image", "label")
            images[place] = _unpacked(image, shape, encoding)
    return images, labels


@contextmanager
def _usable(where: str) -> Iterator[None]:
    """Around decoding examples of a file, which is refused if one of them is wrong."""
    try:
        yield
    except (tfrecord.NotAnExample, ValueError) as error:
        raise DataError(f"{where} holds an example that cannot be used: {error}") from None


def check_records(block: Block, shape: Shape, classes: int, encoding: str, where: str) -> None:
    """Refuse records whose label or shape is not as the index says; of packed images only the headers are read."""
    if encoding == "raw":
        labels = from_records(block, shape, encoding, where)[1]
        features = tfrecord.decode(bytes(block.records[0]))
        sizes = [features[name][0] for name in _SIZES if features.get(name)]
        if len(sizes) == len(_SIZES) and tuple(sizes) != shape:
            stored, wanted = ("×".join(map(str, each)) for each in (sizes, shape))
            raise DataError(f"{where} holds images of shape {stored} instead of {wanted}")
    else:
        labels = np.empty(len(block), np.int64)
        with _usable(where):
            for place, record in enumerate(block.records):
                image, labels[place] = tfrecord.decode_image(bytes(record), "image", "label")
                with _opened_image(image, shape, encoding):
                    pass
    if len(labels) and not 0 <= labels.min() <= labels.max() < classes:
        wrong = labels.min() if labels.min() < 0 else labels.max()
        raise DataError(f"{where} holds the label {wrong}, but its index has {classes} classes")


def _unpacked(data: bytes, shape: Shape, encoding: str) -> Images:
    """An image; ValueError if it is not of that shape."""
    height, width, channels = shape
    if encoding == "raw":
        if len(data) != height * width * channels:
            raise ValueError(f"its image has {len(data):,} bytes instead of {height * width * channels:,}")
        return np.frombuffer(data, np.uint8).reshape(shape)
    with _opened_image(data, shape, encoding) as picture:
        return np.frombuffer(picture.tobytes(), np.uint8).reshape(shape)


@contextmanager
def _opened_image(data: bytes, shape: Shape, encoding: str) -> Iterator[Any]:
    """A packed image whose header was read; ValueError if it is not of that shape, or cannot be decoded."""
    from PIL import Image

    height, width, channels = shape
    try:
        with Image.open(io.BytesIO(data), formats=[encoding.upper()]) as picture:
            if picture.size != (width, height) or picture.mode != _MODES[encoding].get(channels):
                raise ValueError(
                    f"its image is {picture.height}×{picture.width} {picture.mode} instead of {height}×{width} with "
                    f"{channels} channels"
                )
            yield picture
    except ValueError:
        raise
    except Exception as error:  # a damaged file may raise anything at all in a decoder
        raise ValueError(f"its image is no {encoding} that can be read ({error})") from None


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
            for future in reading:
                future.result()
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
            raise self._other(f"holds {self._examples:,} examples, but its index says {self._file.examples:,}")

    def finish(self) -> None:
        with files.open_regular(self._path) as stream:
            stream.seek(self._place)
            if stream.read(1):
                raise self._other(f"holds more than the {self._file.examples:,} examples of its index")
        if self._sum.hexdigest() != self._file.sha256:
            raise self._other("has another checksum than its index says")

    def _other(self, what: str) -> DataError:
        return DataError(f"{str(self._path)!r} {what}: write the set again")


_WRITE_AGAIN = "write the set again with velodrome data shard --force"
#: Records that are read at a time, and bytes of images.
_RECORDS, _BYTES = 1024, 16 << 20


def check_set(store: Store, index: Index) -> list[Checked]:
    """Every file of a set, and what lies beside them and would be read with them or was left half written."""
    checked = [_check_file(store, index, file) for file in index.every_file]
    for name in strays(store, (file.name for file in index.every_file)):
        checked.append(
            _wrong(store, name, "stray", "it is not in the index, and reading *.tfrecord reads it: remove it")
        )
    for name in store.half_written():
        checked.append(_wrong(store, name, "stray", "a process that was killed left it half written: remove it"))
    return checked


def _wrong(store: Store, name: str, state: Literal["missing", "damaged", "stray"], detail: str) -> Checked:
    """A file that only whoever wrote the set can repair."""
    return Checked(store.address(name), state, detail, by_prepare=False)


def _check_file(store: Store, index: Index, file: ShardFile) -> Checked:
    size = store.size(file.name)
    if size is None:
        return _wrong(store, file.name, "missing", _WRITE_AGAIN)
    if size != file.bytes:
        return _wrong(
            store, file.name, "damaged", f"it has {size:,} bytes, but its index says {file.bytes:,}: {_WRITE_AGAIN}"
        )
    try:
        with _content_of(store, file.name) as stream:
            _check_records(stream, index, file)
    except DataError as error:
        return _wrong(store, file.name, "damaged", f"{error}: {_WRITE_AGAIN}")
    return Checked(store.address(file.name), "ok")


@contextmanager
def _content_of(store: Store, name: str) -> Iterator[IO[bytes]]:
    """A file as a stream that can be read at any place: a remote one is copied to a temporary file first."""
    if store.folder is not None:
        with files.open_regular(store.folder / name) as stream:
            yield stream
        return
    with tempfile.TemporaryFile(prefix="velodrome-") as copy:
        for data in store.chunks(name):
            copy.write(data)
        copy.seek(0)
        yield copy


def _check_records(stream: IO[bytes], index: Index, file: ShardFile) -> None:
    """Compare a file with its index: checksum, number of records, and shape and label of each."""
    count = max(1, min(_RECORDS, _BYTES // (index.shape[0] * index.shape[1] * index.shape[2])))
    digest, examples = hashlib.sha256(), 0
    while len(block := read_block(stream, count, "it")):
        digest.update(block.framed)
        examples += len(block)
        check_records(block, index.shape, index.classes, index.encoding, "it")
    if digest.hexdigest() != file.sha256:
        raise DataError("it has another checksum than its index says")
    if examples != file.examples:
        raise DataError(f"it holds {examples:,} examples, but its index says {file.examples:,}")
