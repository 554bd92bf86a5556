"""CIFAR-10 in its binary version: five training files and one test file out of one archive. Nothing is unpickled."""

from __future__ import annotations

import hashlib
import mmap
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from velodrome.data.base import DataError, Progress
from velodrome.data.cache import RemoteFile
from velodrome.data.fetch import ensure
from velodrome.data.sources.published import PublishedImages

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from velodrome.data.examples import ExamplePart

_SIDE, _CHANNELS = 32, 3
#: A label, then the red, the green and the blue plane.
RECORD = 1 + _CHANNELS * _SIDE * _SIDE
#: Members of the archive that are looked at before the files must have been found.
_MOST_MEMBERS = 100


@dataclass(frozen=True, kw_only=True)
class Cifar(PublishedImages):
    """Files are those of training in order, then that of the test; a mirror may hold them without the archive."""

    archive: RemoteFile
    #: The folder of the files within the archive.
    within: str

    @property
    def counts(self) -> tuple[int, int]:
        *train, test = (file.bytes // RECORD for file in self.files)
        return sum(train), test

    @property
    def shape(self) -> tuple[int, int, int]:
        return _SIDE, _SIDE, _CHANNELS

    @property
    def fetched_bytes(self) -> int:
        return self.archive.bytes

    def prepare(self, progress: Progress | None) -> None:
        """Take the files from the mirror, or out of the archive, which is removed afterwards."""
        try:
            ensure(self.name, self.files, system=None, publishers=(), progress=None)
        except DataError:
            ensure(self.name, [self.archive], system=None, publishers=self.publishers, progress=progress)
            packed = self.path(self.archive)
            self.store(unpack(packed, self.within, self.files))
            packed.unlink(missing_ok=True)

    def read(self) -> tuple[ExamplePart, ExamplePart]:
        from velodrome.data.examples import image_part

        *trained, tested = map(read_records, self.payloads())
        return image_part(*_joined(trained)), image_part(*_joined([tested]))


def unpack(archive: Path, within: str, wanted: tuple[RemoteFile, ...]) -> dict[RemoteFile, bytes]:
    """The wanted files of a tar archive, each compared with its checksum. No name of the archive becomes a path."""
    by_name = {f"{within}/{file.name}": file for file in wanted}
    payloads: dict[RemoteFile, bytes] = {}
    try:
        with tarfile.open(archive, "r:gz") as packed:
            for number, member in enumerate(packed):
                file = by_name.get(member.name.removeprefix("./"))
                if file is not None:
                    payloads[file] = _member(packed, member, file)
                if len(payloads) == len(wanted) or number >= _MOST_MEMBERS:
                    break
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise DataError(f"{archive} cannot be read ({error}): remove it, and it is fetched again") from None
    if missing := [file.name for file in wanted if file not in payloads]:
        raise DataError(f"{archive} holds no {', '.join(missing)}: remove it, and it is fetched again")
    return payloads


def _member(packed: tarfile.TarFile, member: tarfile.TarInfo, file: RemoteFile) -> bytes:
    stream = packed.extractfile(member) if member.isreg() and member.size == file.bytes else None
    payload = stream.read(file.bytes) if stream is not None else b""
    if len(payload) != file.bytes or hashlib.sha256(payload).hexdigest() != file.sha256:
        raise tarfile.TarError(f"its {file.name} is not the published one")
    return payload


def read_records(payload: mmap.mmap | bytes) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images (count, channels, height, width) and labels of a file, as views of it."""
    import numpy as np

    if len(payload) % RECORD:
        raise DataError(f"a CIFAR file holds records of {RECORD:,} bytes, and this one has {len(payload):,} bytes")
    records = np.frombuffer(payload, dtype=np.uint8).reshape(-1, RECORD)
    return records[:, 1:].reshape(-1, _CHANNELS, _SIDE, _SIDE), records[:, 0]


def _joined(
    parts: list[tuple[NDArray[np.uint8], NDArray[np.uint8]]],
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The records of several files: images (count, height, width, channels) and labels, in memory."""
    import numpy as np

    images = np.empty((sum(len(labels) for _, labels in parts), _SIDE, _SIDE, _CHANNELS), np.uint8)
    first = 0
    for planes, labels in parts:
        images[first : first + len(labels)] = planes.transpose(0, 2, 3, 1)
        first += len(labels)
    return images, np.concatenate([labels for _, labels in parts]).astype(np.int64)


def _batch(name: str, sha256: str, crc32: int) -> RemoteFile:
    """One of the files as published: 10,000 records. Nobody publishes them gzipped by themselves."""
    return RemoteFile(name, 10_000 * RECORD, "", 10_000 * RECORD, sha256, crc32)


DATA_SETS = (
    Cifar(
        name="cifar-10",
        title="CIFAR-10: small photographs of ten kinds of things",
        licence="not stated; cite Krizhevsky (2009)",
        homepage="https://www.cs.toronto.edu/~kriz/cifar.html",
        files=(
            _batch("data_batch_1.bin", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5", 0xB3220C1F),
            _batch("data_batch_2.bin", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed", 0xC439A348),
            _batch("data_batch_3.bin", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67", 0x8C6F54F0),
            _batch("data_batch_4.bin", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48", 0x6A83637E),
            _batch("data_batch_5.bin", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add", 0x2F355AFD),
            _batch("test_batch.bin", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b", 0x19777D49),
        ),
        archive=RemoteFile(
            "cifar-10-binary.tar.gz", 170_052_171, "c32a1d4ab5d03f1284b67883e8d87530",
            170_052_171, "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd", None, archive=True,
        ),
        within="cifar-10-batches-bin",
        publishers=("https://www.cs.toronto.edu/~kriz/",),
        class_names=(
            "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
        ),
    ),
)
