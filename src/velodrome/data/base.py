"""What all data sets share: NumPy, imported when it is first used; progress; what is wrong with data, and what
verifying finds; rows of arrays that may be mapped from files, and how much memory data may take.

Describing data sets, as completion does at every key, must not wait for NumPy. Aliases of array types are strings,
because they would import it. Names come from outside, so they are never printed as they are.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeGuard, TypeVar

from velodrome import machine
from velodrome.errors import BadRequest, RunFailed, UserCodeError, VelodromeError, shown
from velodrome.files import sha256_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike, NDArray
else:

    class _Lazy(ModuleType):
        def __getattr__(self, name: str) -> Any:
            module = import_module("numpy")
            self.__dict__.update(vars(module))  # from now on as fast as the module itself
            return getattr(module, name)

    np = _Lazy("numpy")
    DTypeLike = NDArray = Any  # in annotations alone, which are not evaluated

#: What other modules take from here, although it is imported here.
__all__ = ["DTypeLike", "NDArray", "np"]

#: Called while files come in: bytes so far, bytes in all, and what they are.
Progress = Callable[[int, int, str], None]


def quiet(done: int, total: int, label: str) -> None:
    """A `Progress` that reports nothing."""


#: What becomes of examples that cannot be used: left out with a warning, or the whole data set refused.
BadData = Literal["skip", "fail"]


class DataError(VelodromeError):
    """The files of a data set cannot be fetched, stored or read, or are not what they should be."""


class OfDataSet(VelodromeError):
    """An error about a data set; `naming` puts its name at the beginning of the message."""

    data_set = ""

    def __str__(self) -> str:
        message = super().__str__()
        return f"--dataset {self.data_set!r}: {message}" if self.data_set else message


class WrongData(OfDataSet, BadRequest):
    """The data, or what is asked of it, cannot be used."""


class ItemFailed(OfDataSet, RunFailed):
    """An example that is read while a run lasts is not what it should be."""


class ReadingFailed(OfDataSet, UserCodeError):
    """Code of the user's raised while an example was read."""


@contextmanager
def naming(data_set: str) -> Iterator[None]:
    """Within this context, errors about data begin with the name of that data set."""
    try:
        yield
    except OfDataSet as error:
        error.data_set = error.data_set or data_set
        raise


@dataclass(frozen=True)
class Checked:
    """The result of `velodrome data verify` for one stored file."""

    file: str
    #: `stray` is a file that should not be there.
    state: Literal["ok", "missing", "damaged", "stray"]
    detail: str = ""
    #: Whether `velodrome data prepare` repairs it.
    by_prepare: bool = True

    @classmethod
    def by_checksum(cls, path: Path, sha256: str) -> Checked:
        if not path.exists():
            return cls(str(path), "missing")
        return cls(str(path), "ok" if sha256_of(path) == sha256 else "damaged")


#: How many of each kind are named.
MOST_NAMED = 10


@dataclass(frozen=True)
class Fault:
    """One kind of thing that is wrong, such as `images that cannot be read`."""

    what: str
    #: What `--bad-data skip` does with them.
    remedy: str
    count: int
    #: The first few by name, each with its reason where reasons differ.
    first: tuple[str, ...]

    def __str__(self) -> str:
        more = f", and {self.count - len(self.first):,} more" if self.count > len(self.first) else ""
        return f"{self.what}: {self.count:,} ({', '.join(self.first)}{more})"


class Faults:
    """Collects what is wrong while data is read."""

    def __init__(self) -> None:
        self._by_kind: dict[str, Fault] = {}

    def add(self, what: str, name: object, reason: str = "", *, remedy: str = "left out", count: int = 1) -> None:
        known = self._by_kind.get(what)
        first: tuple[str, ...] = ()
        if known is None or len(known.first) < MOST_NAMED:
            first = (f"{shown(name)}: {shown(reason)}" if reason else shown(name),)
        self.take([Fault(what, remedy, count, first)])

    def take(self, faults: Iterable[Fault]) -> None:
        """Add faults that were collected elsewhere."""
        for fault in faults:
            known = self._by_kind.get(fault.what, Fault(fault.what, fault.remedy, 0, ()))
            first = (*known.first, *fault.first)[:MOST_NAMED]
            self._by_kind[fault.what] = Fault(fault.what, known.remedy, known.count + fault.count, first)

    @property
    def because(self) -> str:
        """All faults, as the end of a sentence: `: images that cannot be read: 3 (…)`; empty without any."""
        return f": {'; '.join(map(str, self.all()))}" if self._by_kind else ""

    def all(self) -> tuple[Fault, ...]:
        return tuple(self._by_kind.values())


def refuse(name: str, faults: Sequence[Fault]) -> None:
    """Raise `BadRequest` if anything is wrong."""
    if faults:
        raise BadRequest(
            f"data set {name!r} has {'; '.join(map(str, faults))}. Repair it, or give --bad-data skip and these are "
            f"{_listed(fault.remedy for fault in faults)}"
        )


def summaries(faults: Sequence[Fault]) -> tuple[str, ...]:
    """What was done about each fault, a sentence each."""
    return tuple(f"{fault}: {fault.remedy}" for fault in faults)


def _listed(words: Iterable[str]) -> str:
    return " and ".join(dict.fromkeys(words))


_workers_on_host = 1


def share_host(workers: int) -> None:
    """Divide the memory of the host by that many workers from now on; a training process calls this once."""
    global _workers_on_host
    _workers_on_host = max(1, workers)


def memory_budget(fraction: float) -> int:
    """Bytes that data may take here: that fraction of the free memory, divided by the workers of the host."""
    return int(machine.process_memory() * fraction) // _workers_on_host


Number = TypeVar("Number", bound="np.generic")
#: Mapped files up to this size may come into the process whole.
WINDOW = 128 << 20


def is_mapped(array: object) -> TypeGuard[np.memmap[Any, Any]]:
    """Whether an array is mapped from a file, so that reading its rows makes the process grow."""
    return isinstance(array, np.memmap)


class Gather(Generic[Number]):
    """Rows by their places, as a copy: from memory, from a small mapped file, or from a large one by reading.

    `rows` has their shape and type, `each` is the bytes of one.
    """

    def __init__(self, rows: NDArray[Number], window: int = WINDOW) -> None:
        self.rows: NDArray[Number] = np.asarray(rows)
        self._stream: IO[bytes] | None = None
        if is_mapped(rows) and rows.nbytes > window and rows.flags.c_contiguous:
            self._stream, self._start = _open_file(rows)
        self._numbers = int(np.prod(rows.shape[1:]))
        self.each = self._numbers * rows.dtype.itemsize

    @classmethod
    def of_file(cls, path: Path) -> Gather[Any]:
        """Rows of an `.npy` file that is not mapped: a process may have fewer addresses than the file has bytes."""
        stream = path.open("rb")
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(stream)
        gather = cls(np.broadcast_to(np.zeros((), dtype), shape))  # which takes no memory
        gather._stream, gather._start = stream, stream.tell()
        return gather

    def __call__(self, indices: NDArray[np.int64]) -> NDArray[Number]:
        if self._stream is None:
            return self.rows.take(indices, axis=0)
        if len(indices) and not 0 <= indices.min() <= indices.max() < len(self.rows):
            raise IndexError(f"rows {indices.min()} to {indices.max()} of {len(self.rows)} were asked for")
        out = np.empty((len(indices), *self.rows.shape[1:]), self.rows.dtype)
        file = self._stream.fileno()
        for row, place in zip(out.reshape(len(indices), self._numbers), indices.tolist(), strict=True):
            if os.preadv(file, [row.data], self._start + place * self.each) != self.each:
                raise DataError(f"{self._stream.name!r} was truncated while it was read: prepare the data set again")
        return out


def _open_file(rows: np.memmap[Any, Any]) -> tuple[IO[bytes], int]:
    """The file behind a mapped array, and where in it the array begins; a slice begins later than its file's array."""
    whole = rows
    while is_mapped(whole.base):
        whole = whole.base
    if rows.filename is None:
        raise DataError("rows are mapped from no file that has a name")
    return Path(rows.filename).open("rb"), rows.offset + rows.ctypes.data - whole.ctypes.data


#: Some rows of an array, by their numbers.
Pick: TypeAlias = "Callable[[NDArray[Any], NDArray[np.int64]], NDArray[Any]]"


def picked(array: NDArray[Any], rows: NDArray[np.int64]) -> NDArray[Any]:
    """Some rows: neighbours stay mapped, shared by all processes of a host; a scattered choice is copied."""
    together = len(rows) > 0 and rows[-1] - rows[0] + 1 == len(rows)
    taken: NDArray[Any] = array[int(rows[0]) : int(rows[-1]) + 1] if together else array[rows]
    return taken


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


#: For a single pass from front to back: nothing is copied until it is read.
mapped: Pick = ChosenRows  # type: ignore[assignment]
