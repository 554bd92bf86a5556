"""Arrays in an `.npz` file: `x_train`, `y_train`, `x_test`, `y_test`. Never a pickle, which could run anything."""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from velodrome.data.bad_data import Faults
from velodrome.data.base import Progress
from velodrome.data.cache import decoded
from velodrome.data.images.cached_set import CachedImageSet, Counted, write_arrays
from velodrome.errors import BadRequest

#: What a damaged, encrypted or strangely packed archive may raise, and one that is too large.
_UNREADABLE = (
    KeyError, ValueError, OSError, EOFError, MemoryError, RuntimeError, zlib.error, zipfile.BadZipFile,
)


@dataclass(frozen=True)
class NpzSet(CachedImageSet):
    path: Path

    @property
    def source(self) -> str:
        return repr(("npz", str(self.path.resolve())))

    def key(self) -> str:
        about = self.path.stat()
        return decoded.key_of(("npz",), [(self.path.name, about.st_size, about.st_mtime_ns)])

    def count(self) -> Counted:
        """Sizes as the heads of the arrays say; the labels have to be read to count the classes."""
        import numpy as np

        arrays = self._open()
        sizes = tuple(_head(self.path, f"x_{part}") for part in ("train", "validation", "test"))
        try:
            classes = len(np.unique(arrays["y_train"]))
        except _UNREADABLE as error:
            raise self._refusal(error) from None
        if not sizes[0]:
            raise self._refusal(ValueError("it has no array 'x_train' with an example a row"))
        shape = sizes[0][1:] if sizes[0] and len(sizes[0]) == 4 else (*sizes[0][1:], 1) if len(sizes[0]) == 3 else None
        return Counted(
            tuple(size[0] if size else 0 for size in sizes),  # type: ignore[arg-type]
            shape if shape and len(shape) == 3 else None,  # type: ignore[arg-type]
            tuple(map(str, range(classes))), self.path.stat().st_size,
        )

    def make(self, folder: Path, progress: Progress | None) -> dict[str, Any]:
        import numpy as np

        from velodrome.data.images.arrays import NAMES, check_arrays

        size = self.path.stat().st_size
        if progress:
            progress(0, size, f"reading {self.name}")
        faults = Faults()
        opened = self._open()
        try:
            arrays = {key: opened[key] if key in NAMES else None for key in opened.files}
        except _UNREADABLE as error:
            raise self._refusal(error) from None
        examples = check_arrays(self.name, arrays, faults)
        if progress:
            progress(size, size, f"reading {self.name}")
        np.save(folder / "images.npy", examples.images)
        height, width, channels = examples.images.shape[1:]
        return write_arrays(
            folder, name=self.name, labels=examples.labels, parts=examples.parts, rows=np.arange(len(examples.labels)),
            shape=(height, width, channels), class_names=examples.class_names, faults=faults, notes=examples.notes,
            source_bytes=size,
        )

    def _open(self) -> Any:
        import numpy as np

        from velodrome.machine import process_memory

        try:
            with zipfile.ZipFile(self.path) as archive:
                whole, free = sum(info.file_size for info in archive.infolist()), process_memory()
                if 2 * whole > free:
                    raise ValueError(
                        f"its arrays take {whole / 2**30:.1f} GiB, and reading them needs twice that of the "
                        f"{free / 2**30:.1f} GiB of memory that are free"
                    )
            return np.load(self.path, allow_pickle=False)
        except _UNREADABLE as error:
            raise self._refusal(error) from None

    def _refusal(self, error: Exception) -> BadRequest:
        why = str(error) or type(error).__name__
        if "allow_pickle" in why:
            why = "it holds Python objects, which are never loaded"
        elif isinstance(error, MemoryError):
            why = "its arrays do not fit in memory"
        return BadRequest(
            f"{str(self.path)!r} cannot be read: {why}; write it with "
            "numpy.savez(file, x_train=…, y_train=…, x_test=…, y_test=…)"
        )


def _head(path: Path, key: str) -> tuple[int, ...]:
    """The shape of an array, without reading it; empty if it is not there."""
    import numpy as np

    try:
        with zipfile.ZipFile(path) as archive, archive.open(f"{key}.npy") as stream:
            version = np.lib.format.read_magic(stream)  # type: ignore[no-untyped-call]
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape: tuple[int, ...] = read(stream)[0]  # type: ignore[no-untyped-call]
            return shape
    except _UNREADABLE:
        return ()
