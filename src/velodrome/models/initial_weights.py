"""Weights that a job starts from (`--weights`): which of a file's tensors fit a model. No framework here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from velodrome import files
from velodrome.errors import BadRequest
from velodrome.machine import available_memory
from velodrome.printable import bytes_text

Shape = tuple[int, ...]
#: Names that a sentence lists at most.
_LISTED = 8


def check_readable(file: str) -> None:
    """Refuse what is no regular file, or is larger than memory."""
    try:
        with files.open_regular(file) as stream:
            size = stream.seek(0, 2)
    except OSError as error:
        raise BadRequest(f"--weights {file!r} cannot be read: {error.strerror or error}") from None
    check_size(file, size)


def check_size(file: str, size: int) -> None:
    """Refuse weights of more bytes than memory has free."""
    if size > (free := available_memory()):
        raise BadRequest(
            f"--weights {file!r} holds {bytes_text(size)}, and {bytes_text(free)} of memory are free here; choose a "
            "smaller file"
        )


@dataclass(frozen=True)
class Matching:
    """How the tensors of a file fit those of a model, by name."""

    file: str
    loaded: tuple[str, ...]
    #: In the model alone, in the file alone, and in both with two shapes: that of the file first.
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    reshaped: Mapping[str, tuple[Shape, Shape]]

    @classmethod
    def of(cls, file: str, model: Mapping[str, Shape], stored: Mapping[str, Shape]) -> Matching:
        """Match names and shapes, or `BadRequest` if nothing matches."""
        both = [name for name in model if name in stored]
        matching = cls(
            file,
            tuple(name for name in both if model[name] == stored[name]),
            tuple(name for name in model if name not in stored),
            tuple(name for name in stored if name not in model),
            {name: (stored[name], model[name]) for name in both if model[name] != stored[name]},
        )
        if not matching.loaded:
            raise BadRequest(
                f"--weights {file!r}: none of its {len(stored)} tensors fits the model, which has {len(model)}; "
                + "; ".join(matching._differences())
            )
        return matching

    def notes(self) -> tuple[str, ...]:
        """What did not match, as a sentence; nothing if everything did."""
        differences = self._differences()
        if not differences:
            return ()
        tensors = len(self.loaded) + len(self.missing) + len(self.reshaped)
        return (f"--weights {self.file!r}: {len(self.loaded)} of the model's {tensors} tensors were loaded; "
                + "; ".join(differences),)

    def _differences(self) -> list[str]:
        shapes = [
            f"{name} ({_shape(theirs)} instead of {_shape(ours)})" for name, (theirs, ours) in self.reshaped.items()
        ]
        kinds = (
            ("missing in the file", self.missing), ("unexpected in the file", self.unexpected),
            ("of another shape", shapes),
        )
        return [f"{kind}: {_listed(names)}" for kind, names in kinds if names]


def _listed(names: tuple[str, ...] | list[str]) -> str:
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more} more" if more > 0 else "")


def _shape(shape: Shape) -> str:
    return "×".join(map(str, shape)) or "a single number"


def load_matching(
    file: str, shapes: Mapping[str, Shape], take: Callable[[str, Any], object], *, framework: str = "np",
    prefix: str = "",
) -> tuple[str, ...]:
    """Call `take` with the name and value of each tensor of a safetensors file that matches by name and shape; what did
    not match, as sentences. Names in the file may begin with the prefix. Only what matches is read, one at a time."""
    from safetensors import SafetensorError, safe_open  # the controller imports this module, too

    check_readable(file)
    try:
        with safe_open(file, framework=framework) as stored:
            names = {name.removeprefix(prefix): name for name in stored.keys()}  # noqa: SIM118 (not a mapping)
            stored_shapes = {name: tuple(stored.get_slice(given).get_shape()) for name, given in names.items()}
            matching = Matching.of(file, shapes, stored_shapes)
            for name in matching.loaded:
                take(name, stored.get_tensor(names[name]))
    except SafetensorError as error:
        raise BadRequest(f"--weights {file!r} is no file of safetensors: {error}") from error
    return matching.notes()
