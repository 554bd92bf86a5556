"""Handwritten digits that ship with Velodrome: 1,797 images of 8×8, available without any download.

Source and licence are in `digits.md`, beside the file.
"""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from velodrome import files
from velodrome.data.base import Checked, DataError, DataSet, Description, Progress, held_out

if TYPE_CHECKING:
    from velodrome.data.examples import ExampleSet

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
        from velodrome.data.partition import divide, stratified
        from velodrome.data.remarks import fingerprints, with_remarks

        try:
            with np.load(_FILE, allow_pickle=False) as stored:
                images, labels = stored["images"], stored["labels"]
        except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error) as error:
            raise DataError(f"{_FILE} cannot be read ({error}): reinstall velodrome") from None
        whole = image_part(images, labels.astype(np.int64))
        rest, test = divide(whole, stratified(whole.labels, _TEST, seed, _TEST_DRAW))
        kept = held_out(len(rest), validation)
        train, validation_part = divide(rest, stratified(rest.labels, kept, seed, _VALIDATION_DRAW))
        splits = image_set(
            self.name, train, validation_part, test, classes=_CLASSES, scale=1 / _BRIGHTEST, class_names=_NAMES
        )
        return with_remarks(splits, [fingerprints(part.images) for part in (train, validation_part, test)])


DATA_SETS: tuple[DataSet, ...] = (Digits(),)
