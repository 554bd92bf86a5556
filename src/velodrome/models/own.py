"""The user's own model: found by `module:function`, and checked against the data before training. No framework here."""

from __future__ import annotations

import importlib
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.errors import BadRequest, VelodromeError

_PACKAGE = str(Path(__file__).resolve().parents[1])
_LIBRARIES = tuple({_PACKAGE, str(Path(np.__file__).resolve().parents[1]), str(Path(re.__file__).resolve().parents[1])})
_QUOTED_FILE = re.compile(r'\s+File "([^"]+)"')
_SHAPE_WORDS = re.compile(r"shape|size|dimension|negative|rank \d|incompatible|expected input", re.IGNORECASE)


def split_name(model: str) -> tuple[str, str]:
    """Module and function of `module:function`."""
    module, _, function = model.partition(":")
    parts = [*module.split("."), *function.split(".")]
    if not all(part.isidentifier() for part in parts):
        raise BadRequest(f"--model {model!r}: write your own model as module:function, for example my_nets:build")
    return module, function


def builder_of(model: str) -> Callable[..., Any]:
    """Import the user's function. Errors inside the user's module pass through as they are."""
    module_name, function = split_name(model)
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise BadRequest(f"--model {model!r}: no module named {error.name!r} in {here} or on PYTHONPATH") from None
        raise
    for part in function.split("."):
        if not hasattr(found, part):
            raise BadRequest(f"--model {model!r}: module {module_name!r} has no {part!r}")
        found = getattr(found, part)
    if not callable(found):
        raise BadRequest(f"--model {model!r}: {function!r} is not a function")
    builder: Callable[..., Any] = found
    return builder


def is_users(file: str) -> bool:
    """Whether a file of code is the user's: neither ours, nor a library's, nor Python's."""
    return not file.startswith("<") and not str(Path(file).resolve()).startswith(_LIBRARIES)


def users_traceback(error: BaseException) -> str | None:
    """The traceback from the first line of the user's code on, or None if no such line took part."""
    frame: TracebackType | None = error.__traceback__
    while frame is not None and not is_users(frame.tb_frame.f_code.co_filename):
        frame = frame.tb_next
    if frame is None:
        return None
    return "".join(traceback.format_exception(type(error), error, frame, chain=False))


def quoted_traceback(message: str) -> str | None:
    """The same where the user's code ran inside a framework's graph, which only quotes what happened there."""
    _, found, quoted = message.rpartition("Traceback (most recent call last):\n")
    lines = [line for line in quoted.splitlines() if line.strip()]
    own = [index for index, line in enumerate(lines) if (file := _QUOTED_FILE.match(line)) and is_users(file[1])]
    end = [index for index, line in enumerate(lines) if not line[0].isspace()]
    return "\n".join([found.rstrip(), *lines[own[0] : end[0] + 1]]) if own and end and own[0] < end[0] else None


def _raised_in_library(error: BaseException) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and not is_users(frames[-1].filename)


def _raised_by_calling(error: BaseException) -> bool:
    """Whether the call itself failed, so that no line of what was called took part."""
    return traceback.extract_tb(error.__traceback__)[-1].filename.startswith(_PACKAGE)


@contextmanager
def fits_data(model: str, shape: tuple[int, ...], *, building: bool) -> Iterator[None]:
    """Around building or first calling a model: a framework that cannot take the shape becomes a refusal.

    An error that the user's own lines raise passes through, and so does one that does not speak of shapes.
    """
    try:
        yield
    except (VelodromeError, OSError, ImportError, AttributeError, NameError, KeyError):
        raise
    except Exception as error:
        text = str(error).strip() or type(error).__name__
        if building and isinstance(error, TypeError) and _raised_by_calling(error):
            raise BadRequest(
                f"--model {model!r}: {text}; the function is called with input_shape, classes and what --model-arg says"
            ) from None
        if not _raised_in_library(error) or (building and not _SHAPE_WORDS.search(text)):
            raise
        first = text.splitlines()[0]
        refusal = BadRequest(f"model {model!r} cannot take images of shape {shape}: {first}")
        raise refusal.with_traceback(error.__traceback__) from error


def check_outputs(model: str, outputs: tuple[int, ...], examples: int, classes: int) -> None:
    """Refuse a model whose answer is not one number per example and class."""
    if outputs != (examples, classes):
        raise BadRequest(
            f"model {model!r} answers with shape {outputs} for {examples} examples; {classes} classes need "
            f"{(examples, classes)}"
        )


def are_probabilities(outputs: NDArray[np.floating[Any]]) -> bool:
    """Whether outputs went through a softmax already: not negative, and every row adds up to one."""
    return bool(np.all(outputs >= 0) and np.allclose(outputs.sum(axis=1), 1.0, atol=1e-3))
