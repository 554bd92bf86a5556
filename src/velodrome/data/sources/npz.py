"""Arrays in an `.npz` file: `x_train`, `y_train`, `x_test`, `y_test`. Never a pickle, which could run anything.

They are read and converted a window at a time, so a file may be larger than memory; then cached, and mapped by every
worker.
"""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from velodrome.data import cache
from velodrome.data.base import BadData, Faults, Progress
from velodrome.data.images.photos import CachedImageSet, Counted, write_arrays
from velodrome.data.own.paths import PathFormat
from velodrome.data.source import CachedSource, Description, Source, check_room, file_key, notes_of
from velodrome.data.split import TEST, TRAIN, VALIDATION, sizes_of
from velodrome.errors import BadRequest
from velodrome.files import check_regular
from velodrome.machine import process_memory
from velodrome.printable import bytes_text, shown

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from velodrome.data.examples import ArrayField, ExampleSet
    from velodrome.data.own.array_args import ArgumentPart

#: What a damaged, encrypted or strangely packed archive may raise, and one that is too large.
_UNREADABLE = (
    KeyError, ValueError, OSError, EOFError, MemoryError, RuntimeError, OverflowError, zlib.error, zipfile.BadZipFile,
)
#: Bytes of the head of an array, and the largest axis that it may claim.
_LARGEST_HEAD, _LONGEST_AXIS = 1 << 16, 1 << 48
#: An array that is read whole is held as bytes and as numbers, and labels are compared as doubles and words.
_WHOLE = 4


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Turn whatever an archive raises into one sentence."""
    try:
        yield
    except _UNREADABLE as error:
        why = str(error) or type(error).__name__
        if isinstance(error, MemoryError):
            why = "its arrays do not fit in memory"
        raise BadRequest(
            f"{str(path)!r} cannot be read: {why}; write it with "
            "numpy.savez(file, x_train=…, y_train=…, x_test=…, y_test=…)"
        ) from None


@dataclass(frozen=True)
class NpzArray:
    """One array of the file, read from front to back."""

    path: Path
    key: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    #: Whether columns come before rows, so that it cannot be read row by row.
    by_columns: bool

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @classmethod
    def of(cls, path: Path, key: str) -> NpzArray:
        with zipfile.ZipFile(path) as archive, archive.open(f"{key}.npy") as stream:
            shape, by_columns, dtype = _head(stream)
        return cls(path, key, shape, dtype, by_columns)

    def windows(self, rows: int) -> Iterator[NDArray[Any]]:
        import numpy as np

        if self.by_columns:
            whole = self.whole()
            yield from (whole[first : first + rows] for first in range(0, self.shape[0], rows))
            return
        each = math.prod(self.shape[1:]) * self.dtype.itemsize
        with _refusing(self.path), zipfile.ZipFile(self.path) as archive, archive.open(f"{self.key}.npy") as stream:
            _head(stream)
            for first in range(0, self.shape[0], rows):
                count = min(rows, self.shape[0] - first)
                yield np.frombuffer(self._read(stream, count * each), self.dtype).reshape(count, *self.shape[1:])
            stream.read(1)  # at its end the checksum is compared

    def whole(self) -> NDArray[Any]:
        import numpy as np

        with _refusing(self.path), zipfile.ZipFile(self.path) as archive, archive.open(f"{self.key}.npy") as stream:
            _head(stream)
            size, free = self.nbytes, process_memory()
            if _WHOLE * size > free:
                how = "is stored by columns and " if self.by_columns else ""
                raise ValueError(
                    f"its array {self.key!r} {how}takes {bytes_text(_WHOLE * size)} of memory to be read, and "
                    f"{bytes_text(free)} are free"
                )
            flat = np.frombuffer(self._read(stream, size), self.dtype)
            stream.read(1)
            return flat.reshape(self.shape, order="F" if self.by_columns else "C")

    def _read(self, stream: IO[bytes], size: int) -> bytes:
        data = stream.read(size)
        if len(data) != size:
            raise EOFError(f"its array {self.key!r} ends too early")
        return data


def _head(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape of an array, whether it is stored by columns, and the type of its numbers."""
    import numpy as np

    version = np.lib.format.read_magic(stream)  # type: ignore[no-untyped-call]
    first = version == (1, 0)
    claimed = stream.read(2 if first else 4)
    size = int.from_bytes(claimed, "little")
    if size > _LARGEST_HEAD:  # NumPy would read all of it before it looks
        raise ValueError(f"the head of an array has {bytes_text(size)}")
    read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
    shape, by_columns, dtype = read(io.BytesIO(claimed + stream.read(size)))  # type: ignore[no-untyped-call]
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are never loaded")
    if not all(0 <= axis <= _LONGEST_AXIS for axis in shape):
        raise ValueError(f"an array claims the shape {shown(shape)}")
    return shape, by_columns, dtype


@dataclass(frozen=True)
class NpzSet(CachedImageSet):
    """Images with a label each, whose pixels are bytes without loss."""

    path: Path = field(kw_only=True)

    @property
    def source(self) -> str:
        return repr(("npz", str(self.path.resolve())))

    def key(self) -> str:
        return file_key(self.path, "npz")

    def count(self) -> Counted:
        """Sizes as the heads of the arrays say; the labels have to be read to count the classes."""
        import numpy as np

        arrays = given_arrays(self.path)
        shapes = [arrays[key].shape if key in arrays else () for key in ("x_train", "x_validation", "x_test")]
        if not shapes[0] or "y_train" not in arrays:
            missing = "y_train" if shapes[0] else "x_train"
            with _refusing(self.path):
                raise ValueError(f"it has no array {missing!r} with an example a row")
        shape = shapes[0][1:] if len(shapes[0]) != 3 else (*shapes[0][1:], 1)
        return Counted(
            tuple(shape[0] if shape else 0 for shape in shapes),  # type: ignore[arg-type]
            shape if len(shape) == 3 else None,  # type: ignore[arg-type]
            tuple(map(str, range(len(np.unique(arrays["y_train"].whole()))))), self.path.stat().st_size,
        )

    def make(self, folder: Path, faults: Faults, progress: Progress | None) -> dict[str, Any]:
        import numpy as np

        from velodrome.data.images.arrays import check_arrays

        examples = check_arrays(self.name, given_arrays(self.path), faults)
        height, width, _ = examples.shape
        check_room(self.name, examples.bytes, f"{len(examples):,} images of {height}×{width}")
        header = {"descr": "|u1", "fortran_order": False, "shape": (len(examples), *examples.shape)}
        done = 0
        with (folder / "images.npy").open("wb") as out:
            np.lib.format.write_array_header_1_0(out, header)

            def take(window: NDArray[np.uint8]) -> None:
                nonlocal done
                out.write(window.data)
                done += window.nbytes
                if progress:
                    progress(done, examples.bytes, f"reading {self.name}")

            rows = examples.convert(take, faults)
        return write_arrays(
            folder, name=self.name, labels=examples.labels[rows], parts=examples.parts[rows], rows=rows,
            shape=examples.shape, class_names=examples.class_names, faults=faults, notes=examples.notes,
            source_bytes=self.path.stat().st_size,
        )


def npz_arrays(path: Path, is_known: Callable[[str], bool]) -> dict[str, NpzArray]:
    """Every array of a name that is known; others are not looked at."""
    with _refusing(path):
        check_regular(path)
        with zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
        return {name: NpzArray.of(path, name) for name in names if is_known(name)}


def given_arrays(path: Path) -> dict[str, NpzArray]:
    """The arrays of a data set."""
    from velodrome.data.own.array_args import is_known

    return npz_arrays(path, is_known)


def holds_images(name: str, path: Path) -> bool:
    """Whether a file holds images with a label each, whose pixels are bytes without loss."""
    from velodrome.data.own.array_args import are_byte_images, argument_parts

    with _refusing(path):
        return are_byte_images(argument_parts(name, given_arrays(path)))


@dataclass(frozen=True)
class NpzArraySet(CachedSource):
    """Named inputs and targets of any shape."""

    path: Path

    @property
    def source(self) -> str:
        return repr(("npz arrays", str(self.path.resolve())))

    def key(self) -> str:
        return file_key(self.path, "npz arrays", 1)

    @cached_property
    def _given(self) -> list[ArgumentPart]:
        from velodrome.data.own.array_args import argument_parts

        return argument_parts(self.name, given_arrays(self.path))

    def describe(self, validation: float) -> Description:
        from velodrome.data.examples import implied_task

        kept = self.decoded()  # classes and bad examples are only known when everything was read
        inputs, targets = _fields(kept.about, "inputs"), _fields(kept.about, "targets")
        train, validated, test = sizes_of(tuple(kept.about["parts"]), validation)
        return Description(
            name=self.name, title="your own data", licence="your own", homepage="", kind="arrays", train=train,
            validation=validated, test=test, input_shape=inputs[0].shape if len(inputs) == 1 else None,
            classes=kept.about["classes"], class_names=tuple(kept.about["class_names"]),
            bytes=self.path.stat().st_size, notes=notes_of(kept.about), inputs=inputs, targets=targets,
            task=implied_task(targets),
        )

    def implied_task(self) -> str | None:
        from velodrome.data.examples import implied_task

        return implied_task(_fields(self.decoded().about, "targets"))

    def load(self, seed: int, validation: float) -> ExampleSet:
        import numpy as np

        from velodrome.data.own.array_examples import ArrayExamples, divided

        kept = self.decoded()
        about = kept.about
        examples = ArrayExamples(
            {one["name"]: kept.array(f"input{place}") for place, one in enumerate(about["inputs"])},
            {one["name"]: kept.array(f"target{place}") for place, one in enumerate(about["targets"])},
            kept.array("rows"), kept.array("parts"), about["classes"], tuple(about["class_names"]),
            frozenset(about["images"]), np.asarray(kept.array("prints")),
        )
        return divided(self.name, examples, seed, validation, notes_of(about))

    def make(self, folder: Path, faults: Faults, progress: Progress | None) -> dict[str, Any]:
        import numpy as np

        from velodrome.data.own.array_examples import read

        names = [*self._given[0].inputs]
        total = sum(array.shape[0] * int(np.prod(array.shape[1:])) * 4 for part in self._given
                    for array in part.inputs.values())
        check_room(self.name, total, "its arrays")
        done = 0

        def allocate(one: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
            nonlocal done
            if progress:
                progress(done, total, f"reading {self.name}")
            done += int(np.prod(shape)) * dtype.itemsize
            return cache.allocate(folder / f"input{names.index(one)}.npy", dtype, shape)

        examples = read(self.name, self._given, allocate, faults)
        for array in examples.inputs.values():
            array.flush()  # type: ignore[attr-defined]
        for place, array in enumerate(examples.targets.values()):
            np.save(folder / f"target{place}.npy", array)
        np.save(folder / "rows.npy", examples.rows)
        np.save(folder / "parts.npy", examples.parts)
        np.save(folder / "prints.npy", examples.prints)
        return {
            "inputs": _as_json(examples.inputs), "targets": _as_json(examples.targets), "classes": examples.classes,
            "class_names": list(examples.class_names), "images": sorted(examples.images),
            "parts": [int((examples.parts == which).sum()) for which in (TRAIN, VALIDATION, TEST)],
        }


def _as_json(arrays: Any) -> list[dict[str, Any]]:
    return [{"name": one, "shape": list(array.shape[1:]), "dtype": array.dtype.name} for one, array in arrays.items()]


def _fields(about: dict[str, Any], side: str) -> tuple[ArrayField, ...]:
    from velodrome.data.examples import ArrayField

    return tuple(ArrayField(one["name"], tuple(one["shape"]), one["dtype"]) for one in about[side])


def _source(name: str, path: Path, options: Mapping[str, str], bad_data: BadData) -> Source:
    """Byte images, or arrays of anything. What was prepared before is not read again to find out."""
    images, arrays = NpzSet(name, bad_data, path=path), NpzArraySet(name, bad_data, path)
    return images if images.is_here() or (not arrays.is_here() and holds_images(name, path)) else arrays


FORMATS = (PathFormat(lambda path, options: path.suffix.lower() == ".npz", (), _source),)
