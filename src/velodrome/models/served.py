"""A model that was exported to ONNX: the files beside it, and what a server must know to feed it. No framework here."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from velodrome import files
from velodrome.models.recipe import LARGEST_DESCRIPTION

ONNX = "model.onnx"
SERVED = "serving.json"
EXAMPLES = "examples.npz"
SCHEMA = 1
#: So many examples of the test set must give the same answers before an export is kept.
CHECKED_EXAMPLES = 100
#: By how much they may differ, relative to the largest number that the engine's own model returns, or to 1.
TOLERANCE = 1e-4

Kind = Literal["images", "arrays", "text"]


class ServedInput(BaseModel):
    """One input of the graph; its first axis counts the examples."""

    model_config = ConfigDict(frozen=True)

    name: str
    #: Of one example: height, width and channels of an image.
    shape: tuple[int, ...]
    dtype: str
    image: bool = False


class ServedState(BaseModel):
    """What a language model carries from word to word; an axis of -1 counts the rows."""

    model_config = ConfigDict(frozen=True)

    name: str
    shape: tuple[int, ...]


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
    inputs: tuple[ServedInput, ...]
    #: What the graph returns of a classifier: logits, or probabilities in one way or another.
    outputs: str = "logits"
    #: Names of the classes, of the columns of a matrix of labels, or of the numbers that are predicted.
    classes: tuple[str, ...] = ()
    #: The byte of the brightest pixel as the data set stores it: 255, or 16 for the embedded digits.
    brightest: float = 255.0
    #: How bytes become numbers inside the graph, for the reader: `scale` and `offset` of the saved model.
    pixels: dict[str, Any] = Field(default_factory=dict)
    #: What was done to the columns of a table (`data/tables/encoding.py`).
    columns: dict[str, Any] = Field(default_factory=dict)
    #: Words of a language model, by their numbers.
    vocabulary: tuple[str, ...] = ()
    #: How many words it reads at a time: one where it carries a state, else at most so many.
    context: int | None = None
    state: tuple[ServedState, ...] = ()
    #: The only batch that the graph takes; None for any.
    only_batch: int | None = None
    #: Largest difference from the engine's own output over the examples that were compared; None before that.
    difference: float | None = None
    checked: int = 0

    def write(self, file: Path) -> None:
        files.write_text(file, self.model_dump_json(by_alias=True, indent=1) + "\n", sync=False)

    @classmethod
    def read(cls, file: Path) -> Served:
        return cls.model_validate(files.read_json(file, LARGEST_DESCRIPTION, inside=file.parent))
