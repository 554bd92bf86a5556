"""What every data set can do, and what those have in common that keep arrays in the cache.

A data set is a `Source`: a description that costs nothing, and access to its examples. Data of the user's own is named
by a path with options after a `?`.
"""

from __future__ import annotations

import math
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self
from urllib.parse import parse_qsl

from velodrome import files
from velodrome.data import cache
from velodrome.data.base import BadData, Checked, Fault, Faults, Progress, WrongData, naming, quiet, refuse, summaries
from velodrome.data.examples import ArrayField, ExampleSet, Text
from velodrome.errors import BadRequest, bytes_text


@dataclass(frozen=True)
class Description:
    """What is known of a data set without loading it, for a given share of validation examples.

    Counts, shape and classes are None where they are known only after loading.
    """

    name: str
    title: str
    licence: str = "your own"
    homepage: str = ""
    #: Examples; of a text, its words with one `<eos>` a line.
    train: int | None = None
    validation: int | None = None
    test: int | None = None
    #: Of images, height, width, channels; of arrays, the shape of the only input; None for a text.
    input_shape: tuple[int, ...] | None = None
    #: Of a text, the words of its vocabulary; of a matrix of labels, its columns.
    classes: int | None = None
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
            return ", ".join(f"{column.name} {_times(column.shape)}" for column in self.inputs)
        return _times(self.input_shape) if self.input_shape else "words" if self.kind == "text" else "?"

    @property
    def example_bytes(self) -> int:
        """What one example takes in memory; 0 where it is not known."""
        if self.inputs or self.targets:
            return sum(column.bytes for column in (*self.inputs, *self.targets))
        return math.prod(self.input_shape) if self.input_shape else 0

    @property
    def counted_when_prepared(self) -> bool:
        """Whether preparing it counts its examples: words must be read to be counted, and user code is not run."""
        return self.kind == "text"


def _times(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape)) or "1"


class Source(ABC):
    """One data set. What it cannot do is refused here, in one place."""

    name: str
    #: Whether a function of the user's makes the examples, which may be others for another seed.
    from_function: ClassVar[bool] = False

    @abstractmethod
    def describe(self, validation: float) -> Description: ...

    def implied_task(self) -> str | None:
        """The task that its targets are for, if a look at their description shows it: see `examples.implied_task`."""
        return None

    def variant(self, option: str) -> Source | None:
        """The same data with another label, as `name:option` asks for it; None if it has only one."""
        return None

    def with_bad_data(self, bad_data: BadData) -> Source:
        """The same data with that policy for bad examples; only what is decoded here can be bad."""
        return self

    # -- its files on this machine

    def prepare(self, progress: Progress = quiet) -> None:  # noqa: B027 (some have nothing to fetch)
        """Bring everything to this machine that loading reads."""

    def is_here(self) -> bool:
        """Whether loading would fetch nothing: a look at names and sizes, not at contents."""
        return True

    def verify(self) -> Sequence[Checked]:
        """Read everything that is stored and compare it with its checksums."""
        raise BadRequest(f"data set {self.name!r} cannot be verified: nothing is stored of what a function returns")

    def forget_damaged(self) -> None:  # noqa: B027 (files of publishers are fetched again when they are damaged)
        """Remove what the cache holds and is no longer what it was, so that `prepare` renews it."""

    # -- its examples

    def load(self, seed: int, validation: float) -> ExampleSet:
        """The examples, divided. Fetches what is missing."""
        raise BadRequest(f"data set {self.name!r} is text, for a language model: choose a data set of images for this "
                         "model")

    def load_mapped(self, seed: int, validation: float) -> ExampleSet:
        """As `load`, for a single sequential pass over every part: images can only be sliced."""
        return self.load(seed, validation)

    def file_sizes(self) -> tuple[int, ...]:
        """Examples of each file of the training part, of which a worker may load only its own; none if it lies in
        none."""
        return ()

    def load_files(self, numbers: Sequence[int], validation: float) -> ExampleSet:
        """Only these files of the training part, and the whole of the others."""
        raise BadRequest(f"data set {self.name!r} does not lie in files: `velodrome data shard` makes some")

    def load_text(self) -> Text:
        """A text as numbers of words. Fetches what is missing."""
        raise BadRequest(f"data set {self.name!r} is images: a language model needs text, such as 'ptb'")


@dataclass(frozen=True)
class CachedSource(Source):
    """A data set that is read once and kept as arrays in the cache. What is read, and how, is what differs."""

    name: str
    bad_data: BadData

    @property
    @abstractmethod
    def source(self) -> str:
        """Identifies this data set's arrays in the cache."""

    @abstractmethod
    def key(self) -> str:
        """Changes whenever the arrays would be others."""

    @abstractmethod
    def make(self, folder: Path, faults: Faults, progress: Progress) -> dict[str, Any]:
        """Read everything, write the arrays into a folder, and return their metadata as plain JSON.

        What is wrong with the data goes to `faults`; what a reader of a run should know to `notes` of the metadata.
        """

    def with_bad_data(self, bad_data: BadData) -> Self:
        return replace(self, bad_data=bad_data)

    def kept(self) -> cache.Decoded | None:
        """The arrays, if they were made already."""
        return cache.find(self.source, self.key())

    def decoded(self, progress: Progress = quiet) -> cache.Decoded:
        """The arrays, made now if need be; refused if something is wrong with the data, unless it may be."""
        def make(folder: Path) -> dict[str, Any]:
            faults = Faults()
            about = self.make(folder, faults, progress)
            return {**about, "faults": [asdict(fault) for fault in faults.all()]}

        with naming(self.name):
            kept = cache.keep(self.source, self.key(), make)
        if self.bad_data == "fail":
            refuse(self.name, _faults(kept.about))
        return kept

    def prepare(self, progress: Progress = quiet) -> None:
        self.decoded(progress)

    def is_here(self) -> bool:
        return self.kept() is not None

    def verify(self) -> Sequence[Checked]:
        return cache.verify(self.source)

    def forget_damaged(self) -> None:
        if any(checked.state == "damaged" for checked in self.verify()):
            cache.forget(self.source)


def file_key(path: Path, *options: object) -> str:
    """A key for what is made from one file."""
    about = path.stat()
    return cache.key_of(options, [(path.name, about.st_size, about.st_mtime_ns)])


def notes_of(about: dict[str, Any]) -> tuple[str, ...]:
    """What a reader of a run should know of arrays, by their metadata, as sentences."""
    return (*summaries(_faults(about)), *about.get("notes", ()))


def _faults(about: dict[str, Any]) -> list[Fault]:
    return [Fault(**{**fields, "first": tuple(fields["first"])}) for fields in about["faults"]]


def check_disk_space(needed: int, what: str, how_to_fix: str = "free some space") -> None:
    """Refuse what would not fit on the disk of the cache once it is decoded."""
    home = cache.folder()
    home.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(home).free
    if needed > 0.9 * free:
        raise WrongData(
            f"{what} take {bytes_text(needed)} decoded, and {home} has {bytes_text(free)} left: {how_to_fix}"
        )


@dataclass(frozen=True)
class PathFormat:
    """A kind of data that `path:` may name."""

    #: Whether a file or folder, with these options, is of this kind.
    takes: Callable[[Path, Mapping[str, str]], bool]
    #: Names of the options that it has.
    options: tuple[str, ...]
    #: The data set of a name, at a path, with these options.
    source: Callable[[str, Path, Mapping[str, str], BadData], Source]


def check_exists(path: Path) -> None:
    """Refuse a path that leads nowhere, and what is neither a folder nor a regular file."""
    try:
        if not path.is_dir():
            files.check_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        raise WrongData(f"no file or folder {str(path)!r}") from None
    except OSError as error:
        raise WrongData(f"{str(path)!r} cannot be read: {error.strerror}") from None
    except ValueError:
        raise WrongData("no file has a NUL character in its name") from None


def expanded(path: str) -> Path:
    """A path with `~` expanded; that of an unknown user stays as it is, and is not found."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def split_options(rest: str) -> tuple[Path, dict[str, str]]:
    """The path before a `?`, and the options after it; a `?` that belongs to the path's name stays there."""
    whole = expanded(rest)
    if "?" not in rest or os.path.lexists(whole):
        return whole, {}
    before, _, after = rest.rpartition("?")
    try:
        return expanded(before), dict(parse_qsl(after, keep_blank_values=True, strict_parsing=True))
    except ValueError:
        raise BadRequest(f"{rest!r}: write options as ?name=value&name=value") from None


def check_options(options: Mapping[str, str], known: tuple[str, ...]) -> None:
    """Refuse options that this kind of data does not have."""
    for option in options:
        if option not in known:
            choices = f"choose from {', '.join(known)}" if known else "there are none for this kind of data"
            raise WrongData(f"no option {option!r}; {choices}")


def follows_links(options: Mapping[str, str]) -> bool:
    """Whether links that lead out of the folder are followed."""
    if options.get("links", "follow") != "follow":
        raise WrongData(f"links {options['links']!r}; write links=follow, or leave it out")
    return "links" in options
