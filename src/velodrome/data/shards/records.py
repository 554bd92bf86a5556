"""Images as the bytes of a record and back: PNG, JPEG or raw. Features are named as TensorFlow Datasets names them."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from velodrome.data.base import DataError
from velodrome.data.shards import example, tfrecord
from velodrome.data.shards.tfrecord import Block
from velodrome.errors import BadRequest

Encoding = Literal["png", "jpeg", "raw"]
ENCODINGS: tuple[str, ...] = get_args(Encoding)
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


def check_encoding(encoding: str, shape: Shape) -> None:
    """Refuse an encoding that is none, or that cannot hold such images."""
    if encoding not in ENCODINGS:
        raise BadRequest(f"--encoding {encoding!r}: choose one of {', '.join(ENCODINGS)}")
    if encoding != "raw" and shape[2] not in _MODES[encoding]:
        raise BadRequest(f"--encoding {encoding!r}: it holds no images with {shape[2]} channels; choose raw")


def to_records(images: Images, labels: Labels, encoding: str) -> bytes:
    """Framed records of some examples."""
    if encoding == "raw":
        sizes = dict(zip(_SIZES, map(int, images.shape[1:]), strict=True))
        rows = example.encode_rows(sizes, "image", images, "label", labels)
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
    return tfrecord.frame_all(map(example.encode, features))


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
    if encoding == "raw" and isinstance(block.records, np.ndarray):
        try:
            quick = example.decode_rows(block.records, "image", "label")
        except example.NotAnExample:
            quick = None
        if quick is not None and quick[0].shape[1] == size:
            return quick[0].reshape(-1, *shape), quick[1]
    records: Sequence[bytes] = [bytes(record) for record in block.records]
    images, labels = np.empty((len(records), *shape), np.uint8), np.empty(len(records), np.int64)
    for place, record in enumerate(records):
        try:
            image, labels[place] = example.decode_image(record, "image", "label")
            images[place] = _unpacked(image, shape, encoding)
        except (example.NotAnExample, ValueError) as error:
            raise DataError(f"{where} holds an example that cannot be used: {error}") from None
    return images, labels


def check_records(block: Block, shape: Shape, classes: int, encoding: str, where: str) -> None:
    """Refuse records whose label or shape is not as the index says; of packed images only the headers are read."""
    if encoding == "raw":
        labels = from_records(block, shape, encoding, where)[1]
        features = example.decode(bytes(block.records[0]))
        sizes = [features[name][0] for name in _SIZES if features.get(name)]
        if len(sizes) == len(_SIZES) and tuple(sizes) != shape:
            found, wanted = ("×".join(map(str, one)) for one in (sizes, shape))
            raise DataError(f"{where} holds images of shape {found} instead of {wanted}")
    else:
        labels = np.empty(len(block), np.int64)
        for place, record in enumerate(block.records):
            try:
                image, labels[place] = example.decode_image(bytes(record), "image", "label")
                with _opened(image, shape, encoding):
                    pass
            except (example.NotAnExample, ValueError) as error:
                raise DataError(f"{where} holds an example that cannot be used: {error}") from None
    if len(labels) and not 0 <= labels.min() <= labels.max() < classes:
        wrong = labels.min() if labels.min() < 0 else labels.max()
        raise DataError(f"{where} holds the label {wrong}, and its index has {classes} classes")


def _unpacked(data: bytes, shape: Shape, encoding: str) -> Images:
    """An image; ValueError if it is not of that shape."""
    height, width, channels = shape
    if encoding == "raw":
        if len(data) != height * width * channels:
            raise ValueError(f"its image has {len(data):,} bytes instead of {height * width * channels:,}")
        return np.frombuffer(data, np.uint8).reshape(shape)
    with _opened(data, shape, encoding) as picture:
        return np.frombuffer(picture.tobytes(), np.uint8).reshape(shape)


@contextmanager
def _opened(data: bytes, shape: Shape, encoding: str) -> Iterator[Any]:
    """A packed image whose header was read; ValueError if it is not of that shape, or cannot be decoded meanwhile."""
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
