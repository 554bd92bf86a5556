"""What `model.json` says of a saved model, checked before anything is built of it: it may come from anywhere.

A field that is not listed here is for readers of the file alone. No framework here.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from velodrome import files
from velodrome.catalog import models
from velodrome.catalog.models import EXAMPLE_TASKS, is_own
from velodrome.errors import BadRequest, shown
from velodrome.events import sentences

#: Numbers of one example of an input or state; names of classes and words.
MOST_NUMBERS, MOST_NAMES = 1 << 26, 1 << 20
#: How many times larger weights may be than the archive that holds them: Keras does not even compress them.
_MOST_UNPACKED = 20
_ARCHIVE = ".keras"
#: Bytes of a description; an exported language model's has its vocabulary.
LARGEST_DESCRIPTION = 1 << 28

Axis = Annotated[int, Field(strict=True, ge=1, le=MOST_NUMBERS)]
Shape = Annotated[list[Axis], Field(max_length=16)]
Count = Annotated[int, Field(strict=True, ge=1, le=MOST_NUMBERS)]
Name = Annotated[str, Field(strict=True, max_length=1_000)]
Flag = Annotated[bool, Field(strict=True)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]


class _Input(BaseModel):
    """One input of a model on arrays."""

    shape: Shape | None = None
    dtype: Name
    fed: Name | None = None


class Description(BaseModel):
    """The fields that readers use, where they are there."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())

    model: Name
    file: Literal["model.keras", "model.weights.h5", "model.safetensors"]
    dtype: Literal["float16", "bfloat16", "float32", "float64"]
    kind: Literal["images", "arrays", "text"] = "images"
    engine: Name | None = None
    framework: Name | None = None
    task: Name | None = None
    policy: Name | None = None
    model_args: dict[str, Any] = Field(default_factory=dict)
    arguments: dict[str, Any] = Field(default_factory=dict)
    input_shape: Shape | dict[Name, Shape] | None = None
    inputs: dict[Name, _Input] = Field(default_factory=dict, max_length=1_000)
    images: list[Name] = Field(default_factory=list, max_length=1_000)
    classes: Count | None = None
    returns: Count | dict[str, Any] | None = None
    vocabulary: Count | None = None
    context: Count | None = None
    only_batch: Annotated[int, Field(strict=True, ge=1, le=1 << 16)] | None = None
    outputs: Any = None
    scale: Number | list[Number] | None = None
    offset: Number | list[Number] | None = None
    custom_objects: dict[Name, Name] = Field(default_factory=dict, max_length=MOST_NAMES)
    lazy: Flag = False
    several: Flag = False
    strict: Flag = True
    safe_mode: Flag = True
    channels_last: Flag = False

    @property
    def width(self) -> int | None:
        """How many numbers a model of the zoo returns for an example."""
        width = {"text": self.vocabulary, "arrays": self.returns}.get(self.kind, self.classes)
        return width if isinstance(width, int) else None


_DESCRIPTION = TypeAdapter(Description)
#: What building a model of the zoo takes.
_NEEDED = {"images": ("input_shape", "classes"), "arrays": ("input_shape", "returns", "arguments"),
           "text": ("vocabulary",)}


def check_description(about: Any, folder: Path) -> None:
    """Raise `ValueError` unless fields describe a model, whose weights are beside them."""
    try:
        said = _DESCRIPTION.validate_python(about)
    except ValidationError as error:
        raise ValueError(f"its model.json {next(sentences(error))}") from None
    if not is_own(said.model) and not _built_by_its_task(said.model):
        missing = [name for name in _NEEDED[said.kind] if about.get(name) is None]
        if missing:
            raise ValueError(f"its model.json has no {missing[0]!r}")
        if said.kind != "text" and _numbers(said.input_shape) > MOST_NUMBERS:
            raise ValueError(f"'input_shape' has more than {MOST_NUMBERS:,} numbers")
    _check_weights(folder / said.file, folder, said)


def _built_by_its_task(name: str) -> bool:
    """Whether a model of the zoo is for a task that somebody else added, whose code builds it in a way of its own."""
    ours = (*EXAMPLE_TASKS, "language-model")
    return any(model.name == name and model.task not in ours for model in models.MODELS)


def _check_weights(file: Path, folder: Path, said: Description) -> None:
    """Refuse weights that a reader would wait for, that unpack to far more, or that are too few for their model."""
    with files.open_regular(file, inside=folder) as stream:
        size = stream.seek(0, 2)
        if file.suffix == _ARCHIVE:
            check_unpacked(stream, str(file))
    if not is_own(said.model) and said.width is not None and 2 * said.width > size:  # each has a number of its own
        raise ValueError(f"{str(file)!r} has {size:,} bytes, too few for a model that returns {said.width:,} numbers")


def check_unpacked(archive: Any, name: str) -> None:
    """Refuse an archive of Keras whose files are far larger than it is; what is no archive, its reader refuses."""
    try:
        with zipfile.ZipFile(archive) as opened:
            for member in opened.infolist():
                if member.file_size > _MOST_UNPACKED * member.compress_size + (1 << 20):
                    raise ValueError(f"{name!r} packs {member.file_size:,} bytes into {member.compress_size:,}, "
                                     "which Keras does not write")
    except (zipfile.BadZipFile, NotImplementedError, EOFError):
        return


def check_data(about: Mapping[str, Any], data: Any) -> None:
    """Refuse to build a model of the zoo for other data than those of the job: what it would allocate follows from
    them. Channels may be first or last."""
    if is_own(about["model"]):
        return
    said = _DESCRIPTION.validate_python(about)
    width = len(data.vocabulary) if said.kind == "text" else data.classes
    shape = None if said.kind == "text" else data.input_shape
    if shape is not None and said.input_shape is not None and _axes(said.input_shape) != _axes(shape):
        raise BadRequest(f"the saved model takes inputs of shape {shown(said.input_shape)}, and the data have "
                         f"{shown(shape)}")
    if width is not None and said.kind != "arrays" and said.width != width:
        raise BadRequest(f"the saved model returns {said.width or 0:,} numbers, and the data need {width:,}")


def _axes(shape: Any) -> Any:
    """A shape for comparison, or shapes by name."""
    return {name: sorted(axes) for name, axes in shape.items()} if isinstance(shape, Mapping) else sorted(shape)


def _numbers(shape: Any) -> int:
    return sum(map(math.prod, shape.values())) if isinstance(shape, Mapping) else math.prod(shape)
