"""Arrays in an `.npz` file: `x_train`, `y_train`, `x_test`, `y_test`. Never a pickle, which could run anything.

They are read and converted a window at a time, so a file may be larger than memory; then cached, and mapped by every
worker.
"""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Literal

from velodrome.data.base import Faults, NDArray, Progress, naming, np
from velodrome.data.examples import implied_task
from velodrome.data.own.array_examples import StoredExamples, fields, form_of, read, store
from velodrome.data.own.arrays import ArgumentPart, argument_parts, byte_scales, is_known
from velodrome.data.source import Description, PathFormat, check_disk_space, file_key, notes_of
from velodrome.data.split import (
    TEST,
    TRAIN,
    VALIDATION,
    sizes_of,
)
from velodrome.errors import BadRequest, bytes_text, shown
from velodrome.files import check_regular
from velodrome.machine import process_memory

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
        with _refusing(self.path), zipfile.ZipFile(self.path) as archive, archive.open(f"{self.key}.npy") as stream:
            _head(stream)
            size, free = self.nbytes, process_memory()
            if _WHOLE * size > free:
                how = "is stored by columns and " if self.by_columns else ""
                raise ValueError(
                    f"its array {self.key!r} {how}takes {bytes_text(_WHOLE * size)} of memory to be read, but only "
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
class NpzSet(StoredExamples):
    """Labelled images whose pixels are bytes without loss, or named inputs and targets of any shape."""

    path: Path

    @property
    def source(self) -> str:
        return repr(("npz", str(self.path.resolve())))

    def key(self) -> str:
        return file_key(self.path, "npz", 2)

    @cached_property
    def _parts(self) -> list[ArgumentPart]:
        with naming(self.name), _refusing(self.path):
            return argument_parts(npz_arrays(self.path, is_known))

    @cached_property
    def _kind(self) -> Literal["images", "arrays"]:
        """What was prepared before is not read again to find out."""
        if kept := self.kept():
            kind: Literal["images", "arrays"] = kept.about["kind"]
            return kind
        return "images" if self._scales else "arrays"

    @cached_property
    def _scales(self) -> dict[bool, float] | None:
        with _refusing(self.path):
            return byte_scales(self._parts)

    def describe(self, validation: float) -> Description:
        kept = self.kept()
        shape: tuple[int, ...] | None
        if kept is None and self._kind == "images":
            sizes, shape, names = self._looked_at()
        else:
            kept = kept or self.decoded()  # classes and bad examples are only known when everything was read
            inputs = fields(kept.about, "inputs")
            sizes, shape = tuple(kept.about["parts"]), inputs[0].shape if len(inputs) == 1 else None
            names = tuple(kept.about["class_names"])
        train, validated, test = sizes_of(sizes, validation)  # type: ignore[arg-type]
        about = Description(
            name=self.name, title="your own data", kind=self._kind, train=train, validation=validated, test=test,
            input_shape=shape, classes=len(names), class_names=names, bytes=self.path.stat().st_size,
            notes=notes_of(kept.about) if kept else (),
        )
        if kept is None or self._kind == "images":
            return about
        targets = fields(kept.about, "targets")
        return replace(
            about, classes=kept.about["classes"], inputs=inputs, targets=targets, task=implied_task(targets)
        )

    def _looked_at(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[str, ...]]:
        """Of images, how many each part has, their shape and classes; only the labels are read."""
        sizes = {part.which: len(part) for part in self._parts}
        (labels,) = self._parts[0].targets.values()
        shape, _ = form_of("images", self._parts, next(iter(self._parts[0].inputs)))
        return (tuple(sizes.get(which, 0) for which in (TRAIN, VALIDATION, TEST)), shape,
                tuple(map(str, range(len(np.unique(labels.whole()))))))

    def implied_task(self) -> str | None:
        return None if self._kind == "images" else implied_task(fields(self.decoded().about, "targets"))

    def make(self, folder: Path, faults: Faults, progress: Progress) -> dict[str, Any]:
        names, count = [*self._parts[0].inputs], sum(map(len, self._parts))
        forms = [form_of(self._kind, self._parts, column) for column in names]
        total = count * sum(math.prod(shape) * dtype.itemsize for shape, dtype in forms)
        size = "×".join(map(str, forms[0][0][:2]))
        check_disk_space(total, f"{count:,} images of {size}" if self._kind == "images" else "its arrays")
        done = 0
        with ExitStack() as stack:
            outs = {column: stack.enter_context((folder / f"input{place}.npy").open("wb"))
                    for place, column in enumerate(names)}
            for out, (shape, dtype) in zip(outs.values(), forms, strict=True):
                descr = np.lib.format.dtype_to_descr(dtype)
                header = {"descr": descr, "fortran_order": False, "shape": (count, *shape)}
                np.lib.format.write_array_header_1_0(out, header)

            def write(column: str, first: int, window: NDArray[Any]) -> None:
                nonlocal done
                outs[column].write(window.data)
                done += window.nbytes
                progress(done, total, f"reading {self.name}")

            examples = read(self._scales, self._parts, write, faults)
        return {"kind": self._kind, **store(folder, names, examples)}


def npz_arrays(path: Path, is_known: Callable[[str], bool]) -> dict[str, NpzArray]:
    """Every array of a name that is known; others are not looked at."""
    with _refusing(path):
        check_regular(path)
        with zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
        return {name: NpzArray.of(path, name) for name in names if is_known(name)}


FORMATS = (
    PathFormat(lambda path, options: path.suffix.lower() == ".npz", (),
               lambda name, path, options, bad_data: NpzSet(name, bad_data, path)),
)
