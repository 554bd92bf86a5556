"""What can go wrong, as sentences to a person. Each kind carries the exit code of the command."""

from __future__ import annotations

import re
from collections.abc import Sequence

#: Colours, and names of nodes in a graph.
_NOISE = re.compile(r"\x1b\[[0-9;]*m|\{\{.*?\}\} ?")
_TITLE = re.compile(
    r"\(most recent call last\):$|^<stack traces unavailable>$|^Exception encountered when calling |"
    r"root error\(s\) found\.$"
)
_FIRST_OF_SEVERAL = re.compile(r"\s+\(0\) (?:[A-Z_]+:)?(.*)")
_PYTHON_ERROR = re.compile(r"\b[A-Z]\w*(Error|Exception|Exit|Interrupt|Iteration)\b.*")


class VelodromeError(Exception):
    """Anything that Velodrome itself reports; the message is one clear sentence with the way out."""

    exit_code = 1


class BadRequest(VelodromeError):
    """The user asked for something that cannot be done: refused before anything starts."""

    exit_code = 2


class Unavailable(BadRequest):
    """This machine lacks what a job needs: a package, a device, memory. Each reason is a sentence with the way out."""

    def __init__(self, message: str, reasons: Sequence[str]) -> None:
        super().__init__(message)
        self.reasons = tuple(reasons)


class UsersCodeFailed(BadRequest):
    """Code of the user's raised when it was tried before training: its traceback is reported beside the sentence."""


class RunFailed(VelodromeError):
    """A run started and did not end well."""


class FolderGone(RunFailed):
    """The folder that a run or race writes to was removed, renamed or replaced: nothing more can be recorded."""

    def __init__(self, what: str, path: object) -> None:
        super().__init__(
            f"{what} ended because its folder {str(path)!r} was removed, renamed or replaced meanwhile: put it back "
            "and resume, or start again"
        )


class ScriptFailed(RunFailed):
    """A script of the user's ended with an exit code that is not 0."""


class UserCodeError(RunFailed):
    """Code of the user's raised while examples were read: `__cause__` is what it raised, traceback and all."""


class PeerLost(VelodromeError):
    """A process lost another one it was training with: never the cause, always a consequence."""


class PortTaken(VelodromeError):
    """Somebody else listens on a port of the plan: worth another try with another port."""


def headline(text: str) -> str:
    """The line of a framework's long message that says what happened.

    TensorFlow puts a title and the place in the graph before it, with the frames of that place indented; Keras puts a
    title before it; and where several things went wrong at once, TensorFlow numbers them.
    """
    lines = [line.rstrip() for line in _NOISE.sub("", text).splitlines() if line.strip()]
    if first := next(filter(None, map(_FIRST_OF_SEVERAL.match, lines)), None):
        return first[1].strip()
    rest = lines[1:] if len(lines) > 1 and lines[0].endswith(":") else lines
    plain = [line for line in rest if not line[0].isspace() and not _TITLE.search(line)]
    return (plain or lines or [""])[0].strip()


def raised(error: BaseException) -> str:
    """What code of the user's raised, in one line: `KeyError: 'label'`.

    Where Python raised inside a pipeline of TensorFlow, an error of TensorFlow quotes that.
    """
    first, kind = headline(str(error)), type(error)
    if kind.__module__.startswith("tensorflow.") and (quoted := _PYTHON_ERROR.search(first)):
        return quoted[0]
    return f"{kind.__name__}: {first}" if first else kind.__name__
