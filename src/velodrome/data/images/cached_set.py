"""Image data sets that are decoded once, cached, and split at each loading: the base of photographs and arrays."""

from __future__ import annotations

import math
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from velodrome.data import cache
from velodrome.data.base import BadData, Checked, Description, Fault, Faults, Progress, refuse, summaries
from velodrome.data.split import DEFAULT_VALIDATION, TEST, TRAIN, VALIDATION, divide, large_enough, sizes_of
from velodrome.errors import BadRequest
from velodrome.printable import bytes_text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from velodrome.data.examples import ExamplePart, ExampleSet

@dataclass(frozen=True)
class Counted:
    """What is known before anything is divided: examples of each given part, shape, classes."""

    parts: tuple[int, int, int]
    input_shape: tuple[int, int, int] | None
    class_names: tuple[str, ...]
    bytes: int | None = None


@dataclass(frozen=True)
class CachedImageSet(ABC):
    """A data set whose images lie decoded in the cache. How they get there is what differs."""

    name: str
    title: str
    licence: str
    homepage: str
    bad_data: BadData

    @property
    @abstractmethod
    def source(self) -> str:
        """Identifies this data set's arrays in the cache."""

    @abstractmethod
    def key(self) -> str:
        """Changes whenever the arrays would be others."""

    @abstractmethod
    def make(self, folder: Path, progress: Progress | None) -> dict[str, Any]:
        """Read everything, write the arrays into a folder with `write_arrays`, and return what that returned."""

    @abstractmethod
    def count(self) -> Counted:
        """What a quick look shows before anything is decoded."""

    def describe(self, validation: float) -> Description:
        kept = cache.find(self.source, self.key())
        counted = self.count() if kept is None else _counted(kept.about)
        train, validated, test = self.sizes(counted.parts, validation)
        return Description(
            name=self.name, title=self.title, licence=self.licence, homepage=self.homepage,
            train=train, validation=validated, test=test, input_shape=counted.input_shape,
            classes=len(counted.class_names), bytes=counted.bytes, class_names=counted.class_names,
            notes=_notes(kept.about) if kept else (),
        )

    def sizes(self, parts: tuple[int, int, int], validation: float) -> tuple[int, int, int]:
        """How many examples training, validation and test have after dividing."""
        return sizes_of(parts, validation)

    def prepare(self, progress: Progress | None) -> None:
        self._decoded(progress)

    def _decoded(self, progress: Progress | None) -> cache.Decoded:
        kept = cache.keep(self.source, self.key(), lambda folder: self.make(folder, progress))
        if self.bad_data == "fail":
            refuse(self.name, _faults(kept.about))
        return kept

    def load(self, seed: int, validation: float) -> ExampleSet:
        return self._splits(seed, validation, _part)

    def load_mapped(self, seed: int, validation: float) -> ExampleSet:
        """As `load`, for a single pass over every part: images that are not contiguous are copied slice by slice."""
        return self._splits(seed, validation, _mapped_part)

    def _splits(self, seed: int, validation: float, part: Callable[..., ExamplePart]) -> ExampleSet:
        from velodrome.data.examples import image_set
        from velodrome.data.split_warnings import with_split_warnings

        kept = self._decoded(None)
        names = ("images", "labels", "parts", "rows", "fingerprints")
        images, labels, parts, rows, prints = (kept.array(name) for name in names)
        division = self.divide(labels, parts, seed, validation)
        train, validated, test = (part(images, labels, rows, chosen) for chosen in division)
        class_names = tuple(kept.about["class_names"])
        splits = image_set(
            self.name, train, validated, test, classes=len(class_names), scale=1 / 255, class_names=class_names,
            notes=(*_notes(kept.about), *self.division_notes(parts, validation)),
        )
        return with_split_warnings(splits, [prints[chosen] for chosen in division])

    def divide(
        self, labels: NDArray[np.int64], parts: NDArray[np.int8], seed: int, validation: float
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Places of the training, validation and test examples."""
        return divide(labels, parts, seed, validation)

    def division_notes(self, parts: NDArray[np.int8], validation: float) -> tuple[str, ...]:
        """What a reader of a run should know of the division."""
        if (parts == VALIDATION).any() and validation != DEFAULT_VALIDATION:
            return (f"--validation {validation:g} is not used: {self.name!r} has a validation set of its own",)
        return ()

    def is_here(self) -> bool:
        return cache.find(self.source, self.key()) is not None

    def verify(self) -> Sequence[Checked]:
        return cache.verify(self.source)

    def forget(self) -> None:
        cache.forget(self.source)


def _part(
    images: NDArray[np.uint8], labels: NDArray[np.int64], rows: NDArray[np.int64], chosen: NDArray[np.int64]
) -> ExamplePart:
    import numpy as np

    from velodrome.data.examples import image_part

    where = rows[chosen]
    # Neighbours stay mapped, shared by all processes of a host; a scattered choice is copied.
    together = len(where) > 0 and where[-1] - where[0] + 1 == len(where)
    taken = images[where[0] : where[-1] + 1] if together else images[where]
    return image_part(taken, np.ascontiguousarray(labels[chosen], dtype=np.int64))


@dataclass(frozen=True)
class ChosenRows:
    """Some rows of memory-mapped images: only the slices that are read are copied."""

    images: NDArray[np.uint8]
    rows: NDArray[np.int64]

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.rows), *self.images.shape[1:])

    @property
    def dtype(self) -> np.dtype[np.uint8]:
        return self.images.dtype

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape)

    def __getitem__(self, taken: slice) -> NDArray[np.uint8]:
        return self.images[self.rows[taken]]


def _mapped_part(
    images: NDArray[np.uint8], labels: NDArray[np.int64], rows: NDArray[np.int64], chosen: NDArray[np.int64]
) -> ExamplePart:
    import numpy as np

    from velodrome.data.examples import image_part

    some = ChosenRows(images, rows[chosen])
    return image_part(some, np.ascontiguousarray(labels[chosen], dtype=np.int64))  # type: ignore[arg-type]


def check_room(name: str, count: int, shape: tuple[int, int, int], way_out: str = "free some space") -> None:
    """Refuse images that would not fit on the disk of the cache once they are decoded."""
    check_bytes(name, count * math.prod(shape), f"{count:,} images of {shape[0]}×{shape[1]}", way_out)


def check_bytes(name: str, needed: int, what: str, way_out: str = "free some space") -> None:
    """Refuse what would not fit on the disk of the cache once it is decoded."""
    home = cache.folder()
    home.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(home).free
    if needed > 0.9 * free:
        raise BadRequest(
            f"data set {name!r}: {what} take {bytes_text(needed)} decoded, and {home} has {bytes_text(free)} left: "
            f"{way_out}"
        )


def write_arrays(
    folder: Path, *, name: str, labels: Sequence[int] | NDArray[np.int64], parts: Sequence[int] | NDArray[np.int8],
    rows: Sequence[int] | NDArray[np.int64], shape: tuple[int, int, int], class_names: Sequence[str], faults: Faults,
    notes: Sequence[str] = (), source_bytes: int = 0,
) -> dict[str, Any]:
    """Write what belongs to `images.npy`: labels, parts, rows and fingerprints of the examples that can be used.

    Classes with too few training examples are a fault; what there is of them elsewhere is left out.
    """
    import numpy as np

    from velodrome.data.split_warnings import fingerprints_of_file

    label, part, row = np.asarray(labels, np.int64), np.asarray(parts, np.int8), np.asarray(rows, np.int64)
    trained = large_enough(label, part, class_names, faults)
    kept = trained[label]
    label, part, row = (np.cumsum(trained) - 1)[label[kept]], part[kept], row[kept]
    names = [class_name for class_name, any_ in zip(class_names, trained, strict=True) if any_]
    if len(names) < 2:
        wrong = "; ".join(map(str, faults.found()))
        raise BadRequest(
            f"data set {name!r} has {len(names)} classes that can be used, and training needs two"
            + (f": {wrong}" if wrong else "")
        )
    prints = fingerprints_of_file(folder / "images.npy", row)
    for file, array in (("labels", label), ("parts", part), ("rows", row), ("fingerprints", prints)):
        np.save(folder / f"{file}.npy", array)
    return {
        "class_names": names,
        "shape": list(shape),
        "parts": [int((part == which).sum()) for which in (TRAIN, VALIDATION, TEST)],
        "faults": [fault.as_json() for fault in faults.found()],
        "notes": list(notes),
        "bytes": source_bytes,
    }


def _counted(about: dict[str, Any]) -> Counted:
    return Counted(tuple(about["parts"]), tuple(about["shape"]), tuple(about["class_names"]), about["bytes"])


def _notes(about: dict[str, Any]) -> tuple[str, ...]:
    return (*summaries(_faults(about)), *about["notes"])


def _faults(about: dict[str, Any]) -> list[Fault]:
    return [Fault.from_json(fields) for fields in about["faults"]]
