"""Arrays in an `.npz` file: `x_train`, `y_train`, `x_test`, `y_test`. Never a pickle, which could run anything.

Images are read and converted a window at a time, so a file may be larger than memory.
"""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from velodrome.data import cache
from velodrome.data.base import Faults, Progress
from velodrome.data.images.cached_set import CachedImageSet, Counted, check_room, write_arrays
from velodrome.errors import BadRequest
from velodrome.files import check_regular
from velodrome.machine import process_memory
from velodrome.printable import bytes_text, shown

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

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
    path: Path

    @property
    def source(self) -> str:
        return repr(("npz", str(self.path.resolve())))

    def key(self) -> str:
        about = self.path.stat()
        return cache.key_of(("npz",), [(self.path.name, about.st_size, about.st_mtime_ns)])

    def count(self) -> Counted:
        """Sizes as the heads of the arrays say; the labels have to be read to count the classes."""
        import numpy as np

        arrays = self._arrays()
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

    def make(self, folder: Path, progress: Progress | None) -> dict[str, Any]:
        import numpy as np

        from velodrome.data.images.arrays import check_arrays

        faults = Faults()
        examples = check_arrays(self.name, self._arrays(), faults)
        check_room(self.name, len(examples), examples.shape)
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

    def _arrays(self) -> dict[str, NpzArray]:
        return given_arrays(self.path)


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
