"""Data sets whose files a publisher offers, and those of the MNIST family: four gzipped idx files each.

Another data set in MNIST's format is another entry at the end.
"""

from __future__ import annotations

import math
import mmap
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from velodrome.data import cache
from velodrome.data.base import Checked, DataError, NDArray, Progress, np, quiet
from velodrome.data.cache import RemoteFile
from velodrome.data.examples import ExamplePart, ExampleSet, image_part, image_set
from velodrome.data.fetch import ensure
from velodrome.data.source import Description, Source
from velodrome.data.split import fingerprints, held_out, stratified, with_split_warnings

_UNSIGNED_BYTES = 0x08


@dataclass(frozen=True)
class PublishedFiles(Source):
    """Data in files that lie in the cache as they were published, under the name of the data set."""

    name: str
    title: str
    licence: str
    homepage: str
    files: tuple[RemoteFile, ...]

    def path(self, file: RemoteFile) -> Path:
        return cache.folder() / self.name / file.payload_name

    def is_here(self) -> bool:
        paths = [(self.path(file), file.bytes) for file in self.files]
        return all(path.exists() and path.stat().st_size == size for path, size in paths)

    def verify(self) -> list[Checked]:
        return [Checked.by_checksum(self.path(file), file.sha256) for file in self.files]

    def payloads(self) -> list[mmap.mmap]:
        """The files out of the cache, which is filled first if it is not whole."""
        for fetched in (False, True):
            payloads = [cache.read(self.path(file), file) for file in self.files]
            whole = [payload for payload in payloads if payload is not None]
            if len(whole) == len(self.files):
                return whole
            if not fetched:
                self.prepare()
        raise DataError(
            f"data set {self.name!r} changes in {cache.folder() / self.name} while it is read: see what else writes "
            "there"
        )

    def store(self, payloads: dict[RemoteFile, bytes]) -> None:
        """Put files that came another way than one by one into the cache."""
        folder = cache.folder() / self.name
        with cache.storing(f"data set {self.name!r}", folder), cache.exclusive(folder):
            for file, payload in payloads.items():
                cache.store(self.path(file), payload)


@dataclass(frozen=True)
class PublishedImages(PublishedFiles):
    """Images of a training and a test set; validation is a stratified, seeded share of the training set."""

    class_names: tuple[str, ...]
    publishers: tuple[str, ...]

    @property
    @abstractmethod
    def counts(self) -> tuple[int, int]:
        """Training and test images."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int, int]:
        """Height, width, channels."""

    @property
    @abstractmethod
    def fetched_bytes(self) -> int: ...

    @abstractmethod
    def read(self) -> tuple[ExamplePart, ExamplePart]:
        """Training and test images, which may be views of the files."""

    def describe(self, validation: float) -> Description:
        train, test = self.counts
        kept = held_out(train, validation)
        return Description(
            name=self.name, title=self.title, licence=self.licence, homepage=self.homepage, train=train - kept,
            validation=kept, test=test, input_shape=self.shape, classes=len(self.class_names),
            bytes=self.fetched_bytes, class_names=self.class_names,
        )

    def load(self, seed: int, validation: float) -> ExampleSet:
        whole, test = self.read()
        marked = stratified(whole.labels, held_out(len(whole), validation), seed, 0)
        train, validated = (image_part(whole.images[rows], whole.labels[rows]) for rows in (~marked, marked))
        images = image_set(
            self.name, train, validated, test, classes=len(self.class_names), class_names=self.class_names
        )
        prints = self._fingerprints(whole.images, test.images)
        first, last = prints[: len(whole)], prints[len(whole) :]
        return with_split_warnings(images, (first[~marked], first[marked], last))

    def _fingerprints(self, *images: NDArray[np.uint8]) -> NDArray[np.uint64]:
        """Fingerprints of all images, from the cache; they are made for each loading where it cannot be written."""
        def make(folder: Path) -> dict[str, Any]:
            np.save(folder / "fingerprints.npy", np.concatenate([fingerprints(some) for some in images]))
            return {}

        key = cache.key_of(("fingerprints",), ((file.name, file.bytes, file.crc32 or 0) for file in self.files))
        try:
            return cache.keep(f"fingerprints of {self.name}", key, make).array("fingerprints")
        except DataError:
            return np.concatenate([fingerprints(some) for some in images])


@dataclass(frozen=True, kw_only=True)
class IdxDataSet(PublishedImages):
    """Files are training images and labels, test images and labels."""

    #: Where a package of the operating system puts the same files.
    system: Path | None = None
    examples: int = 60_000
    test: int = 10_000
    side: int = 28
    class_names: tuple[str, ...] = tuple("0123456789")

    @property
    def counts(self) -> tuple[int, int]:
        return self.examples, self.test

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.side, self.side, 1

    @property
    def fetched_bytes(self) -> int:
        return sum(file.gz_bytes for file in self.files)

    def prepare(self, progress: Progress = quiet) -> None:
        ensure(self.name, self.files, system=self.system, publishers=self.publishers, progress=progress)

    def read(self) -> tuple[ExamplePart, ExamplePart]:
        images, labels, test_images, test_labels = map(read_idx, self.payloads())
        return (image_part(images[..., None], labels.astype("int64")),
                image_part(test_images[..., None].copy(), test_labels.astype("int64")))


def read_idx(payload: mmap.mmap | bytes) -> NDArray[np.uint8]:
    """An idx file's array, as a view of it: two zero bytes, type, dimensions, big-endian sizes, then the bytes."""
    rank = payload[3] if len(payload) >= 4 else 0
    if rank == 0 or payload[:3] != bytes([0, 0, _UNSIGNED_BYTES]) or len(payload) < 4 + 4 * rank:
        raise DataError(f"no idx file of unsigned bytes: it begins with {payload[:4].hex(' ')!r}")
    shape = [int.from_bytes(payload[4 + 4 * axis : 8 + 4 * axis], "big") for axis in range(rank)]
    offset = 4 + 4 * rank
    size, wanted = len(payload) - offset, math.prod(shape)
    if size != wanted:
        raise DataError(f"an idx file of shape {shape} must hold {wanted:,} bytes, and this one holds {size:,}")
    return np.frombuffer(payload, dtype=np.uint8, offset=offset).reshape(shape)


def _files(*published: tuple[int, str, str, int]) -> tuple[RemoteFile, ...]:
    """Files of the names and sizes that all of the family have: bytes and md5 of the gzipped file, sha256 and crc32 of
    what is inside."""
    inside = (("train-images-idx3", 47_040_016), ("train-labels-idx1", 60_008),
              ("t10k-images-idx3", 7_840_016), ("t10k-labels-idx1", 10_008))
    return tuple(RemoteFile(f"{name}-ubyte.gz", gz_bytes, gz_md5, size, sha256, crc32)
                 for (name, size), (gz_bytes, gz_md5, sha256, crc32) in zip(inside, published, strict=True))


DATA_SETS = (
    IdxDataSet(
        name="mnist",
        title="MNIST: handwritten digits",
        licence="CC BY-SA 3.0",
        homepage="http://yann.lecun.com/exdb/mnist/",
        files=_files(
            (9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873",
             "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db", 0xE9F4D8B3),
            (28_881, "d53e105ee54ea40749a09fcbcd1e9432",
             "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5", 0xE0CB4AD2),
            (1_648_877, "9fb629c4189551a2d022fa330f9573f3",
             "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7", 0x91373BDF),
            (4_542, "ec29112dd5afa0611ce80d1b7f02629c",
             "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2", 0x4AB9EFF9),
        ),
        publishers=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
    ),
    IdxDataSet(
        name="fashion-mnist",
        title="Fashion-MNIST: Zalando's articles of clothing",
        licence="MIT",
        homepage="https://github.com/zalandoresearch/fashion-mnist",
        files=_files(
            (26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
             "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888", 0xB4F29F28),
            (29_515, "25c81989df183df01b3e8a0aad5dffbe",
             "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9", 0x741A4657),
            (4_422_102, "bef4ecab320f06d8554ea6380940ec79",
             "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b", 0x678FE0B1),
            (5_148, "bb300cfdad3c16e7a12a480ee83cd310",
             "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34", 0x80142C1F),
        ),
        publishers=(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
        ),
        system=Path("/usr/share/datasets/fashion-mnist"),
        class_names=(
            "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
        ),
    ),
    IdxDataSet(
        name="kmnist",
        title="Kuzushiji-MNIST: cursive Japanese characters",
        licence="CC BY-SA 4.0",
        homepage="http://codh.rois.ac.jp/kmnist/",
        files=_files(
            (18_165_135, "bdb82020997e1d708af4cf47b453dcf7",
             "7112ba9ec422d98de4885262d4a4dff14cc4fefb81c11ace8bf563a8255df5c3", 0xA0D22BDD),
            (29_497, "e144d726b3acfaa3e44228e80efcd344",
             "2a16eeae62da984b8bd24fa32e31d47291f01dac3fe84d5594f304f71e7d374b", 0x71AF1BFC),
            (3_041_136, "5c965bf0a639b31b8f53240b1b52f4d7",
             "76fbd229ce87db80dd281af5e6670de4ad0e42fb30a7bd643972994c47c1f42e", 0x865CE273),
            (5_120, "7320c461ea6c1c855c0b718fb2a4b134",
             "a11dc742be8e781a40a92f53d6a4957e7b7d36df2faa097659131ebfd8fd60c6", 0x4492F0FD),
        ),
        publishers=(
            "http://codh.rois.ac.jp/kmnist/dataset/kmnist/",
        ),
        class_names=("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"),
    ),
)
