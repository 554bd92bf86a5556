"""Finds data sets by name. A new data set, or a new format, is a module of `velodrome.data.sources`, or one that
another package offers as an entry point of the group `velodrome.sources`.

Such a module may have `DATA_SETS`, sources with a name; `SCHEMES`, functions `(place, bad_data)` that return the source
of `scheme:place`; and `FORMATS` of what `path:` names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

from velodrome.catalog.base import SCRIPT_LABEL as OF_SCRIPT
from velodrome.catalog.registry import Plugins
from velodrome.data import sources
from velodrome.data.base import BadData, Checked, Progress, naming, quiet
from velodrome.data.examples import ExampleSet, Text
from velodrome.data.own.functions import is_function
from velodrome.data.shards import data_set as data_set_of_shards
from velodrome.data.source import Description, PathFormat, Source, check_exists, check_options, split_options
from velodrome.data.sources.functions import FunctionSet, ScriptData
from velodrome.errors import BadRequest, VelodromeError, which_name

#: What lists of data sets begin with.
_FIRST = ("digits", "mnist", "fashion-mnist", "kmnist", "cifar-10", "fruits", "fashion-products", "diabetes",
          "breast-cancer", "ptb")
#: Modules of other packages.
_PLUGINS = Plugins("velodrome.sources", "source of data", ModuleType, {})
#: The scheme of files and folders.
_PATH = "path"


class _Kinds:
    """What some modules know: data sets by name, schemes, and formats of files and folders."""

    def __init__(self, modules: Sequence[ModuleType]) -> None:
        self.data_sets: dict[str, Source] = {
            source.name: source for module in modules for source in vars(module).get("DATA_SETS", ())
        }
        self.schemes: dict[str, Callable[[str, BadData], Source]] = {
            scheme: make for module in modules for scheme, make in vars(module).get("SCHEMES", {}).items()
        }
        self._formats: list[PathFormat] = [each for module in modules for each in vars(module).get("FORMATS", ())]

    def source(self, name: str, bad_data: BadData) -> Source | None:
        before, colon, rest = name.partition(":")
        if name in self.data_sets:
            return self.data_sets[name].with_bad_data(bad_data)
        if colon and before in self.data_sets and (variant := self.data_sets[before].variant(rest)):
            return variant.with_bad_data(bad_data)
        if colon and before in self.schemes:
            return self.schemes[before](rest, bad_data)
        return self._at_path(name, rest, bad_data) if colon and before == _PATH else None

    def _at_path(self, name: str, rest: str, bad_data: BadData) -> Source | None:
        path, options = split_options(rest)
        check_exists(path)
        for each in self._formats:
            if each.takes(path, options):
                check_options(options, each.options)
                return each.source(name, path, options, bad_data)
        return None


@cache
def _ours() -> _Kinds:
    modules = [import_module(f"{sources.__name__}.{module.name}") for module in iter_modules(sources.__path__)]
    return _Kinds([*modules, data_set_of_shards])


@cache
def _added() -> _Kinds:
    """Those of other packages. Looking for them takes time, so they are asked last."""
    return _Kinds(_PLUGINS.all())


def _data_sets() -> dict[str, Source]:
    every = {**_ours().data_sets, **_added().data_sets}
    return {name: every[name] for name in (*_FIRST, *(name for name in every if name not in _FIRST))}


def names() -> list[str]:
    return list(_data_sets())


def schemes() -> list[str]:
    """What comes before the colon in names of the user's own data."""
    return [_PATH, *sorted(_ours().schemes, reverse=True), *_added().schemes]


def data_set(name: str, bad_data: BadData = "fail") -> Source:
    """The data set of a name: one of the catalogue, `name:variant` of one, `scheme:place`, or `module:function`."""
    if name == OF_SCRIPT:
        return ScriptData(name)
    with naming(name):
        if source := _ours().source(name, bad_data) or _added().source(name, bad_data):
            return source
    before, colon, _ = name.partition(":")
    if colon and before == _PATH:
        raise BadRequest(
            f"--dataset {name!r}: give a folder with a folder a class, a .zip of it, a .csv or .parquet table, or an "
            ".npz file"
        )
    if is_function(name):
        return FunctionSet(name, bad_data)
    raise BadRequest(
        f"no data set {name!r}: {which_name(before, _data_sets(), 'velodrome data list')}"
        + f", or name your own as {', '.join(f'{scheme}:PLACE' for scheme in schemes())} or module:function"
    )


def describe(name: str, *, validation: float = 0.1, bad_data: BadData = "fail") -> Description:
    """What is known without loading it: counts for that share of validation examples, shape, classes, licence."""
    return data_set(name, bad_data).describe(validation)


def implied_task(name: str, *, bad_data: BadData = "fail") -> str | None:
    """The task that a data set is for, if its targets show it without loading; None for images, and if it is wrong."""
    with suppress(VelodromeError, OSError):  # what is wrong is reported by those who use it
        return data_set(name, bad_data).implied_task()
    return None


def prepare(name: str, progress: Progress | None = None, *, bad_data: BadData = "fail") -> None:
    """Fetch the files of a data set, so that loading it does not wait for a network."""
    data_set(name, bad_data).prepare(progress or quiet)


def load(name: str, *, seed: int, validation: float, bad_data: BadData = "fail") -> ExampleSet:
    """The images, divided. Fetches what is missing; see `prepare`."""
    return _images(name, load_examples(name, seed=seed, validation=validation, bad_data=bad_data))


def _images(name: str, examples: ExampleSet) -> ExampleSet:
    if examples.kind == "images":
        return examples
    raise BadRequest(f"data set {name!r} is arrays and not images: choose a data set of images")


def load_examples(name: str, *, seed: int, validation: float, bad_data: BadData = "fail") -> ExampleSet:
    """The examples, divided: images with labels or arrays, as the data set has them."""
    return data_set(name, bad_data).load(seed, validation)


def load_mapped(name: str, *, seed: int, validation: float, bad_data: BadData = "fail") -> ExampleSet:
    """As `load`, for a single sequential pass over every part: images can only be sliced."""
    return _images(name, data_set(name, bad_data).load_mapped(seed, validation))


def load_text(name: str, *, bad_data: BadData = "fail") -> Text:
    """A text as numbers of words. Fetches what is missing; see `prepare`."""
    return data_set(name, bad_data).load_text()


def is_here(name: str, *, bad_data: BadData = "fail") -> bool:
    """Whether loading a data set would fetch nothing."""
    return data_set(name, bad_data).is_here()


def prepare_own(name: str, progress: Progress | None = None, *, bad_data: BadData = "fail") -> None:
    """Prepare the user's own data on this machine, so that all that is wrong with it is known before a start."""
    scheme = name.partition(":")[0]
    if scheme in ("path", "text") or (scheme == "shards" and is_here(name)) or is_function(name):
        prepare(name, progress, bad_data=bad_data)


def verify(name: str, *, bad_data: BadData = "fail") -> Sequence[Checked]:
    """What is stored of a data set, file by file, compared with its checksums."""
    return data_set(name, bad_data).verify()
