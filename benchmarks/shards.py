"""Writes and reads shards of 28×28 images on one core, against TensorFlow's own writer and reader, turn by turn.

Prints MB of images (784 bytes each) per second of processor time, and the ratio to TensorFlow with its spread. With
`--codec` it compares the protobuf codec of `tf.train.Example` with a pure-Python one instead, without TensorFlow.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pure_python_example

from velodrome.data.shards import records as encode
from velodrome.data.shards import tfrecord as example
from velodrome.data.shards.tfrecord import read_block

SHAPE = (28, 28, 1)


def images(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Strokes on black, so that PNG has as much to do as with digits."""
    random = np.random.default_rng(0)
    noise = random.integers(0, 256, (count, *SHAPE), np.uint8)
    mask = random.random((count, 7, 7, 1)).repeat(4, axis=1).repeat(4, axis=2) < 0.2
    return noise * mask, random.integers(0, 10, count)


def ours_write(path: Path, pixels: np.ndarray, labels: np.ndarray, encoding: str) -> None:
    with path.open("wb") as stream:
        for first in range(0, len(labels), 4096):
            stream.write(encode.to_records(pixels[first : first + 4096], labels[first : first + 4096], encoding))


def theirs_write(path: Path, pixels: np.ndarray, labels: np.ndarray, encoding: str) -> None:
    import tensorflow as tf

    train = tf.train
    with tf.io.TFRecordWriter(str(path)) as writer:
        for image, label in zip(pixels, labels, strict=True):
            data = image.tobytes() if encoding == "raw" else tf.io.encode_png(image).numpy()
            features = {
                "image": train.Feature(bytes_list=train.BytesList(value=[data])),
                "label": train.Feature(int64_list=train.Int64List(value=[label])),
            }
            if encoding == "raw":
                for name, size in zip(("height", "width", "channels"), SHAPE, strict=True):
                    features[name] = train.Feature(int64_list=train.Int64List(value=[size]))
            writer.write(train.Example(features=train.Features(feature=features)).SerializeToString())


def ours_read(path: Path, encoding: str) -> int:
    total = 0
    with path.open("rb") as stream:
        while block := read_block(stream, 4096, str(path)):
            pixels, _ = encode.from_records(block, SHAPE, encoding, str(path))
            total += int(pixels[:, 0, 0, 0].sum())
    return total


def theirs_read(path: Path, encoding: str) -> int:
    import tensorflow as tf

    wanted = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}

    def parsed(records: Any) -> Any:
        features = tf.io.parse_example(records, wanted)
        if encoding == "raw":
            return tf.reshape(tf.io.decode_raw(features["image"], tf.uint8), (-1, *SHAPE))
        return tf.map_fn(tf.io.decode_png, features["image"], fn_output_signature=tf.uint8)

    blocks = tf.data.TFRecordDataset(str(path)).batch(4096).map(parsed)
    return sum(int(pixels.numpy()[:, 0, 0, 0].sum()) for pixels in blocks)


def seconds(work: Callable[[], object]) -> float:
    """Seconds of processor time, of all threads: what others do on the machine does not count."""
    began = time.process_time()
    work()
    return time.process_time() - began


def measure(encoding: str, count: int, rounds: int, folder: Path) -> list[dict[str, object]]:
    pixels, labels = images(count)
    ours, theirs = folder / "ours", folder / "theirs"
    ours_write(ours, pixels[:100], labels[:100], encoding)
    theirs_write(theirs, pixels[:100], labels[:100], encoding)
    theirs_read(theirs, encoding)
    times: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, work in (
            ("write ours", lambda: ours_write(ours, pixels, labels, encoding)),
            ("write theirs", lambda: theirs_write(theirs, pixels, labels, encoding)),
            ("read ours", lambda: ours_read(ours, encoding)),
            ("read theirs", lambda: theirs_read(ours, encoding)),
        ):
            times.setdefault(name, []).append(seconds(work))
    if not ours_read(ours, encoding) == theirs_read(ours, encoding) == ours_read(theirs, encoding):
        sys.exit("the two do not read the same images")
    rows: list[dict[str, object]] = []
    for task in ("write", "read"):
        mine, other = times[f"{task} ours"], times[f"{task} theirs"]
        ratios = sorted(b / a for a, b in zip(mine, other, strict=True))
        rows.append({
            "task": task, "encoding": encoding, "megabytes_per_second": pixels.nbytes / statistics.median(mine) / 1e6,
            "tensorflow": pixels.nbytes / statistics.median(other) / 1e6, "ratio": statistics.median(ratios),
            "ratio_from": ratios[0], "ratio_to": ratios[-1],
        })
    return rows


def packed_image(side: int, channels: int, form: str, random: np.random.Generator) -> bytes:
    from PIL import Image

    blocks = random.integers(0, 256, (side // 4, side // 4, channels), np.uint8).repeat(4, axis=0).repeat(4, axis=1)
    stream = io.BytesIO()
    Image.fromarray(blocks if channels == 3 else blocks[..., 0]).save(stream, form)
    return stream.getvalue()


def codec_records(count: int) -> dict[str, list[dict[str, bytes | int]]]:
    """Features of image records of three kinds."""
    random = np.random.default_rng(0)
    sizes: dict[str, bytes | int] = dict(zip(("height", "width", "channels"), SHAPE, strict=True))
    return {
        "raw 28×28": [{**sizes, "image": random.bytes(784), "label": n % 10} for n in range(count)],
        "png 28×28": [{"image": packed_image(28, 1, "PNG", random), "label": n % 10} for n in range(count)],
        "jpeg 100×100": [{"image": packed_image(100, 3, "JPEG", random), "label": n % 10} for n in range(count)],
    }


def measure_codec(rounds: int, count: int = 5_000) -> list[dict[str, object]]:
    """Microseconds a record, the best of several interleaved rounds."""
    rows: list[dict[str, object]] = []
    for kind, features in codec_records(count).items():
        records = [example.encode(one) for one in features]
        if records != [pure_python_example.encode(one) for one in features]:
            sys.exit("the two codecs do not write the same records")
        framed = np.stack([np.frombuffer(record, np.uint8) for record in records]) if kind.startswith("raw") else None
        work: dict[tuple[str, str], Callable[[], object]] = {
            ("encode", "protobuf"): lambda f=features: [example.encode(one) for one in f],
            ("encode", "pure Python"): lambda f=features: [pure_python_example.encode(one) for one in f],
            ("decode", "protobuf"): lambda r=records: [example.decode_image(one, "image", "label") for one in r],
            ("decode", "pure Python"): lambda r=records: [pure_python_example.decode(one) for one in r],
        }
        if framed is not None:
            found = example.decode_rows(framed, "image", "label")
            assert found is not None
            sizes = {name: features[0][name] for name in ("height", "width", "channels")}
            work["encode", "rows"] = lambda s=sizes, p=found: example.encode_rows(s, "image", p[0], "label", p[1])
            work["decode", "rows"] = lambda r=framed: example.decode_rows(r, "image", "label")
        best = dict.fromkeys(work, float("inf"))
        for _ in range(rounds):
            for name, task in work.items():
                best[name] = min(best[name], seconds(task))
        rows += [
            {"kind": kind, "task": task, "codec": codec, "microseconds": spent / count * 1e6}
            for (task, codec), spent in best.items()
        ]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--codec", action="store_true", help="compare the protobuf codec with a pure-Python one")
    options = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # before TensorFlow starts its threads
    if options.codec:
        found = measure_codec(options.rounds)
        if options.json:
            print(json.dumps(found))
        else:
            for row in found:
                print(f"{row['task']!s:<8}{row['kind']!s:<14}{row['codec']!s:<12}{row['microseconds']:>8.2f} µs")
        return
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            row for encoding, count in (("raw", 30_000), ("png", 5_000))
            for row in measure(encoding, count, options.rounds, Path(folder))
        ]
    if options.json:
        print(json.dumps(rows))
        return
    print(f"{'':<12}{'Velodrome':>12}{'TensorFlow':>12}   ratio")
    for row in rows:
        print(
            f"{row['task']!s:<6}{row['encoding']!s:<6}{row['megabytes_per_second']:>7.1f} MB/s"
            f"{row['tensorflow']:>7.1f} MB/s"
            f"   {row['ratio']:.1f} ({row['ratio_from']:.1f} to {row['ratio_to']:.1f})"
        )


if __name__ == "__main__":
    main()
