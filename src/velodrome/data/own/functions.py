"""Functions of the user's: how `module:function` is found and imported, and functions that change training examples.

A module is looked for in the current folder and on PYTHONPATH. Functions of Python's standard library are refused where
the user's own one is expected: `os:system` is a mistake.

A transform `module:function(example, rng)` augments. Its generator is seeded by seed, epoch and number of the example:
what is seen does not depend on who trains on it.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import sysconfig
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.machinery import PathFinder
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, TypeAlias

from velodrome.data.base import NDArray, np
from velodrome.data.examples import DerivedPart, ExampleSet, Named
from velodrome.errors import BadRequest, RunFailed, UserCodeError, VelodromeError, raised


def _is_standard(module: str) -> bool:
    """Whether a module is Python's; a file of that name in the current folder or on PYTHONPATH is the user's."""
    top = module.partition(".")[0]
    if top not in sys.stdlib_module_names:
        return False
    return PathFinder.find_spec(top, users_roots()) is None


def refuse_standard(option: str, name: str, module: str) -> None:
    """Refuse `module:function` if the module is Python's; nothing is imported."""
    if _is_standard(module):
        raise BadRequest(
            f"{option} {name!r}: {module!r} is a module of Python's standard library; name a function of your own"
        )


def refuse_standard_function(option: str, name: str, function: object) -> None:
    """Refuse a function that the user's module only imported from the standard library."""
    if isinstance(function, FunctionType | BuiltinFunctionType | type):
        refuse_standard(option, name, function.__module__ or "builtins")


def is_function(name: str) -> bool:
    """Whether a name has the form `module:function`."""
    module, colon, function = name.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), *function.split(".")))


def no_module(option: str, name: str, module: str) -> BadRequest:
    return BadRequest(f"{option} {name!r}: no module named {module!r} in {Path.cwd()} or on PYTHONPATH")


def users_roots() -> list[str]:
    """Where modules of the user's are looked for first: the current folder and PYTHONPATH."""
    return [str(Path.cwd()), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]


def file_of_module(module: str, path: list[str]) -> Path | None:
    """The file, or the folder of a package without one, that a module of a path would be imported from; nothing is
    imported."""
    spec, places = None, path
    names = module.split(".")
    for count in range(1, len(names) + 1):
        spec = PathFinder.find_spec(".".join(names[:count]), places)
        if spec is None:
            return None
        places = list(spec.submodule_search_locations or ())
    assert spec is not None
    return Path(spec.origin) if spec.origin else Path(places[0]) if places else None


def is_installed(file: Path) -> bool:
    """Whether a file is of Python or of an installed package, and not a person's."""
    python = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")]
    return any(part in ("site-packages", "dist-packages") for part in file.parts) or any(
        file.resolve().is_relative_to(folder) for folder in python
    )


def imported(option: str, name: str, what: str = "function") -> Callable[..., Any]:
    """Import what `module:name` says, and refuse what cannot be called. Errors inside the user's module pass through.

    The current folder is searched from now on, and not earlier: in a process that runs no code of the user's, no file
    there takes the place of a module that a library imports.
    """
    module, _, function = name.partition(":")
    refuse_standard(option, name, module)
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        member: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and (module == error.name or module.startswith(f"{error.name}.")):
            raise no_module(option, name, error.name) from None
        raise
    _refuse_another(option, name, member)
    for part in function.split("."):
        if not hasattr(member, part):
            raise BadRequest(f"{option} {name!r}: module {module!r} has no {part!r}")
        member = getattr(member, part)
    if not callable(member):
        raise BadRequest(f"{option} {name!r}: {function!r} is not a {what}")
    refuse_standard_function(option, name, member)
    called: Callable[..., Any] = member
    return called


def _refuse_another(option: str, name: str, module: ModuleType) -> None:
    """Refuse a module of a library that was imported before, where the user has a file of that name."""
    file, own = getattr(module, "__file__", None), file_of_module(module.__name__, users_roots())
    if own is not None and own.is_file() and file is not None and is_installed(Path(file)) and not own.samefile(file):
        raise BadRequest(f"{option} {name!r}: {str(own)!r} has the name of a module that is imported already, from "
                         f"{file!r}: rename your file")


def users_function(option: str, name: str, arguments: int = 0) -> Callable[..., Any]:
    """Import the function of an option, which will be called with so many arguments."""
    called = imported(option, name)
    try:
        inspect.signature(called).bind(*[None] * arguments)
    except ValueError:
        pass  # nothing is known of its arguments
    except TypeError as error:
        how = f"with {arguments} arguments" if arguments else "without arguments"
        function = name.partition(":")[2]
        raise BadRequest(f"{option} {name!r}: {function!r} is called {how}: {error}") from None
    return called


Transform: TypeAlias = "Callable[[dict[str, Any], np.random.Generator], Any]"
#: Threads of a process that transform examples; numpy works on several at once, plain Python does not.
_MOST_THREADS = 4


def rng_of(key: tuple[int, ...], epoch: int, index: int) -> np.random.Generator:
    """The generator of one example in one epoch."""
    return np.random.Generator(np.random.PCG64([*key, epoch, index]))


@dataclass(frozen=True)
class TransformedPart(DerivedPart):
    """Examples that are changed when they are asked for in training; in an evaluation they are as they were."""

    name: str = ""
    function: Transform = lambda example, rng: example
    key: tuple[int, ...] = ()

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        count = min(_MOST_THREADS, len(os.sched_getaffinity(0)))
        return ThreadPoolExecutor(count, thread_name_prefix="transform")

    def gather(self, indices: NDArray[np.int64], epoch: int = 0) -> tuple[Named, Named]:
        inputs, targets = self.part.gather(indices, epoch)
        if epoch == 0:
            return inputs, targets
        every = {**inputs, **targets}

        def change(rows: range) -> None:
            for row in rows:
                example = {column: array[row] for column, array in every.items()}
                self._change(example, every, row, int(indices[row]), epoch)

        pool = self._threads
        pieces = [range(first, len(indices), pool._max_workers) for first in range(pool._max_workers)]
        for done in [pool.submit(change, piece) for piece in pieces]:
            done.result()
        return inputs, targets

    def _change(
        self, example: dict[str, Any], every: dict[str, NDArray[Any]], row: int, index: int, epoch: int
    ) -> None:
        """Pass one example to the function and put what it returns in its place."""
        try:
            changed = self.function(example, rng_of(self.key, epoch, index))
        except VelodromeError:
            raise
        except Exception as error:
            raise UserCodeError(
                f"--transform {self.name!r} failed on example {index} in epoch {epoch}: {raised(error)}"
            ) from error
        changed = example if changed is None else changed
        if not isinstance(changed, dict) or changed.keys() != every.keys():
            what = f"a dictionary of {', '.join(map(str, changed))}" if isinstance(changed, dict) else (
                type(changed).__name__
            )
            raise RunFailed(
                f"--transform {self.name!r} returned {what}, but must return the example, a dictionary of "
                f"{', '.join(every)}"
            )
        for column, array in every.items():
            value = np.asarray(changed[column])
            if value.shape != array.shape[1:]:
                raise RunFailed(
                    f"--transform {self.name!r} returned {column!r} of shape {value.shape} for example {index}, but "
                    f"it must stay {array.shape[1:]}"
                )
            if not np.can_cast(value.dtype, array.dtype, "same_kind"):
                raise RunFailed(
                    f"--transform {self.name!r} returned {column!r} as {value.dtype}, but it must stay {array.dtype}: "
                    "convert it with astype()"
                )
            array[row] = value


def with_transform(name: str, data: ExampleSet, key: tuple[int, ...]) -> ExampleSet:
    """The data with the user's transform of its training examples; `key` seeds it, with epoch and number."""
    function: Transform = users_function("--transform", name, 2)
    # The arrays as they were stay at hand, for statistics of the training part.
    part = TransformedPart(data.train.inputs, data.train.targets, data.train, name, function, key)
    return replace(data, train=part)
