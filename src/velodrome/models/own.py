"""The user's own model: found by `module:function`, and checked against the data before training. No framework here."""

from __future__ import annotations

import dis
import inspect
import linecache
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import numpy as np

from velodrome.catalog.models import is_own
from velodrome.data.own.functions import imported
from velodrome.errors import BadRequest, UsersCodeFailed, VelodromeError, headline
from velodrome.job.job import Job

_PACKAGE = str(Path(__file__).resolve().parents[1])
_LIBRARIES = tuple({_PACKAGE, str(Path(np.__file__).resolve().parents[1]), str(Path(re.__file__).resolve().parents[1])})
_QUOTED_FILE = re.compile(r'\s+File "([^"]+)"')
_QUOTED_FRAME = re.compile(r'  File "([^"]+)", line (\d+), in \S+')
_SHAPE_WORDS = re.compile(r"shape|size|dimension|negative|rank \d|incompatible|expected input", re.IGNORECASE)
#: How frameworks put it that a layer for floats was given integers.
_WANTED_FLOATS = re.compile(r"(got|found) Long|expected to be an? int\d+ tensor but is an? (float|double|half)")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_NOISE = re.compile(rf"{_COLOURS.pattern}|\{{\{{.*?\}}\}}|\s*\[Op:\w+\]( name:\s*)?")
#: Characters of a reason beyond which only its first sentence is quoted.
_LONG = 200
#: The engine of each framework's models, by the package that their classes are from.
_ENGINES = {"keras": "tensorflow", "tensorflow": "tensorflow", "torch": "torch", "mxnet": "mxnet"}
_MODELS = {"tensorflow": "a Keras model", "torch": "a torch.nn.Module", "mxnet": "a Gluon block"}


def own_names(job: Job) -> dict[str, str]:
    """What a job names of the user's own as `module:name`, by field: model, task, optimizer, transform."""
    if job.script is not None:
        return {}
    named = {"model": job.model, "task": job.task, "optimizer": job.optimizer, "transform": job.transform}
    return {field: name for field, name in named.items() if name is not None and is_own(name)}


def split_name(name: str, option: str = "--model") -> tuple[str, str]:
    """Module and function, or class, of `module:name`."""
    module, _, function = name.partition(":")
    parts = [*module.split("."), *function.split(".")]
    if not all(part.isidentifier() for part in parts):
        example = "module:Class, for example my_tasks:Quantile" if option == "--task" else (
            "module:function, for example my_nets:build"
        )
        raise BadRequest(f"{option} {name!r}: write your own {option[2:]} as {example}")
    return module, function


def builder_of(name: str, option: str = "--model") -> Callable[..., Any]:
    """Import the user's function or class. Errors inside the user's module pass through as they are."""
    split_name(name, option)
    return imported(option, name, "class" if option == "--task" else "function")


def make_task(name: str) -> Any:
    """An object of the user's class `module:Class`, which is made without arguments."""
    made = builder_of(name, "--task")
    try:
        inspect.signature(made).bind()
    except ValueError:
        pass  # nothing is known of its arguments
    except TypeError as error:
        raise BadRequest(f"--task {name!r}: the class is called without arguments: {error}") from None
    return made()


def building_arguments(job: Job, input_shape: object, outputs: object, *, classifies_images: bool) -> dict[str, Any]:
    """What the user's function is called with to build the model of a job; a model of the zoo takes nothing."""
    if not is_own(job.model):
        if job.model_args:
            name = next(iter(job.model_args))
            raise BadRequest(f"--model-arg {name!r}: model {job.model!r} of the zoo takes no arguments")
        return {}
    if classifies_images:
        return {"input_shape": input_shape, "classes": outputs, **job.model_args}
    return arguments_for(builder_of(job.model), input_shape, outputs, job.model_args)


def arguments_for(
    builder: Callable[..., Any], input_shape: object, outputs: object, more: Mapping[str, Any]
) -> dict[str, Any]:
    """What the user's function is called with: those of `input_shape`, `outputs` and `classes` that it names.

    `classes` is another name for `outputs`. A function that takes any keyword gets `input_shape` and `outputs`.
    """
    given = {"input_shape": input_shape, "outputs": outputs, "classes": outputs}
    try:
        named = inspect.signature(builder).parameters.values()
    except ValueError:  # nothing is known of its arguments
        return {"input_shape": input_shape, "outputs": outputs, **more}
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = [parameter.name for parameter in named if parameter.kind in by_name]
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in named):
        names = [*names, "input_shape", *([] if "classes" in names else ["outputs"])]
    return {**{name: given[name] for name in given if name in names}, **more}


def is_users(file: str) -> bool:
    """Whether a file of code is the user's: neither ours, nor a library's, nor Python's."""
    return not file.startswith("<") and not str(Path(file).resolve()).startswith(_LIBRARIES)


def users_traceback(error: BaseException) -> str | None:
    """The traceback from the first line of the user's code on, or None if no such line took part."""
    if isinstance(error, SyntaxError) and error.filename and is_users(error.filename):
        return "".join(traceback.format_exception_only(error))
    frame: TracebackType | None = error.__traceback__
    while frame is not None and not is_users(frame.tb_frame.f_code.co_filename):
        frame = frame.tb_next
    if frame is None:
        return None
    return _COLOURS.sub("", "".join(traceback.format_exception(type(error), error, frame, chain=False)))


def quoted_traceback(message: str) -> str | None:
    """The same where the user's code ran inside a framework's graph, which only quotes what happened there."""
    _, title, quoted = message.rpartition("Traceback (most recent call last):\n")
    lines = [line for line in quoted.splitlines() if line.strip()]
    own = [index for index, line in enumerate(lines) if (file := _QUOTED_FILE.match(line)) and is_users(file[1])]
    end = [index for index, line in enumerate(lines) if not line[0].isspace()]
    return "\n".join([title.rstrip(), *lines[own[0] : end[0] + 1]]) if own and end and own[0] < end[0] else None


def graph_traceback(message: str) -> str | None:
    """The lines of the user's that put an operation into a graph of TensorFlow, which failed when the graph ran."""
    _, title, quoted = message.partition("defined at (most recent call last):\n")
    frames = (_QUOTED_FRAME.match(line) for line in quoted.partition("Detected at node")[0].splitlines())
    own = [frame for frame in frames if frame is not None and is_users(frame[1])]
    if not title or not own:
        return None
    lines = [f"{frame[0]}\n    {linecache.getline(frame[1], int(frame[2])).strip()}".rstrip() for frame in own]
    return "\n".join(["Traceback (most recent call last):", *lines, headline(message)])


def raised_in_library(error: BaseException) -> bool:
    """Whether a library raised: in code of its own or, where its frames are missing, about shapes.

    A compiled function has no frames, and Keras leaves its own out.
    """
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None or not is_users(last.tb_frame.f_code.co_filename):
        return last is not None
    raises = dis.opname[last.tb_frame.f_code.co_code[last.tb_lasti]] in ("RAISE_VARARGS", "RERAISE")
    return not raises and bool(_SHAPE_WORDS.search(str(error)))


def _raised_by_calling(error: BaseException) -> bool:
    """Whether the call itself failed, so that no line of what was called took part."""
    return traceback.extract_tb(error.__traceback__)[-1].filename.startswith(_PACKAGE)


def _frames(error: BaseException) -> Iterator[FrameType]:
    entry: TracebackType | None = error.__traceback__
    while entry is not None:
        yield entry.tb_frame
        entry = entry.tb_next


def _users_line(error: BaseException) -> str:
    """Where the user's code was when a library raised, as the end of a sentence."""
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users(frame.filename)]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""


def reason_of(error: BaseException) -> str:
    """What a framework has to say, in one line: without its titles, its colours and the names of its graph nodes."""
    lines = [_NOISE.sub("", line).strip() for line in str(error).splitlines()]
    plain = [line for line in lines if line and not line.startswith("Exception encountered when calling")]
    kind = type(error).__name__
    reason = plain[0].rstrip(".") if plain else kind
    if len(reason) > _LONG:  # what follows is advice for other situations
        reason = reason.partition(". ")[0]
    if isinstance(error, KeyError) and plain:  # its message is the key alone
        reason = f"{kind}: {reason}"
    wanted = "; whole numbers of the data are fed as integers: make floats of those that are no indices"
    return reason + _users_line(error) + (wanted if _WANTED_FLOATS.search(str(error)) else "")


def _other_engine(error: BaseException, engine: str) -> str | None:
    """The engine whose framework took part in an error, if it is not the job's."""
    packages = (str(frame.f_globals.get("__name__")).partition(".")[0] for frame in _frames(error))
    engines = {_ENGINES[package] for package in packages if package in _ENGINES}
    return next(iter(engines)) if len(engines) == 1 and engine and engine not in engines else None


def wrong_framework(model: str, built: object, engine: str) -> BadRequest:
    """The refusal of what the user's function returned: not a model of the job's engine."""
    packages = [kind.__module__.partition(".")[0] for kind in type(built).__mro__]
    other = next((_ENGINES[package] for package in packages if package in _ENGINES), None)
    name, needed = type(built).__name__, _MODELS[engine]
    if "tf_keras" in packages:
        return BadRequest(f"model {model!r} returned a model of tf_keras ({name!r}): --engine {engine} needs Keras 3")
    if other and other != engine:
        return BadRequest(
            f"model {model!r} returned {_MODELS[other]} ({name!r}), but --engine {engine} needs {needed}: choose "
            f"--engine {other}"
        )
    return BadRequest(f"model {model!r} returned {name!r}: --engine {engine} needs {needed}")


@contextmanager
def fits_data(
    model: str, shape: Any, *, building: bool, engine: str = "", batch: int | None = None,
    training: bool = False,
) -> Iterator[None]:
    """Around building or first calling a model: a framework that cannot take the shape becomes a refusal.

    An error that the user's own lines raise passes through, and so does one that does not speak of shapes.
    """
    try:
        yield
    except (VelodromeError, OSError, ImportError, AttributeError, NameError, KeyError):
        raise
    except Exception as error:
        if building and isinstance(error, TypeError) and _raised_by_calling(error):
            called = "the function is called with input_shape, classes and what --model-arg says"
            raise BadRequest(f"--model {model!r}: {error}; {called}") from None
        if not raised_in_library(error):
            raise
        if other := _other_engine(error, engine):
            raise BadRequest(
                f"model {model!r} is {_MODELS[other]}, but --engine {engine} needs {_MODELS[engine]}: choose --engine "
                f"{other}"
            ) from error
        if building and not _SHAPE_WORDS.search(str(error)):
            raise
        together = "" if batch is None else f" in a batch of {batch}"
        cannot = "cannot be trained on" if training else "cannot take"
        what = "images" if isinstance(shape, tuple) and len(shape) == 3 else "inputs"
        refusal = f"model {model!r} {cannot} {what} of shape {shape}{together}: {reason_of(error)}"
        raise UsersCodeFailed(refusal) from error
