"""Data sets that their publishers offer as one archive: CIFAR-10, and the apples, guava and kiwi of Fruits-360.

CIFAR-10 is read in its binary version, five training files and one test file; nothing is unpickled. `fruits` are
photographs of fruits turned before the camera, in the publisher's two parts: it merges the varieties into three fruits,
and `fruits:variety` keeps all fifteen.
"""

from __future__ import annotations

import hashlib
import mmap
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from velodrome.data import cache
from velodrome.data.base import Checked, DataError, Faults, NDArray, Pick, Progress, np, picked, quiet
from velodrome.data.cache import RemoteFile
from velodrome.data.examples import ExamplePart, ExampleSet, image_part
from velodrome.data.fetch import ensure, mirror_folder
from velodrome.data.photos import Listing, PhotoSet
from velodrome.data.source import Description
from velodrome.data.sources.photos import list_folders
from velodrome.data.sources.published import PublishedImages
from velodrome.data.split import DEFAULT_VALIDATION, TEST, TRAIN, Division, stratified
from velodrome.data.storage.trees import FolderTree, Tree, ZipTree
from velodrome.errors import BadRequest

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

    def prepare(self, progress: Progress = quiet) -> None:
        """Take the files from the mirror, or out of the archive, which is removed afterwards."""
        try:
            ensure(self.name, self.files, system=None, publishers=(), progress=quiet)
        except DataError:
            ensure(self.name, [self.archive], system=None, publishers=self.publishers, progress=progress)
            packed = self.path(self.archive)
            self.store(unpack(packed, self.within, self.files))
            packed.unlink(missing_ok=True)

    def read(self) -> tuple[ExamplePart, ExamplePart]:
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
    if len(payload) % RECORD:
        raise DataError(f"a CIFAR file holds records of {RECORD:,} bytes, and this one has {len(payload):,} bytes")
    records = np.frombuffer(payload, dtype=np.uint8).reshape(-1, RECORD)
    return records[:, 1:].reshape(-1, _CHANNELS, _SIDE, _SIDE), records[:, 0]


def _joined(
    parts: list[tuple[NDArray[np.uint8], NDArray[np.uint8]]],
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The records of several files: images (count, height, width, channels) and labels, in memory."""
    images = np.empty((sum(len(labels) for _, labels in parts), _SIDE, _SIDE, _CHANNELS), np.uint8)
    first = 0
    for planes, labels in parts:
        images[first : first + len(labels)] = planes.transpose(0, 2, 3, 1)
        first += len(labels)
    return images, np.concatenate([labels for _, labels in parts]).astype(np.int64)


def _batch(name: str, sha256: str, crc32: int) -> RemoteFile:
    """One of the files as published: 10,000 records. Nobody publishes them gzipped by themselves."""
    return RemoteFile(name, 10_000 * RECORD, "", 10_000 * RECORD, sha256, crc32)


_CIFAR = Cifar(
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
)


FOLDER = "fruits-360"
ARCHIVE = RemoteFile(
    "fruits-360-apple-guava-kiwi.zip", 48_934_537, "12e8fa0b1ad7fc8932dc43ff2c4b82cf",
    48_934_537, "a27c3806c7cb81082b53075296e7c037299154df46a9d55a51609a19f7358b1c", 0x3DE7740D,
)
#: Of the names and contents of all images, however they are packed.
CONTENT = "afbd86f1749b60658f8b7c71bfe30a9bb058109a76362ab67a2ce82be1ce100b"
HOMEPAGE = "https://github.com/Horea94/Fruit-Images-Dataset"
VARIETIES = (
    "Apple Braeburn", "Apple Crimson Snow", "Apple Golden 1", "Apple Golden 2", "Apple Golden 3", "Apple Granny Smith",
    "Apple Pink Lady", "Apple Red 1", "Apple Red 2", "Apple Red 3", "Apple Red Delicious", "Apple Red Yellow 1",
    "Apple Red Yellow 2", "Guava", "Kiwi",
)
FRUITS = ("Apple", "Guava", "Kiwi")
_TRAIN, _TEST, _PHOTO_SIDE = 7360, 2456, 100
_HALVES_DRAW = 3


@dataclass(frozen=True)
class Fruits(PhotoSet):
    """Training is the publisher's `Training`; validation and test are halves of its `Test`, stratified by variety."""

    merged: bool = True

    def variant(self, option: str) -> Fruits:
        if option != "variety":
            raise BadRequest(f"data set 'fruits:{option}': there are 'fruits' and 'fruits:variety'")
        return replace(self, name="fruits:variety", title=_TITLE.format("15 varieties"), merged=False)

    def key(self) -> str:
        return cache.key_of((CONTENT,), ())

    def describe(self, validation: float) -> Description:
        names = FRUITS if self.merged else VARIETIES
        return Description(
            name=self.name, title=self.title, licence=self.licence, homepage=self.homepage, train=_TRAIN,
            validation=_TEST - _TEST // 2, test=_TEST // 2, input_shape=(_PHOTO_SIDE, _PHOTO_SIDE, 3),
            classes=len(names), bytes=ARCHIVE.bytes, class_names=names,
        )

    def make(self, folder: Path, faults: Faults, progress: Progress) -> dict[str, Any]:
        fetch(progress)
        return super().make(folder, faults, progress)

    def load(self, seed: int, validation: float, pick: Pick = picked) -> ExampleSet:
        splits = super().load(seed, validation, pick)
        if not self.merged:
            return splits
        fruit_of = np.array([FRUITS.index(name.partition(" ")[0]) for name in splits.class_names], np.int64)
        train, validated, test = (
            image_part(part.images, fruit_of[part.labels]) for part in splits.parts
        )
        return replace(splits, train=train, validation=validated, test=test, classes=len(FRUITS), class_names=FRUITS)

    def divide(self, labels: NDArray[np.int64], parts: NDArray[np.int8], seed: int, validation: float) -> Division:
        apart = np.flatnonzero(parts == TEST)
        marked = stratified(labels[apart], len(apart) // 2, seed, _HALVES_DRAW)
        return np.flatnonzero(parts == TRAIN), apart[~marked], apart[marked]

    def division_notes(self, parts: Sequence[int], validation: float) -> tuple[str, ...]:
        if validation == DEFAULT_VALIDATION:
            return ()
        return (f"--validation {validation:g} is not used: validation is half of the publisher's test set",)

    def verify(self) -> list[Checked]:
        path = cache.folder() / FOLDER / ARCHIVE.name
        checked = cache.verify(self.source)
        if path.exists():
            checked.append(Checked.by_checksum(path, ARCHIVE.sha256))
        return checked or [Checked(str(path), "missing")]


def fetch(progress: Progress) -> None:
    """See that the images are on this machine, packed or not."""
    if next(_unpacked(), None) is not None:
        return
    try:
        ensure(FOLDER, [ARCHIVE], system=None, publishers=(), progress=progress)
    except DataError as error:
        raise DataError(
            f"{error}; or clone {HOMEPAGE} and name as the mirror a folder whose {FOLDER}/ holds its Training and Test"
        ) from None


def list_fruits() -> Listing:
    """The files, out of the archive or a folder whose contents are the publisher's."""
    tree: Tree | None = next((_Chosen(FolderTree(place, follow_links=True)) for place in _unpacked()), None)
    if tree is None:
        tree = ZipTree(cache.folder() / FOLDER / ARCHIVE.name)
    elif content_of(tree) != CONTENT:
        raise DataError(
            f"data set 'fruits': {tree.place} does not hold the images of the 2020 edition; take them from {HOMEPAGE}"
        )
    return replace(list_folders(tree), notes=())


def _unpacked() -> Iterator[Path]:
    """Folders that hold the publisher's two, in the cache or the mirror."""
    for top in (cache.folder(), mirror_folder()):
        if top is not None and (top / FOLDER / "Training").is_dir() and (top / FOLDER / "Test").is_dir():
            yield top / FOLDER


class _Chosen:
    """The fifteen classes of a larger collection."""

    def __init__(self, tree: Tree) -> None:
        self.place, self.open, self.lost = tree.place, tree.open, tree.lost
        below = tuple(f"{part}/{variety}/" for part in ("Training", "Test") for variety in VARIETIES)
        self.files = [file for file in tree.files if file.name.startswith(below) and file.name.endswith(".jpg")]
        self.folders = [name for name in tree.folders if f"{name}/" in below or name in ("Training", "Test")]


def content_of(tree: Tree) -> str:
    """A checksum of names and contents that does not depend on how they are packed."""
    digest = hashlib.sha256()
    for file in tree.files:
        if file.name.endswith(".jpg"):
            with tree.open(file.name) as stream:
                digest.update(f"{file.name}\0{hashlib.sha256(stream.read()).hexdigest()}\n".encode())
    return digest.hexdigest()


_TITLE = "Fruits-360 (2020): apples, guava and kiwi, {}"

DATA_SETS = (
    _CIFAR,
    Fruits(
        name="fruits", title=_TITLE.format("3 fruits"), licence="MIT", homepage=HOMEPAGE, bad_data="fail", place=FOLDER,
        lister=list_fruits, size=(_PHOTO_SIDE, _PHOTO_SIDE), channels=3,
    ),
)
