"""Small data that ships with Velodrome, so that no download is needed: handwritten digits, and two tables.

Sources and licences are in `digits.md` and `tables.md`, beside the files. A fifth is the test set, and a share of the
rest the validation set: both seeded, and stratified where the target is a class. Features of tables are standardised
with the mean and the deviation of the training rows; their targets are left as they are.
"""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from velodrome import files
from velodrome.data.base import Checked, DataError, DataSet, Description, Progress
from velodrome.data.split import held_out

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from velodrome.data.examples import ExamplePart, ExampleSet

_EXAMPLES, _TEST, _SIDE, _CLASSES, _BRIGHTEST = 1797, 359, 8, 10, 16
_TEST_DRAW, _VALIDATION_DRAW = 1, 2
_NAMES = tuple("0123456789")
_FILE = Path(__file__).with_name("digits.npz")
_SHA256 = "516461765719e9f81b246f52d21473a2e9006efb68053ba7c60c53a89fe9dcb6"


class Digits:
    """A fifth is the test set, and a share of the rest the validation set: both stratified and seeded."""

    name = "digits"

    def describe(self, validation: float) -> Description:
        kept = held_out(_EXAMPLES - _TEST, validation)
        return Description(
            name=self.name,
            title="Optical recognition of handwritten digits (UCI), as in scikit-learn",
            licence="CC BY 4.0",
            homepage="https://archive.ics.uci.edu/dataset/80",
            train=_EXAMPLES - _TEST - kept,
            validation=kept,
            test=_TEST,
            input_shape=(_SIDE, _SIDE, 1),
            classes=_CLASSES,
            bytes=0,
            class_names=_NAMES,
        )

    def prepare(self, progress: Progress | None) -> None:
        """Nothing is fetched."""

    def is_here(self) -> bool:
        return True

    def verify(self) -> list[Checked]:
        state: Literal["ok", "missing", "damaged"] = "missing"
        if _FILE.exists():
            state = "ok" if files.sha256_of(_FILE) == _SHA256 else "damaged"
        return [Checked(str(_FILE), state, "" if state == "ok" else "reinstall velodrome", by_prepare=False)]

    def load(self, seed: int, validation: float) -> ExampleSet:
        import numpy as np

        from velodrome.data.examples import image_part, image_set
        from velodrome.data.split import split_images, stratified
        from velodrome.data.split_warnings import fingerprints, with_split_warnings

        try:
            with np.load(_FILE, allow_pickle=False) as stored:
                images, labels = stored["images"], stored["labels"]
        except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error) as error:
            raise DataError(f"{_FILE} cannot be read ({error}): reinstall velodrome") from None
        whole = image_part(images, labels.astype(np.int64))
        rest, test = split_images(whole, stratified(whole.labels, _TEST, seed, _TEST_DRAW))
        kept = held_out(len(rest), validation)
        train, validation_part = split_images(rest, stratified(rest.labels, kept, seed, _VALIDATION_DRAW))
        splits = image_set(
            self.name, train, validation_part, test, classes=_CLASSES, scale=1 / _BRIGHTEST, class_names=_NAMES
        )
        return with_split_warnings(splits, [fingerprints(part.images) for part in (train, validation_part, test)])



_TEST_DRAW, _VALIDATION_DRAW = 1, 2
_FEATURES = "features"


@dataclass(frozen=True)
class EmbeddedTable:
    """A fifth of the rows is the test set, and a share of the rest the validation set: both seeded, and stratified
    where the target is yes or no."""

    name: str
    title: str
    licence: str
    homepage: str
    sha256: str
    rows: int
    columns: tuple[str, ...]
    target: str
    task: Literal["regression", "binary"]
    class_names: tuple[str, ...] = ()

    @property
    def _file(self) -> Path:
        return Path(__file__).with_name(f"{self.name}.npz")

    @property
    def _test(self) -> int:
        return round(self.rows / 5)

    def describe(self, validation: float) -> Description:
        kept = held_out(self.rows - self._test, validation)
        return Description(
            name=self.name, title=self.title, licence=self.licence, homepage=self.homepage, kind="arrays",
            train=self.rows - self._test - kept, validation=kept, test=self._test, input_shape=(len(self.columns),),
            classes=len(self.class_names) or None, bytes=0, class_names=self.class_names, task=self.task,
        )

    def implied_task(self) -> str:
        return self.task

    def prepare(self, progress: Progress | None) -> None:
        """Nothing is fetched."""

    def is_here(self) -> bool:
        return True

    def verify(self) -> list[Checked]:
        state: Literal["ok", "missing", "damaged"] = "missing"
        if self._file.exists():
            state = "ok" if files.sha256_of(self._file) == self.sha256 else "damaged"
        return [Checked(str(self._file), state, "" if state == "ok" else "reinstall velodrome", by_prepare=False)]

    def load(self, seed: int, validation: float) -> ExampleSet:
        import numpy as np

        from velodrome.data.examples import ExamplePart, ExampleSet
        from velodrome.data.split import stratified

        values, targets = self._stored()
        groups = targets.astype(np.int64) if self.task == "binary" else np.zeros(len(targets), np.int64)
        tested = stratified(groups, self._test, seed, _TEST_DRAW)
        rest = np.flatnonzero(~tested)
        chosen = stratified(groups[rest], held_out(len(rest), validation), seed, _VALIDATION_DRAW)
        train = values[rest[~chosen]]
        mean, deviation = train.mean(axis=0), train.std(axis=0)

        def part(rows: NDArray[np.int64]) -> ExamplePart:
            features = ((values[rows] - mean) / deviation).astype(np.float32)
            return ExamplePart({_FEATURES: features}, {self.target: targets[rows]})

        return ExampleSet(
            self.name, part(rest[~chosen]), part(rest[chosen]), part(np.flatnonzero(tested)),
            classes=len(self.class_names) or None, class_names=self.class_names,
            columns=self._columns(mean.tolist(), deviation.tolist()), content=self.sha256[:16],
        )

    def _stored(self) -> tuple[NDArray[np.float64], NDArray[Any]]:
        """The table as it was published, and its target as the task takes it."""
        import numpy as np

        try:
            with np.load(self._file, allow_pickle=False) as stored:
                values, targets = stored["values"], stored["target"]
        except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error) as error:
            raise DataError(f"{self._file} cannot be read ({error}): reinstall velodrome") from None
        return values, targets.astype(np.float32 if self.task == "regression" else np.uint8)

    def _columns(self, mean: list[float], deviation: list[float]) -> dict[str, Any]:
        """What was done to each column, as it is stored with a model."""
        features = [
            {"name": name, "kind": "number", "mean": middle, "deviation": spread}
            for name, middle, spread in zip(self.columns, mean, deviation, strict=True)
        ]
        target: dict[str, Any] = {"name": self.target, "kind": "number", "mean": 0.0, "deviation": 1.0}
        if self.class_names:
            target = {"name": self.target, "kind": "category", "how": "index", "categories": list(self.class_names)}
        return {"features": features, "targets": [target]}


_MEASURED = (
    "radius", "texture", "perimeter", "area", "smoothness", "compactness", "concavity", "concave points", "symmetry",
    "fractal dimension",
)

DATA_SETS: tuple[DataSet, ...] = (
    Digits(),
    EmbeddedTable(
        name="diabetes",
        title="Diabetes: progression within a year from ten measurements, as in scikit-learn",
        licence="BSD 3-Clause, as part of scikit-learn",
        homepage="https://www4.stat.ncsu.edu/~boos/var.select/diabetes.html",
        sha256="62594a030cc0f97f9855c85e612abb4a97501e4e650ecc4c36608b30b3d27fc3",
        rows=442,
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
        rows=569,
        columns=tuple(
            text.format(name) for text in ("mean {}", "{} error", "worst {}") for name in _MEASURED
        ),
        target="malignant",
        task="binary",
        class_names=("benign", "malignant"),
    ),
)
