"""CIFAR-10's binary version: read record by record, fetched as an archive or as files, nothing unpickled. The archives
are the tests' own, with a few images a file."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from velodrome.data import catalogue
from velodrome.data.base import DataError
from velodrome.data.cache import RemoteFile
from velodrome.data.sources import archives
from velodrome.data.sources.archives import RECORD, Cifar, read_records

pytestmark = pytest.mark.unit

NAMES = ("data_batch_1.bin", "data_batch_2.bin", "test_batch.bin")


def payloads() -> dict[str, bytes]:
    """Twenty records a file, written by the format's definition: a label, then red, green and blue, row by row."""
    random = np.random.default_rng(0)
    made = {}
    for name in NAMES:
        records = [bytes([number % 10]) + random.bytes(RECORD - 1) for number in range(20)]
        made[name] = b"".join(records)
    return made


def archive_of(members: dict[str, bytes], kind: bytes = tarfile.REGTYPE) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, payload in members.items():
            member = tarfile.TarInfo(name)
            member.size, member.type = (len(payload), kind) if kind == tarfile.REGTYPE else (0, kind)
            member.linkname = "/etc/passwd" if kind == tarfile.SYMTYPE else ""
            tar.addfile(member, io.BytesIO(payload) if kind == tarfile.REGTYPE else None)
    return packed.getvalue()


def remote(name: str, payload: bytes, *, archive: bool = False) -> RemoteFile:
    return RemoteFile(
        name, len(payload), hashlib.md5(payload).hexdigest(), len(payload), hashlib.sha256(payload).hexdigest(),
        None if archive else zlib.crc32(payload), archive=archive,
    )


def tiny(packed: bytes | None = None) -> tuple[Cifar, bytes]:
    """A data set of the kind, and its archive."""
    files = payloads()
    packed = packed or archive_of({
        "batches-bin/readme.html": b"<p>about</p>", **{f"batches-bin/{name}": files[name] for name in NAMES},
    })
    published = archives.DATA_SETS[0]
    assert isinstance(published, Cifar)
    made = replace(
        published, name="tiny", files=tuple(remote(name, files[name]) for name in NAMES),
        archive=remote("tiny.tar.gz", packed, archive=True), within="batches-bin", publishers=(),
    )
    return made, packed


@pytest.fixture
def mirror(own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "mirror" / "tiny"
    folder.mkdir(parents=True)
    monkeypatch.setenv("VELODROME_DATA_MIRROR", str(folder.parent))
    return folder


def test_the_description_is_that_of_the_published_set() -> None:
    about = catalogue.describe("cifar-10")
    assert (about.train, about.validation, about.test) == (45_000, 5_000, 10_000)
    assert (about.input_shape, about.classes, about.bytes) == ((32, 32, 3), 10, 170_052_171)
    published = archives.DATA_SETS[0]
    assert isinstance(published, Cifar)
    assert published.archive.gz_md5 == "c32a1d4ab5d03f1284b67883e8d87530"
    assert {file.bytes for file in published.files} == {30_730_000}


@pytest.mark.parametrize("form", ["archive", "files"])
def test_images_are_the_records_whether_the_mirror_has_the_archive_or_its_files(
    mirror: Path, own_cache: Path, form: str
) -> None:
    data_set, packed = tiny()
    for name, payload in payloads().items() if form == "files" else [("tiny.tar.gz", packed)]:
        (mirror / name).write_bytes(payload)
    assert not data_set.is_here()
    splits = data_set.load(1, 0.1)
    assert data_set.is_here()
    assert {checked.state for checked in data_set.verify()} == {"ok"}
    assert not (own_cache / "tiny" / "tiny.tar.gz").exists(), "its files are kept, the archive is not"
    assert [len(part) for part in (splits.train, splits.validation, splits.test)] == [36, 4, 20]
    assert splits.class_names[3] == "cat"
    test = payloads()["test_batch.bin"]
    for number in range(20):
        record = test[number * RECORD : (number + 1) * RECORD]
        assert splits.test.labels[number] == record[0] == number % 10
        for row, column, channel in ((0, 0, 0), (3, 17, 1), (31, 30, 2)):
            assert splits.test.images[number, row, column, channel] == record[1 + channel * 1024 + row * 32 + column]
    both = np.concatenate([splits.train.images, splits.validation.images])
    expected = {payloads()[name][n * RECORD + 1 : (n + 1) * RECORD] for name in NAMES[:2] for n in range(20)}
    assert {image.transpose(2, 0, 1).tobytes() for image in both} == expected


def test_another_archive_is_refused_before_it_is_opened(mirror: Path) -> None:
    data_set, packed = tiny()
    (mirror / "tiny.tar.gz").write_bytes(packed[:-1] + b"?")
    with pytest.raises(DataError, match="wrong checksum"):
        data_set.prepare()
    assert not data_set.is_here()


@pytest.mark.parametrize(("packed", "words"), [
    (archive_of({"batches-bin/other.bin": b"1"}), "holds no data_batch_1.bin, data_batch_2.bin, test_batch.bin"),
    (archive_of({"batches-bin/data_batch_1.bin": b"1" * RECORD * 20}), "data_batch_1.bin is not the published one"),
    (archive_of({"batches-bin/data_batch_1.bin": b""}, tarfile.SYMTYPE), "data_batch_1.bin is not the published one"),
    (archive_of({"../batches-bin/data_batch_1.bin": b"1"}), "holds no data_batch_1.bin"),
    (b"\x1f\x8b" + b"nonsense" * 9, "cannot be read"),
], ids=["missing", "changed", "link", "outside", "no-gzip"])
def test_an_archive_without_the_files_is_refused_and_leaves_none(
    mirror: Path, own_cache: Path, packed: bytes, words: str
) -> None:
    data_set, packed = tiny(packed)
    (mirror / "tiny.tar.gz").write_bytes(packed)
    with pytest.raises(DataError, match=words):
        data_set.prepare()
    assert not list(own_cache.rglob("*.bin"))


def test_a_damaged_file_is_fetched_again(mirror: Path, own_cache: Path) -> None:
    data_set, packed = tiny()
    (mirror / "tiny.tar.gz").write_bytes(packed)
    data_set.prepare()
    damaged = own_cache / "tiny" / "data_batch_2.bin"
    damaged.write_bytes(bytes(damaged.stat().st_size))
    assert [checked.state for checked in data_set.verify()] == ["ok", "damaged", "ok"]
    assert len(data_set.load(1, 0.1).train) == 36
    assert {checked.state for checked in data_set.verify()} == {"ok"}


def test_a_file_of_another_size_is_no_cifar_file() -> None:
    with pytest.raises(DataError, match="records of 3,073 bytes"):
        read_records(bytes(RECORD + 1))
