"""What all data sets share: progress, what is wrong with data, what verifying finds, and how much memory data may take.

Names come from outside, so they are never printed as they are. Nothing here, nor in a data set's module, imports numpy
before examples are asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from velodrome import machine
from velodrome.errors import BadRequest, VelodromeError
from velodrome.printable import shown

if TYPE_CHECKING:
    from velodrome.data.examples import ArrayField, ExampleSet
    from velodrome.data.text import Text

#: Called while files come in: bytes so far, bytes in all, and what they are.
Progress = Callable[[int, int, str], None]

#: What becomes of examples that cannot be used: left out with a warning, or the whole data set refused.
BadData = Literal["skip", "fail"]


class DataError(VelodromeError):
    """The files of a data set cannot be fetched, stored or read, or are not what they should be."""


@dataclass(frozen=True)
class Description:
    """What is known of a data set without loading it, for a given share of validation examples.

    Counts, shape and classes are None where they are known only after loading.
    """

    name: str
    title: str
    licence: str
    homepage: str
    #: Examples; of a text, its words with one `<eos>` a line.
    train: int | None
    validation: int | None
    test: int | None
    #: Of images, height, width, channels; of arrays, the shape of the only input; None for a text.
    input_shape: tuple[int, ...] | None
    #: Of a text, the words of its vocabulary; of a matrix of labels, its columns.
    classes: int | None
    kind: Literal["images", "text", "arrays"] = "images"
    #: What has to be fetched or lies in the user's folder; 0 if it comes with Velodrome, None if unknown.
    bytes: int | None = None
    class_names: tuple[str, ...] = ()
    #: What was left out or changed when it was prepared, as sentences.
    notes: tuple[str, ...] = ()
    #: Files that the training part lies in; 0 for data that does not lie in files of examples.
    files: int = 0
    #: Of arrays: every input and target, and the task that the targets imply; empty where only loading shows them.
    inputs: tuple[ArrayField, ...] = ()
    targets: tuple[ArrayField, ...] = ()
    task: str | None = None

    @property
    def shape(self) -> str:
        """`28×28×1`, `words` of a text, `age 1, photo 8×8×1` of several inputs, or `?` if only loading shows it."""
        if len(self.inputs) > 1:
            return ", ".join(f"{one.name} {_times(one.shape)}" for one in self.inputs)
        return _times(self.input_shape) if self.input_shape else "words" if self.kind == "text" else "?"

    @property
    def example_bytes(self) -> int:
        """What one example takes in memory; 0 where it is not known."""
        if self.inputs or self.targets:
            return sum(one.bytes for one in (*self.inputs, *self.targets))
        return math.prod(self.input_shape) if self.input_shape else 0

    @property
    def counted_when_prepared(self) -> bool:
        """Whether preparing it counts its examples: words must be read to be counted, and user code is not run."""
        return self.kind == "text"


@dataclass(frozen=True)
class Checked:
    """The result of `velodrome data verify` for one stored file."""

    file: str
    #: `stray` is a file that should not be there.
    state: Literal["ok", "missing", "damaged", "stray"]
    detail: str = ""
    #: Whether `velodrome data prepare` repairs it.
    by_prepare: bool = True


class Entry(Protocol):
    """Any data set, by name."""

    @property
    def name(self) -> str: ...

    def describe(self, validation: float) -> Description: ...

    def prepare(self, progress: Progress | None) -> None:
        """Bring everything to this machine that loading reads."""


@runtime_checkable
class DataSet(Entry, Protocol):
    """Examples with targets: images with labels, or arrays of anything."""

    def load(self, seed: int, validation: float) -> ExampleSet: ...


@runtime_checkable
class ArraySet(DataSet, Protocol):
    """Arrays, of which a look at their description shows what is to be learned."""

    def implied_task(self) -> str | None:
        """The task that the targets are for, if it is known without loading: see `arrays.implied_task`."""


@runtime_checkable
class FileSet(DataSet, Protocol):
    """Images in files, of which a worker may load only its own."""

    def files(self) -> tuple[int, ...]:
        """Examples of each training file."""

    def load_files(self, numbers: Sequence[int], validation: float) -> ExampleSet:
        """Only these files of the training part, and the whole of the others."""


@runtime_checkable
class TextSet(Entry, Protocol):
    """A text for the language model."""

    def load_text(self) -> Text: ...


@runtime_checkable
class CachedSet(Protocol):
    """A data set that knows which of its files are stored on this machine."""

    def is_here(self) -> bool:
        """Whether loading would fetch nothing: a look at names and sizes, not at contents."""

    def verify(self) -> Sequence[Checked]:
        """Read everything that is stored and compare it with its checksums."""


def _times(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape)) or "1"


#: How many of each kind are named.
NAMED = 10


@dataclass(frozen=True)
class Fault:
    """One kind of thing that is wrong, such as `images that cannot be read`."""

    what: str
    #: What `--bad-data skip` does with them.
    remedy: str
    count: int
    #: The first ones, each with its reason where they differ.
    first: tuple[str, ...]

    def __str__(self) -> str:
        more = f", and {self.count - len(self.first):,} more" if self.count > len(self.first) else ""
        return f"{self.what}: {self.count:,} ({', '.join(self.first)}{more})"

    def as_json(self) -> dict[str, Any]:
        return {"what": self.what, "remedy": self.remedy, "count": self.count, "first": list(self.first)}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Fault:
        return cls(fields["what"], fields["remedy"], fields["count"], tuple(fields["first"]))


class Faults:
    """Collects what is wrong while data is read."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[str, int, list[str]]] = {}

    def add(self, what: str, name: object, reason: str = "", *, remedy: str = "left out", count: int = 1) -> None:
        remedy, so_far, first = self._found.get(what, (remedy, 0, []))
        if len(first) < NAMED:
            first.append(f"{shown(name)}: {shown(reason)}" if reason else shown(name))
        self._found[what] = (remedy, so_far + count, first)

    def take(self, faults: Iterable[Fault]) -> None:
        """Add faults that were collected elsewhere."""
        for fault in faults:
            remedy, so_far, first = self._found.get(fault.what, (fault.remedy, 0, []))
            self._found[fault.what] = (remedy, so_far + fault.count, [*first, *fault.first][:NAMED])

    def found(self) -> tuple[Fault, ...]:
        return tuple(Fault(what, *rest[:2], tuple(rest[2])) for what, rest in self._found.items())


def refuse(name: str, faults: Sequence[Fault]) -> None:
    """End here if anything is wrong."""
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
