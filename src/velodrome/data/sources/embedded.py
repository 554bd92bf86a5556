"""Small data sets that ship with Velodrome and need no download: handwritten digits, and two tables.

Sources and licences are in `digits.md` and `tables.md`, beside the files. A fifth is the test set, and a share of the
rest the validation set: both seeded, and stratified where the target is a class. Features of tables are standardised
with the mean and the deviation of the training rows; their targets are left as they are.
"""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from velodrome.data.base import Checked, DataError, NDArray, np
from velodrome.data.examples import ExamplePart, ExampleSet, image_part, image_set
from velodrome.data.own.encoding import FEATURES, ColumnEncoding, Encoding
from velodrome.data.source import Description, Source
from velodrome.data.split import TRAIN, Division, divide, fingerprints, sizes_of, with_split_warnings

_SIDE, _BRIGHTEST = 8, 16


@dataclass(frozen=True)
class Embedded(Source):
    """Examples in an `.npz` file beside this module."""

    name: str
    title: str
    licence: str
    homepage: str
    sha256: str
    examples: int
    class_names: tuple[str, ...] = ()

    @property
    def _file(self) -> Path:
        return Path(__file__).with_name(f"{self.name}.npz")

    def verify(self) -> list[Checked]:
        checked = Checked.by_checksum(self._file, self.sha256)
        return [Checked(checked.file, checked.state, "" if checked.state == "ok" else "reinstall velodrome", False)]

    def _description(self, validation: float, input_shape: tuple[int, ...], **more: Any) -> Description:
        train, validated, test = sizes_of((self.examples, 0, 0), validation)
        return Description(
            name=self.name, title=self.title, licence=self.licence, homepage=self.homepage, train=train,
            validation=validated, test=test, input_shape=input_shape,
            classes=len(self.class_names) or None, bytes=0, class_names=self.class_names, **more,
        )

    def _stored(self, *names: str) -> list[NDArray[Any]]:
        """Arrays of the file."""
        try:
            with np.load(self._file, allow_pickle=False) as stored:
                return [stored[name] for name in names]
        except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error) as error:
            raise DataError(f"{self._file} cannot be read ({error}): reinstall velodrome") from None

    def _divided(self, labels: NDArray[np.int64], seed: int, validation: float) -> Division:
        return divide(labels, np.full(len(labels), TRAIN, np.int8), seed, validation)


@dataclass(frozen=True)
class Digits(Embedded):
    def describe(self, validation: float) -> Description:
        return self._description(validation, (_SIDE, _SIDE, 1))

    def load(self, seed: int, validation: float) -> ExampleSet:
        images, labels = self._stored("images", "labels")
        labels = labels.astype(np.int64)
        parts = [image_part(images[rows], labels[rows]) for rows in self._divided(labels, seed, validation)]
        digits = image_set(
            self.name, *parts, classes=len(self.class_names), scale=1 / _BRIGHTEST, class_names=self.class_names
        )
        return with_split_warnings(digits, [fingerprints(part.images) for part in parts])


@dataclass(frozen=True, kw_only=True)
class EmbeddedTable(Embedded):
    columns: tuple[str, ...]
    target: str
    task: Literal["regression", "binary"]

    def describe(self, validation: float) -> Description:
        return self._description(validation, (len(self.columns),), kind="arrays", task=self.task)

    def implied_task(self) -> str:
        return self.task

    def load(self, seed: int, validation: float) -> ExampleSet:
        values, targets = self._stored("values", "target")
        targets = targets.astype(np.float32 if self.task == "regression" else np.uint8)
        groups = targets.astype(np.int64) if self.task == "binary" else np.zeros(len(targets), np.int64)
        division = self._divided(groups, seed, validation)
        train = values[division[0]]
        mean, deviation = train.mean(axis=0), train.std(axis=0)
        scaled = zip(self.columns, mean.tolist(), deviation.tolist(), strict=True)
        target = ColumnEncoding(self.target, "index" if self.class_names else "scale", categories=self.class_names)
        columns = Encoding(tuple(ColumnEncoding(name, "scale", *moments) for name, *moments in scaled), (target,))

        def part(rows: NDArray[np.int64]) -> ExamplePart:
            features = ((values[rows] - mean) / deviation).astype(np.float32)
            return ExamplePart({FEATURES: features}, {self.target: targets[rows]})

        train_part, validated, test = map(part, division)
        return ExampleSet(
            self.name, train_part, validated, test, classes=len(self.class_names) or None, class_names=self.class_names,
            columns=columns.as_json(), content=self.sha256[:16],
        )


_MEASURED = (
    "radius", "texture", "perimeter", "area", "smoothness", "compactness", "concavity", "concave points", "symmetry",
    "fractal dimension",
)

DATA_SETS = (
    Digits(
        name="digits",
        title="Optical recognition of handwritten digits (UCI), as in scikit-learn",
        licence="CC BY 4.0",
        homepage="https://archive.ics.uci.edu/dataset/80",
        sha256="516461765719e9f81b246f52d21473a2e9006efb68053ba7c60c53a89fe9dcb6",
        examples=1797,
        class_names=tuple("0123456789"),
    ),
    EmbeddedTable(
        name="diabetes",
        title="Diabetes: progression within a year from ten measurements, as in scikit-learn",
        licence="BSD 3-Clause, as part of scikit-learn",
        homepage="https://www4.stat.ncsu.edu/~boos/var.select/diabetes.html",
        sha256="62594a030cc0f97f9855c85e612abb4a97501e4e650ecc4c36608b30b3d27fc3",
        examples=442,
        columns=("age", "sex", "bmi", "bp", "s1", "s2", "s3", "s4", "s5", "s6"),
        target="progression",
        task="regression",
    ),
    EmbeddedTable(
        name="breast-cancer",
        title="Breast cancer Wisconsin (diagnostic, UCI): malignant or benign, as in scikit-learn",
        licence="CC BY 4.0",
        homepage="https://archive.ics.uci.edu/dataset/17",
        sha256="c7a85fbb7de8422785b35fe5048006daff296525c8ce641c69c1b2bbce48217f",
        examples=569,
        columns=tuple(
            text.format(name) for text in ("mean {}", "{} error", "worst {}") for name in _MEASURED
        ),
        target="malignant",
        task="binary",
        class_names=("benign", "malignant"),
    ),
)
