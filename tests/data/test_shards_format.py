"""TFRecord files and `tf.train.Example`: held against TensorFlow's own reader and writer, and against damage."""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pytest

from velodrome.data.base import DataError
from velodrome.data.shards import records as encode
from velodrome.data.shards import tfrecord
from velodrome.errors import BadRequest


def blocks(data: bytes, count: int = 7) -> list[bytes]:
    stream, found = io.BytesIO(data), []
    while block := tfrecord.read_block(stream, count, "file"):
        found += [bytes(record) for record in block.records]
    return found


def random_images(count: int, shape: tuple[int, int, int] = (5, 4, 1)) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, *shape), np.uint8)


@pytest.mark.unit
def test_the_checksum_is_the_published_one():
    # RFC 3720 gives crc32c(32 zero bytes) = 8a9136aa.
    crc = 0x8A9136AA
    assert tfrecord.masked(bytes(32)) == ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32


@pytest.mark.unit
@pytest.mark.parametrize("lengths", [[3] * 20, [0, 5, 300, 2, 2, 2, 70_000, 1], [4, 4, 4, 9], []])
def test_records_of_any_lengths_come_back_whatever_the_block(lengths):
    records = [bytes([place % 256]) * length for place, length in enumerate(lengths)]
    data = tfrecord.frame_all(records)
    for count in (1, 2, 7, 100):
        assert blocks(data, count) == records


@pytest.mark.unit
def test_rows_are_framed_as_records_one_by_one_are():
    rows = np.random.default_rng(1).integers(0, 256, (9, 21), np.uint8)
    assert tfrecord.frame_rows(rows) == tfrecord.frame_all(row.tobytes() for row in rows)


@pytest.mark.unit
@pytest.mark.parametrize("equal", [True, False])
def test_every_altered_byte_and_every_cut_is_noticed(equal):
    records = [b"abcd", b"efgh", b"ijkl"] if equal else [b"abcd", b"ef", b"ijkl"]
    data = tfrecord.frame_all(records)
    for place in range(len(data)):
        altered = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        with pytest.raises(DataError, match=r"file (is damaged|was cut short)"):
            blocks(altered)
        boundary = place in np.cumsum([0, *(len(record) + 16 for record in records)])
        if not boundary:
            with pytest.raises(DataError, match=r"file was cut short|damaged"):
                blocks(data[:place])


@pytest.mark.unit
def test_a_record_that_claims_to_be_huge_takes_no_memory():
    head = struct.pack("<Q", 1 << 60)
    with pytest.raises(DataError, match="damaged"):
        blocks(head + struct.pack("<I", tfrecord.masked(head)) + b"x")


@pytest.mark.unit
def test_examples_come_back_with_every_kind_of_feature():
    features = {"image": b"\0\xff", "label": 300, "names": [b"a", b""], "numbers": [-1, 0, 2**62], "box": [0.5, -2.0]}
    assert tfrecord.decode(tfrecord.encode(features)) == {
        "image": [b"\0\xff"], "label": [300], "names": [b"a", b""], "numbers": [-1, 0, 2**62], "box": [0.5, -2.0]
    }


@pytest.mark.unit
def test_bytes_that_are_no_example_are_refused_and_never_crash():
    good = tfrecord.encode({"image": b"abc", "label": 3, "box": [0.5]})
    for end in range(1, len(good)):
        with pytest.raises(tfrecord.NotAnExample):
            tfrecord.decode(good[:end])
    random = np.random.default_rng(2)
    for _ in range(300):
        with suppress(tfrecord.NotAnExample):
            tfrecord.decode(random.bytes(40))


@pytest.mark.unit
@pytest.mark.parametrize("labels", [[0, 1, 127], [0, 128, 5], [200, 1_000_000, 2**40]])
def test_raw_images_come_back_with_small_and_large_labels(labels):
    images = random_images(3)
    data = encode.to_records(images, np.array(labels), "raw")
    block = tfrecord.read_block(io.BytesIO(data), 10, "file")
    if len(block) < 3:  # labels of several lengths end a block of equal rows
        block = tfrecord.Block(blocks(data), b"")
    found, found_labels = encode.from_records(block, (5, 4, 1), "raw", "file")
    assert np.array_equal(found, images)
    assert found_labels.tolist() == labels


@pytest.mark.unit
@pytest.mark.parametrize(("encoding", "channels"), [("png", 1), ("png", 3), ("png", 4), ("jpeg", 1), ("jpeg", 3)])
def test_packed_images_come_back(encoding, channels):
    smooth = np.linspace(0, 250, 16 * 16).reshape(16, 16, 1).astype(np.uint8).repeat(channels, axis=2)[None]
    block = tfrecord.read_block(io.BytesIO(encode.to_records(smooth, np.array([4]), encoding)), 1, "file")
    found, labels = encode.from_records(block, (16, 16, channels), encoding, "file")
    assert labels.tolist() == [4]
    assert np.abs(found.astype(int) - smooth).max() <= (0 if encoding == "png" else 6)


@pytest.mark.unit
def test_an_image_of_another_shape_or_kind_is_named():
    data = encode.to_records(random_images(1), np.array([0]), "png")
    block = tfrecord.read_block(io.BytesIO(data), 1, "'x.tfrecord'")
    with pytest.raises(DataError, match=r"'x.tfrecord' holds an example .* 5×4 L instead of 6×4"):
        encode.from_records(block, (6, 4, 1), "png", "'x.tfrecord'")
    with pytest.raises(DataError, match="its image is no jpeg"):
        encode.from_records(block, (5, 4, 1), "jpeg", "'x.tfrecord'")
    with pytest.raises(DataError, match="bytes instead of 20"):
        encode.from_records(block, (5, 4, 1), "raw", "'x.tfrecord'")
    other = tfrecord.Block([tfrecord.encode({"picture": b"x", "label": 1})], b"")
    with pytest.raises(DataError, match="no feature 'image'"):
        encode.from_records(other, (5, 4, 1), "png", "'x.tfrecord'")


@pytest.mark.unit
def test_an_encoding_that_cannot_hold_the_images_is_refused():
    with pytest.raises(BadRequest, match=r"--encoding 'gif': choose one of png, jpeg, raw"):
        encode.check_encoding("gif", (8, 8, 1))
    with pytest.raises(BadRequest, match="no images with 5 channels; choose raw"):
        encode.check_encoding("png", (8, 8, 5))
    encode.check_encoding("raw", (8, 8, 5))


@pytest.mark.integration
def test_tensorflow_reads_what_we_write_and_we_read_what_it_writes(tmp_path):
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    tf = pytest.importorskip("tensorflow")
    images, labels = random_images(6, (8, 8, 3)), np.array([0, 1, 127, 128, 99_999, 3])
    for encoding in ("png", "raw", "jpeg"):
        ours = tmp_path / f"{encoding}.tfrecord"
        ours.write_bytes(encode.to_records(images, labels, encoding))
        wanted = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
        parsed = [tf.io.parse_single_example(record, wanted) for record in tf.data.TFRecordDataset(str(ours))]
        assert [int(one["label"]) for one in parsed] == labels.tolist()
        if encoding == "png":
            assert all(np.array_equal(tf.io.decode_png(one["image"]), image)
                       for one, image in zip(parsed, images, strict=True))
        elif encoding == "raw":
            assert [one["image"].numpy() for one in parsed] == [image.tobytes() for image in images]
        else:
            assert all(tf.io.decode_jpeg(one["image"]).shape == (8, 8, 3) for one in parsed)

    theirs = tmp_path / "theirs.tfrecord"
    lists = tf.train
    with tf.io.TFRecordWriter(str(theirs)) as writer:
        for image, label in zip(images, labels, strict=True):
            writer.write(lists.Example(features=lists.Features(feature={
                "image": lists.Feature(bytes_list=lists.BytesList(value=[tf.io.encode_png(image).numpy()])),
                "label": lists.Feature(int64_list=lists.Int64List(value=[label])),
                "box": lists.Feature(float_list=lists.FloatList(value=[0.5, -1.25])),
                "minus": lists.Feature(int64_list=lists.Int64List(value=[-7, 2**62])),
                "none": lists.Feature(),
            })).SerializeToString())
    records = blocks(theirs.read_bytes())
    found, found_labels = encode.from_records(tfrecord.Block(records, b""), (8, 8, 3), "png", "theirs")
    assert np.array_equal(found, images)
    assert found_labels.tolist() == labels.tolist()
    features = tfrecord.decode(records[0])
    assert (features["box"], features["minus"], features["none"]) == ([0.5, -1.25], [-7, 2**62], [])
    again = lists.Example.FromString(tfrecord.encode({"a": [1, -2], "b": [b"x", b""], "c": [0.5]}))
    assert list(again.features.feature["a"].int64_list.value) == [1, -2]
    assert list(again.features.feature["b"].bytes_list.value) == [b"x", b""]
    assert list(again.features.feature["c"].float_list.value) == [0.5]


@pytest.mark.unit
@pytest.mark.parametrize("label", [0, 1, 2, 7, 127])
@pytest.mark.parametrize("image", [b"\x07", b"\1\2", b"label", b"image" * 4, bytes(20), bytes(range(100))])
def test_rows_decode_as_records_one_by_one_do_even_where_bytes_repeat(image, label):
    """The image's bytes, or the label's, also stand in names, lengths and other features."""
    features = {"copy": image, "image": image, "label": label, "number": label, "sizes": [label, 1, 7]}
    images = np.stack([np.frombuffer(image, np.uint8), ~np.frombuffer(image, np.uint8)])
    rows = tfrecord.encode_rows(features, "image", images, "label", np.array([label, 127 - label]))
    assert rows is not None
    assert [row.tobytes() for row in rows] == [
        tfrecord.encode({**features, "image": pixels.tobytes(), "label": number})
        for pixels, number in zip(images, (label, 127 - label), strict=True)
    ]
    found = tfrecord.decode_rows(rows, "image", "label")
    assert found is not None
    assert np.array_equal(found[0], images)
    assert found[1].tolist() == [label, 127 - label]


@pytest.mark.unit
def test_rows_that_differ_in_more_than_image_and_label_are_not_read_as_rows():
    records = [tfrecord.encode({"image": b"abc", "label": 1, "height": height}) for height in (3, 4)]
    assert tfrecord.decode_rows(np.stack([np.frombuffer(one, np.uint8) for one in records]), "image", "label") is None
    large = np.frombuffer(tfrecord.encode({"image": b"abc", "label": 300}), np.uint8)[None]
    assert tfrecord.decode_rows(large, "image", "label") is None


@pytest.mark.unit
def test_a_feature_of_mixed_kinds_is_refused():
    with pytest.raises(TypeError, match="'image' mixes kinds"):
        tfrecord.encode({"image": [b"a", 1]})


@pytest.mark.integration
def test_protobuf_without_its_compiled_part_reads_and_writes_the_same():
    code = (
        "from google.protobuf.internal import api_implementation; from velodrome.data.shards import tfrecord; "
        "record = tfrecord.encode({'image': b'abc', 'label': 3, 'box': [0.5], 'none': []}); "
        "print(api_implementation.Type(), record.hex(), tfrecord.decode_image(record, 'image', 'label'))"
    )
    record = tfrecord.encode({"image": b"abc", "label": 3, "box": [0.5], "none": []})
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=280, check=True,
        env={**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"},
    )
    assert done.stdout.split(maxsplit=2) == ["python", record.hex(), "(b'abc', 3)\n"]
