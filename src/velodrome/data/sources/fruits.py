"""Fruits-360, apples, guava and kiwi: photographs of fruits turned before the camera, in the publisher's two parts.

`fruits` merges the varieties into three fruits; `fruits:variety` keeps all fifteen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from velodrome.data import cache
from velodrome.data.base import Checked, DataError, Faults, Progress
from velodrome.data.cache import RemoteFile
from velodrome.data.fetch import ensure, mirror_folder
from velodrome.data.images.photos import Listing, PhotoSet
from velodrome.data.source import Description
from velodrome.data.sources.photos import list_folders
from velodrome.data.split import DEFAULT_VALIDATION, TEST, TRAIN
from velodrome.data.storage.trees import FolderTree, Tree, ZipTree
from velodrome.errors import BadRequest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from velodrome.data.examples import ExamplePart, ExampleSet

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
_TRAIN, _TEST, _SIDE = 7360, 2456, 100
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
            validation=_TEST - _TEST // 2, test=_TEST // 2, input_shape=(_SIDE, _SIDE, 3), classes=len(names),
            bytes=ARCHIVE.bytes, class_names=names,
        )

    def make(self, folder: Path, faults: Faults, progress: Progress | None) -> dict[str, Any]:
        fetch(progress)
        return super().make(folder, faults, progress)

    def _loaded(self, seed: int, validation: float, part: Callable[..., ExamplePart]) -> ExampleSet:
        splits = super()._loaded(seed, validation, part)
        if not self.merged:
            return splits
        import numpy as np

        from velodrome.data.examples import image_part

        fruit_of = np.array([FRUITS.index(name.partition(" ")[0]) for name in splits.class_names], np.int64)
        train, validated, test = (
            image_part(part.images, fruit_of[part.labels]) for part in splits.parts
        )
        return replace(splits, train=train, validation=validated, test=test, classes=len(FRUITS), class_names=FRUITS)

    def divide(
        self, labels: NDArray[np.int64], parts: NDArray[np.int8], seed: int, validation: float
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        import numpy as np

        from velodrome.data.split import stratified

        apart = np.flatnonzero(parts == TEST)
        marked = stratified(labels[apart], len(apart) // 2, seed, _HALVES_DRAW)
        return np.flatnonzero(parts == TRAIN), apart[~marked], apart[marked]

    def division_notes(self, parts: NDArray[np.int8], validation: float) -> tuple[str, ...]:
        if validation == DEFAULT_VALIDATION:
            return ()
        return (f"--validation {validation:g} is not used: validation is half of the publisher's test set",)

    def verify(self) -> list[Checked]:
        path = cache.folder() / FOLDER / ARCHIVE.name
        checked = cache.verify(self.source)
        if path.exists():
            checked.append(Checked.by_checksum(path, ARCHIVE.sha256))
        return checked or [Checked(str(path), "missing")]


def fetch(progress: Progress | None) -> None:
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
    Fruits(
        name="fruits", title=_TITLE.format("3 fruits"), licence="MIT", homepage=HOMEPAGE, bad_data="fail", place=FOLDER,
        lister=list_fruits, size=(_SIDE, _SIDE), channels=3,
    ),
)
