"""What can go wrong, as sentences to a person; each kind carries the exit code of the command.

Text from outside (names of files, classes and runs, words of a text, messages of other programs) is made fit to print
here, too: a terminal acts on control characters and a page on invisible ones, so they are escaped, and nothing prints
megabytes.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Sequence

#: Colours, and names of nodes in a graph.
_NOISE = re.compile(r"\x1b\[[0-9;]*m|\{\{.*?\}\} ?")
_TITLE = re.compile(
    r"\(most recent call last\):$|^<stack traces unavailable>$|^Exception encountered when calling |"
    r"root error\(s\) found\.$"
)
_FIRST_OF_SEVERAL = re.compile(r"\s+\(0\) (?:[A-Z_]+:)?(.*)")
_PYTHON_ERROR = re.compile(r"\b[A-Z]\w*(Error|Exception|Exit|Interrupt|Iteration)\b.*")
#: What other tools call a thing, without punctuation, and the names it may have here.
_SYNONYMS = {
    # engines
    "tf": "tensorflow", "keras": "tensorflow", "huggingface": "accelerate", "lightning": "fabric", "flax": "jax",
    "pytorchlightning": "fabric", "gluon": "mxnet", "horovodrun": "horovod train",
    # strategies
    "distributeddataparallel": "ddp", "dataparallel": "ddp data-parallel", "torchrun": "ddp train", "zero": "zero1",
    "ps": "parameter-server", "fullyshardeddataparallel": "fsdp", "mwms": "multi-worker-mirrored",
    # models and data sets
    "cnn": "lenet5 fruit-cnn", "transformer": "gpt-mini", "gpt2": "gpt-mini", "rnn": "lstm-small",
    "vgg16": "vgg-small", "penntreebank": "ptb",
    # commands
    "fetch": "prepare data", "download": "prepare data", "delete": "rm", "remove": "rm", "ls": "list runs",
    "info": "show doctor", "results": "runs report", "compare": "runs recommend", "logs": "runs", "version": "doctor",
    "fit": "train", "run": "train runs", "start": "train", "launch": "train", "mpirun": "train", "benchmark": "race",
    "dashboard": "ui", "web": "ui", "validate": "check", "init": "new", "install": "engines",
    # fields
    "lr": "learning_rate", "batch": "batch_size", "processes": "workers", "np": "workers", "nproc": "workers",
    "gpus": "workers", "hosts": "on", "nodes": "on", "network": "model", "data": "dataset", "precision": "dtype",
    "output": "out", "repetitions": "repeat", "varies": "vary",
}
_MOST_SUGGESTIONS = 3
#: Names that one line can list.
_MOST_LISTED = 12


def which_name(given: str, known: Iterable[str], listed_by: str | None = None) -> str:
    """How to fix an unknown name, as the end of a sentence: ``did you mean 'torch'? `velodrome engines` lists all``.

    Where nothing is similar, it names all of them, or the command that lists them.
    """
    names = list(known)
    if similar := [f"{name!r}" for name in similar_names(given, names)]:
        *before, last = similar
        meant = f"{', '.join(before)} or {last}" if before else last
        return f"did you mean {meant}?" + (f" `{listed_by}` lists all" if listed_by else "")
    if listed_by and len(names) > _MOST_LISTED:
        return f"`{listed_by}` lists all"
    return f"choose one of {', '.join(names)}"


def similar_names(given: str, known: Iterable[str]) -> list[str]:
    """The names that a wrong one was probably meant to be, the most likely first; at most three."""
    from difflib import get_close_matches

    plain = {_plain(name): name for name in known}
    word = _plain(given)
    if word in plain:
        return [plain[word]]
    if same_words := [name for name in plain.values() if _words(name) == _words(given)]:
        return same_words
    if meant := [name for name in _SYNONYMS.get(word, "").split() if _plain(name) in plain]:
        return [plain[_plain(name)] for name in meant]
    parts = [name for name in plain if len(word) > 2 and (word in name or (len(name) > 2 and name in word))]
    cutoff = 0.65 if len(word) < 5 else 0.7  # one wrong letter of three leaves two thirds
    close = get_close_matches(word, plain, _MOST_SUGGESTIONS, cutoff=cutoff)
    return [plain[name] for name in dict.fromkeys([*close, *parts])][:_MOST_SUGGESTIONS]


def _plain(name: str) -> str:
    """A name without what people spell differently: `CIFAR10` and `cifar-10` are the same."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _words(name: str) -> list[str]:
    """The words of a name in any order: `mnist-fashion` is `fashion-mnist`."""
    return sorted(re.findall("[a-z0-9]+", name.lower()))


class VelodromeError(Exception):
    """Anything that Velodrome itself reports; the message is one clear sentence that says how to fix it."""

    exit_code = 1


class BadRequest(VelodromeError):
    """The user asked for something that cannot be done: refused before anything starts."""

    exit_code = 2


class Unavailable(BadRequest):
    """This machine lacks what a job needs: a package, a device, memory. Each reason says how to fix it."""

    def __init__(self, message: str, reasons: Sequence[str]) -> None:
        super().__init__(message)
        self.reasons = tuple(reasons)


class UsersCodeFailed(BadRequest):
    """Code of the user's raised when it was tried before training: its traceback is reported beside the sentence."""


class RunFailed(VelodromeError):
    """A run started and did not end well."""


class FolderGone(RunFailed):
    """What a run or race writes to was removed, renamed or replaced: nothing more can be recorded."""

    def __init__(self, what: str, path: object, kind: str = "folder") -> None:
        super().__init__(
            f"{what} ended because its {kind} {str(path)!r} was removed, renamed or replaced: put it back and "
            "resume, or start again"
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


def if_full(error: OSError, what_to_do: str = "free some space there, then resume") -> str:
    """The end of a sentence that says what to do about a full disk; empty for another error."""
    return f"; {what_to_do}" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""


#: Characters of a name or a reason within a sentence.
LONGEST = 120
#: Characters of a line. No path of the operating system is longer, so none is ever cut.
LONGEST_LINE = 5_000


def shown(text: object, longest: int = LONGEST) -> str:
    """A name or a reason as part of a line: line breaks are escaped, too."""
    return _escaped(_shortened(str(text), longest), "")


def printable(text: object, longest: int | None = LONGEST_LINE) -> str:
    """Text of several lines, with its tabs; a line that is longer than that is shortened."""
    whole = str(text)
    if longest is not None and len(whole) > longest:
        whole = "\n".join(_shortened(line, longest) for line in whole.split("\n"))
    return _escaped(whole, "\n\t")


def bytes_text(count: float) -> str:
    """A number of bytes in the unit that suits it: `812 bytes`, `3.4 MiB`."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count:.0f} bytes"


def _shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}…"


def _escaped(text: str, kept: str) -> str:
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter in kept else repr(letter)[1:-1] for letter in text)
