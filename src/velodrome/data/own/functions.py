"""Data of the user's own code: what a function `module:function` returns, and what a script reads.

Only loading calls the function, so only workers run it. Of a script's data nothing is known.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from velodrome.data.base import BadData, Description, Faults, Progress, refuse, summaries
from velodrome.data.own.user_code import no_module, refuse_standard, users_function
from velodrome.errors import BadRequest
from velodrome.machine import process_memory
from velodrome.printable import bytes_text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from velodrome.data.examples import ExampleSet
    from velodrome.data.images.arrays import ArrayExamples
    from velodrome.data.own.array_args import ArgumentPart

def is_function(name: str) -> bool:
    """Whether a name has the form `module:function`."""
    module, colon, function = name.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), *function.split(".")))


@dataclass(frozen=True)
class FunctionSet:
    """Arrays or an iterable from the user's function. Nothing is known of them until it is called."""

    name: str
    bad_data: BadData

    def describe(self, validation: float) -> Description:
        return Description(
            name=self.name, title="your own function's data", licence="your own", homepage="", train=None,
            validation=None, test=None, input_shape=None, classes=None,
        )

    def prepare(self, progress: Progress | None) -> None:
        """See that the module is there; it is not imported, because that may run anything and take long."""
        from importlib.machinery import PathFinder

        top = self.name.partition(":")[0].partition(".")[0]
        refuse_standard("--dataset", self.name, top)
        if top not in sys.modules and PathFinder.find_spec(top, [str(Path.cwd()), *sys.path]) is None:
            raise no_module("--dataset", self.name, top)

    def load(self, seed: int, validation: float) -> ExampleSet:
        from velodrome.data.own.array_args import are_byte_images, argument_parts
        from velodrome.data.own.objects import seed_all, source_data
        from velodrome.data.own.return_values import sorted_out

        # Every worker calls it for itself, and what they get must be the same.
        seed_all(seed)
        faults = Faults()
        returned = sorted_out(self.name, users_function("--dataset", self.name)(), faults)
        if returned.arrays is None:
            return source_data(self.name, returned.objects, seed, validation)
        parts = argument_parts(self.name, returned.arrays)
        if are_byte_images(parts):
            found: ExampleSet = self._images(returned.arrays, faults, seed, validation)
        else:
            found = self._arrays(parts, faults, seed, validation)
        named = len(found.class_names) == len(returned.class_names)
        return replace(found, class_names=returned.class_names) if named else found

    def _arrays(self, parts: list[ArgumentPart], faults: Faults, seed: int, validation: float) -> ExampleSet:
        """Arrays of any shape, as float32 or whole numbers."""
        import numpy as np

        from velodrome.data.own.array_examples import divided, read

        # They are held a second time when they are divided.
        size = sum(len(part) * math.prod(array.shape[1:]) * 4 for part in parts for array in part.inputs.values())
        _check_memory(self.name, sum(map(len, parts)), "examples", 2 * size)
        examples = read(self.name, parts, lambda one, shape, dtype: np.empty(shape, dtype), faults)
        if self.bad_data == "fail":
            refuse(self.name, faults.found())
        return divided(self.name, examples, seed, validation, summaries(faults.found()))

    def _images(self, arrays: Mapping[str, Any], faults: Faults, seed: int, validation: float) -> ExampleSet:
        """Images whose pixels are bytes."""
        import numpy as np

        from velodrome.data.examples import image_part, image_set
        from velodrome.data.images.arrays import check_arrays
        from velodrome.data.split import divide, large_enough
        from velodrome.data.split_warnings import fingerprints, with_split_warnings

        examples = check_arrays(self.name, arrays, faults)
        images, rows = _converted(examples, faults)
        labels, parts, names = examples.labels[rows], examples.parts[rows], examples.class_names
        trained = large_enough(labels, parts, names, faults)
        if self.bad_data == "fail":
            refuse(self.name, faults.found())
        if trained.sum() < 2:
            raise BadRequest(f"data set {self.name!r} has {trained.sum()} classes, and training needs two")
        kept = trained[labels]
        rows, labels, parts = rows[kept], (np.cumsum(trained) - 1)[labels[kept]], parts[kept]
        division = divide(labels, parts, seed, validation)
        train, validated, test = (image_part(images[rows[chosen]], labels[chosen]) for chosen in division)
        splits = image_set(
            self.name, train, validated, test, classes=int(trained.sum()), scale=1 / 255,
            class_names=tuple(name for name, any_ in zip(names, trained, strict=True) if any_),
            notes=(*summaries(faults.found()), *examples.notes),
        )
        return with_split_warnings(splits, [fingerprints(part.images) for part in (train, validated, test)])


def _converted(examples: ArrayExamples, faults: Faults) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """All images as bytes, and the rows of those that can be used."""
    import numpy as np

    # They are held a second time when they are divided.
    _check_memory(examples.name, len(examples), "images", 2 * examples.bytes)
    images = np.empty((len(examples), *examples.shape), np.uint8)
    filled = 0

    def take(window: NDArray[np.uint8]) -> None:
        nonlocal filled
        images[filled : filled + len(window)] = window
        filled += len(window)

    return images, examples.convert(take, faults)


def _check_memory(name: str, count: int, noun: str, needed: int) -> None:
    if needed > (free := process_memory()):
        raise BadRequest(
            f"--dataset {name!r}: {count:,} {noun} take {bytes_text(needed)} of memory in addition to what the "
            f"function returned, and {bytes_text(free)} are free: return fewer or smaller ones"
        )


@dataclass(frozen=True)
class ScriptData:
    """Stands where a job names a data set."""

    name: str

    def describe(self, validation: float) -> Description:
        return Description(
            self.name, "what the script reads", "", "", train=None, validation=None, test=None, input_shape=None,
            classes=None,
        )

    def prepare(self, progress: Progress | None) -> None:
        """Nothing to do."""
