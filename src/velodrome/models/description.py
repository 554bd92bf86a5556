"""What `model.json` says of a saved model, and `serving.json` of one that was exported to ONNX. Both may come from
anywhere: what they say is checked here, once, before anything is built, allocated or computed. No framework here.

A field of `model.json` that is not listed here is for readers of the file alone.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from velodrome import files
from velodrome.catalog import models
from velodrome.catalog.models import EXAMPLE_TASKS, is_own
from velodrome.data.own.encoding import Encoding
from velodrome.errors import BadRequest, shown
from velodrome.events import sentences

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from velodrome.data.examples import ArrayField, ExampleSet
    from velodrome.job.job import Job

#: Numbers of one example of an input or state; names of classes and words.
MOST_NUMBERS, MOST_NAMES = 1 << 26, 1 << 20
#: How many times larger weights may be than the archive that holds them. Keras does not compress them at all.
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
        raise BadRequest(f"the saved model takes inputs of shape {shown(said.input_shape)}, but the data have "
                         f"{shown(shape)}")
    if width is not None and said.kind != "arrays" and said.width != width:
        raise BadRequest(f"the saved model returns {said.width or 0:,} numbers, but the data need {width:,}")


def _axes(shape: Any) -> Any:
    """A shape for comparison, or shapes by name."""
    return {name: sorted(axes) for name, axes in shape.items()} if isinstance(shape, Mapping) else sorted(shape)


def _numbers(shape: Any) -> int:
    return sum(map(math.prod, shape.values())) if isinstance(shape, Mapping) else math.prod(shape)


# -- exported

ONNX = "model.onnx"
SERVED = "serving.json"
EXAMPLES = "examples.npz"
SCHEMA = 1
#: An export is kept only if this many examples of the test set give the same outputs.
CHECKED_EXAMPLES = 100
#: By how much they may differ, relative to the largest number that the engine's own model returns, or to 1.
TOLERANCE = 1e-4
#: Numbers of a batch.
MOST_OF_BATCH = 1 << 28

Kind = Literal["images", "arrays", "text"]
Dtype = Literal["uint8", "int32", "int64", "float32", "float64", "bool"]
_Axis = Annotated[int, Field(ge=1, le=MOST_NUMBERS)]
#: An axis that is not known before there is an example.
Open = Literal[-1]
Share = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def _count(shape: tuple[int, ...]) -> int:
    """Numbers of a shape whose open axes are 1."""
    return math.prod(axis for axis in shape if axis > 0)


class _Shaped(BaseModel):
    model_config = ConfigDict(frozen=True)

    name: str = Field(min_length=1, max_length=1_000)
    shape: tuple[_Axis | Open, ...] = Field(max_length=16)

    @model_validator(mode="after")
    def _check_size(self) -> _Shaped:
        if _count(self.shape) > MOST_NUMBERS:
            raise ValueError(f"{shown(self.name)!r} has more than {MOST_NUMBERS:,} numbers")
        return self


class ServedInput(_Shaped):
    """One input of the graph; its first axis counts the examples."""

    #: Of one example: height, width and channels of an image; -1 for the words of a text, however many there are.
    dtype: Dtype
    image: bool = False

    @model_validator(mode="after")
    def _check_image(self) -> ServedInput:
        if self.image and len(self.shape) != 3:
            raise ValueError(f"{shown(self.name)!r} is not an image: it has shape {self.shape}")
        return self


class ServedState(_Shaped):
    """What a language model carries from word to word; an axis of -1 counts the rows."""


class Served(BaseModel):
    """What `serving.json` holds."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    schema_version: int = Field(SCHEMA, alias="schema")
    kind: Kind
    task: str
    model: str
    engine: str
    dataset: str
    run: str = ""
    inputs: tuple[ServedInput, ...] = Field(min_length=1, max_length=1_000)
    #: What the graph returns of a classifier: logits, or probabilities in one way or another.
    outputs: str = "logits"
    #: Names of the classes, of the columns of a matrix of labels, or of the numbers that are predicted.
    classes: tuple[str, ...] = Field((), max_length=MOST_NAMES)
    #: The byte of the brightest pixel as the data set stores it: 255, or 16 for the embedded digits.
    brightest: float = Field(255.0, gt=0, le=1e9)
    #: How bytes become numbers inside the graph, for the reader: `scale` and `offset` of the saved model.
    pixels: dict[str, Any] = Field(default_factory=dict)
    #: What was done to the columns of a table (`data/own/encoding.py`).
    columns: dict[str, Any] = Field(default_factory=dict)
    #: Words of a language model, by their numbers.
    vocabulary: tuple[str, ...] = Field((), max_length=MOST_NAMES)
    #: How many words it reads at a time: one where it carries a state, else at most this many.
    context: int | None = Field(None, ge=1, le=MOST_NUMBERS)
    state: tuple[ServedState, ...] = Field((), max_length=1_000)
    #: The only batch that the graph takes; None for any.
    only_batch: int | None = Field(None, ge=1, le=1 << 16)
    #: Largest difference from the engine's own output over the examples that were compared; None before that.
    difference: Share | None = None
    checked: int = Field(0, ge=0)

    @model_validator(mode="after")
    def _check(self) -> Served:
        names = [array.name for array in (*self.inputs, *self.state)]
        if len(set(names)) < len(names):
            raise ValueError("two inputs have the same name")
        if self.kind == "text":
            if not self.vocabulary or names[0] != "words" or len(self.inputs) > 1:
                raise ValueError("a language model has a vocabulary, and one input, 'words'")
        elif self.state or any(-1 in array.shape for array in self.inputs):
            raise ValueError("only a language model has a state, and inputs of any length")
        if self.kind == "images" and not (len(self.inputs) == 1 and self.inputs[0].image):
            raise ValueError("a model of images has one input, an image")
        if (self.only_batch or 1) * sum(_count(array.shape) for array in (*self.inputs, *self.state)) > MOST_OF_BATCH:
            raise ValueError(f"a batch has more than {MOST_OF_BATCH:,} numbers")
        if self.encoding is not None and self.encoding.shapes != {array.name: array.shape for array in self.inputs}:
            raise ValueError("the columns are not those of the inputs")
        return self

    @cached_property
    def encoding(self) -> Encoding | None:
        """How a row of a table becomes the inputs; None for models of anything else."""
        return Encoding.from_json(self.columns) if self.columns else None

    def write(self, file: Path) -> None:
        files.write_text(file, self.model_dump_json(by_alias=True, indent=1) + "\n", sync=False)

    @classmethod
    def read(cls, file: Path) -> Served:
        """The description in a file; `ValueError` with one line if it is none."""
        try:
            return cls.model_validate(files.read_json(file, LARGEST_DESCRIPTION, inside=file.parent))
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
            why = first["msg"].removeprefix("Value error, ")
            raise ValueError(shown(f"{place}: {why}" if place else why, 300)) from None


@dataclass(frozen=True)
class Exported:
    """What an engine wrote: its own outputs for the examples, and what only it knows about the graph."""

    #: Of a language model, the scores of the word after the last one.
    expected: NDArray[Any]
    state: tuple[ServedState, ...] = ()
    only_batch: int | None = None


def served_model(task: str, job: Job, data: Any, about: Mapping[str, Any], exported: Exported) -> Served:
    """What the server must know: from the data set, which names classes, and from the saved model."""
    common: dict[str, Any] = {
        "task": task, "model": job.model, "engine": job.engine or about["engine"],
        "dataset": data.name, "outputs": about.get("outputs", "logits"), "only_batch": exported.only_batch,
    }
    if data.kind != "text":
        inputs = tuple(
            ServedInput(name=column.name, shape=column.shape, dtype=_fed(column), image=column.image)
            for column in data.inputs
        )
        columns = dict(data.columns)
        return Served(
            kind=data.kind if task == "classification" else "arrays", inputs=inputs,
            classes=_outputs_of(data, task, columns), brightest=1 / data.scale, columns=columns,
            pixels={name: about[name] for name in ("pixels", "scale", "offset") if name in about}, **common,
        )
    stateful = bool(exported.state)
    return Served(
        kind="text", inputs=(ServedInput(name="words", shape=(1,) if stateful else (-1,), dtype="int64"),),
        vocabulary=tuple(data.vocabulary), context=1 if stateful else about["context"], state=exported.state, **common,
    )


def _fed(column: ArrayField) -> Dtype:
    """The format in which the graph takes an input."""
    if column.is_byte_image:
        return "uint8"
    return "int64" if column.is_whole and column.dtype != "bool" else "float32"


def _names(names: tuple[str, ...], classes: int | None) -> tuple[str, ...]:
    return tuple(names) or tuple(str(number) for number in range(classes or 0))


def _outputs_of(data: ExampleSet, task: str, columns: Mapping[str, Any]) -> tuple[str, ...]:
    if task in ("classification", "multi-label"):
        return _names(data.class_names, data.classes)
    if task == "binary":
        return _names(data.class_names, 2)
    targets = tuple(column["name"] for column in columns.get("targets", ()))
    return targets or tuple(data.class_names) or tuple(each.name for each in data.targets)
