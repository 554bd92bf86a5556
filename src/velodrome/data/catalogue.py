"""Finds data sets by name. A new data set is an entry in one of the modules listed here, or another module."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from velodrome.catalog.script import LABEL as OF_SCRIPT
from velodrome.data.base import ArraySet, BadData, CachedSet, Checked, DataSet, Description, FileSet, Progress, TextSet
from velodrome.data.images.cached_set import CachedImageSet
from velodrome.data.own.functions import FunctionSet, ScriptData, is_function
from velodrome.errors import BadRequest, VelodromeError, which_name

if TYPE_CHECKING:
    from velodrome.data.examples import ExampleSet
    from velodrome.data.text import Text

#: Each has a tuple `DATA_SETS`.
MODULES = ("embedded", "idx", "cifar", "fruits", "products", "treebank")
#: What comes before the colon, and the module whose `data_set(rest, bad_data)` handles what follows it.
SCHEMES = {"path": "own.paths", "text": "own.text_folder", "shards": "shards.data_set"}


@cache
def _data_sets() -> dict[str, DataSet | TextSet]:
    modules = [import_module(f"velodrome.data.sets.{name}") for name in MODULES]
    return {data_set.name: data_set for module in modules for data_set in module.DATA_SETS}


def names() -> list[str]:
    return list(_data_sets())


def data_set(name: str, bad_data: BadData = "fail") -> DataSet | TextSet:
    """The data set of a name: one of the catalogue, `name:variant` of one, or `scheme:place`."""
    known = _data_sets()
    if name in known:
        return _with_policy(known[name], bad_data)
    if name == OF_SCRIPT:
        return ScriptData(name)  # type: ignore[return-value]  # it has nothing to load
    before, colon, rest = name.partition(":")
    if colon and before in known and hasattr(known[before], "variant"):
        found: DataSet | TextSet = known[before].variant(rest)  # type: ignore[union-attr]
        return _with_policy(found, bad_data)
    if colon and before in SCHEMES:
        answered: DataSet | TextSet = import_module(f"velodrome.data.{SCHEMES[before]}").data_set(rest, bad_data)
        return answered
    if is_function(name):
        return FunctionSet(name, bad_data)
    raise BadRequest(
        f"no data set {name!r}: {which_name(before, known, 'velodrome data list')}"
        + f", or name your own as {', '.join(f'{scheme}:PLACE' for scheme in SCHEMES)} or module:function"
    )


def _with_policy(found: DataSet | TextSet, bad_data: BadData) -> DataSet | TextSet:
    """The data set with that policy for bad examples; only images that are decoded here can be bad."""
    return replace(found, bad_data=bad_data) if isinstance(found, CachedImageSet) else found


def describe(name: str, *, validation: float = 0.1, bad_data: BadData = "fail") -> Description:
    """What is known without loading it: counts for that share of validation examples, shape, classes, licence."""
    return data_set(name, bad_data).describe(validation)


def implied_task(name: str, *, bad_data: BadData = "fail") -> str | None:
    """The task that a data set is for, if its targets show it without loading; None for images, and if it is wrong."""
    with suppress(VelodromeError, OSError):  # what is wrong is reported by those who use it
        found = data_set(name, bad_data)
        return found.implied_task() if isinstance(found, ArraySet) else None
    return None


def prepare(name: str, progress: Progress | None = None, *, bad_data: BadData = "fail") -> None:
    """Fetch the files of a data set, so that loading it does not wait for a network."""
    data_set(name, bad_data).prepare(progress)


def load(name: str, *, seed: int, validation: float, bad_data: BadData = "fail") -> ExampleSet:
    """The images, divided. Fetches what is missing; see `prepare`."""

    found = load_examples(name, seed=seed, validation=validation, bad_data=bad_data)
    if found.kind == "images":
        return found
    raise BadRequest(f"data set {name!r} is arrays and not images: choose a data set of images")


def load_examples(name: str, *, seed: int, validation: float, bad_data: BadData = "fail") -> ExampleSet:
    """The examples, divided: images with labels or arrays, as the data set has them."""
    found = data_set(name, bad_data)
    if isinstance(found, DataSet):
        return found.load(seed, validation)
    raise BadRequest(f"data set {name!r} is text, for a language model: choose a data set of images for this model")


def load_mapped(name: str, *, seed: int, validation: float, bad_data: BadData = "fail") -> ExampleSet:
    """As `load`, for a single sequential pass over every part: images can only be sliced."""
    found = data_set(name, bad_data)
    if isinstance(found, CachedImageSet):
        return found.load_mapped(seed, validation)
    return load(name, seed=seed, validation=validation, bad_data=bad_data)


def depends_on_seed(name: str) -> bool:
    """Whether the examples themselves may be others for another seed, and not only their division."""
    return isinstance(data_set(name), FunctionSet)


def files(name: str, *, bad_data: BadData = "fail") -> tuple[int, ...]:
    """Examples of each file that the training part lies in; none for data that does not lie in files."""
    found = data_set(name, bad_data)
    return found.files() if isinstance(found, FileSet) else ()


def load_files(name: str, numbers: Sequence[int], *, validation: float, bad_data: BadData = "fail") -> ExampleSet:
    """Only these files of the training part, and the whole of the others."""
    found = data_set(name, bad_data)
    if isinstance(found, FileSet):
        return found.load_files(numbers, validation)
    raise BadRequest(f"data set {name!r} does not lie in files: `velodrome data shard` makes some")


def load_text(name: str, *, bad_data: BadData = "fail") -> Text:
    """A text as numbers of words. Fetches what is missing; see `prepare`."""
    found = data_set(name, bad_data)
    if isinstance(found, TextSet):
        return found.load_text()
    raise BadRequest(f"data set {name!r} is images: a language model needs text, such as 'ptb'")


def is_here(name: str, *, bad_data: BadData = "fail") -> bool:
    """Whether loading a data set would fetch nothing."""
    found = data_set(name, bad_data)
    return not isinstance(found, CachedSet) or found.is_here()


def prepare_own(name: str, progress: Progress | None = None, *, bad_data: BadData = "fail") -> None:
    """Prepare the user's own data on this machine, so that all that is wrong with it is known before a start."""
    scheme = name.partition(":")[0]
    if scheme in ("path", "text") or (scheme == "shards" and is_here(name)) or is_function(name):
        prepare(name, progress, bad_data=bad_data)


def verify(name: str, *, bad_data: BadData = "fail") -> Sequence[Checked]:
    """What is stored of a data set, file by file, compared with its checksums."""
    found = data_set(name, bad_data)
    if isinstance(found, CachedSet):
        return found.verify()
    raise BadRequest(f"data set {name!r} cannot be verified: nothing is stored of what a function returns")


def forget_damaged(name: str, *, bad_data: BadData = "fail") -> None:
    """Remove damaged decoded data of a data set, so that `prepare` rebuilds it."""
    found = data_set(name, bad_data)
    if hasattr(found, "forget_damaged"):
        found.forget_damaged()
    elif hasattr(found, "forget") and any(checked.state == "damaged" for checked in verify(name, bad_data=bad_data)):
        found.forget()
