"""The handwritten digits that scikit-learn carries: 1,797 images of 8×8, there without any download.

The file is read straight from the installed package's folder, because importing scikit-learn takes a second.
"""

from __future__ import annotations

import gzip
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from velodrome.data.base import DataError, DataSet, Description, Progress, held_out

if TYPE_CHECKING:
    from velodrome.data.splits import Splits

_EXAMPLES, _TEST, _SIDE, _CLASSES, _BRIGHTEST = 1797, 359, 8, 10, 16
_TEST_DRAW, _VALIDATION_DRAW = 1, 2
_NAMES = tuple("0123456789")


class Digits:
    """A fifth is the test set, and a share of the rest the validation set: both stratified and seeded."""

    name = "digits"

    def describe(self, validation: float) -> Description:
        kept = held_out(_EXAMPLES - _TEST, validation)
        return Description(
            name=self.name,
            title="Optical recognition of handwritten digits, as embedded in scikit-learn",
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
        _file()

    def load(self, seed: int, validation: float) -> Splits:
        import numpy as np

        from velodrome.data.partition import divide, stratified
        from velodrome.data.splits import Part, Splits

        path = _file()
        try:
            with gzip.open(path, "rt", encoding="ascii") as lines:
                table = np.loadtxt(lines, delimiter=",", dtype=np.int64)
        except (OSError, EOFError, ValueError) as error:
            raise DataError(f"{path} cannot be read ({error}): reinstall it with pip install scikit-learn") from None
        pixels, labels = table[:, :-1], table[:, -1]
        if table.shape != (_EXAMPLES, _SIDE * _SIDE + 1) or pixels.max() > _BRIGHTEST or labels.max() >= _CLASSES:
            raise DataError(f"{path} does not hold the digits it should: reinstall it with pip install scikit-learn")
        whole = Part(pixels.astype(np.uint8).reshape(-1, _SIDE, _SIDE, 1), labels)
        rest, test = divide(whole, stratified(whole.labels, _TEST, seed, _TEST_DRAW))
        kept = held_out(len(rest), validation)
        train, validation_part = divide(rest, stratified(rest.labels, kept, seed, _VALIDATION_DRAW))
        return Splits(
            self.name, train, validation_part, test, classes=_CLASSES, scale=1 / _BRIGHTEST, class_names=_NAMES
        )


def _file() -> Path:
    package = find_spec("sklearn")
    for folder in (package.submodule_search_locations or ()) if package else ():
        path = Path(folder) / "datasets" / "data" / "digits.csv.gz"
        if path.is_file():
            return path
    raise DataError("data set 'digits' comes with scikit-learn, which is not installed here: pip install scikit-learn")


DATA_SETS: tuple[DataSet, ...] = (Digits(),)
