"""Data of the user's own code: what a function `module:function` returns, and what a script reads.

Only loading calls the function, so only workers run it. Of a script's data nothing is known.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from velodrome.data.base import BadData, Faults, Progress, refuse, summaries
from velodrome.data.own.names import no_module, refuse_standard, users_function
from velodrome.data.source import Description, Source
from velodrome.errors import BadRequest
from velodrome.machine import process_memory
from velodrome.printable import bytes_text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from velodrome.data.examples import ExampleSet
    from velodrome.data.own.array_args import ArgumentPart
    from velodrome.data.own.array_examples import Kind


@dataclass(frozen=True)
class FunctionSet(Source):
    """Arrays or an iterable from the user's function. Nothing is known of them until it is called."""

    from_function: ClassVar[bool] = True
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
        examples = self._arrays(parts, "images" if are_byte_images(parts) else "arrays", faults, seed, validation)
        named = len(examples.class_names) == len(returned.class_names)
        return replace(examples, class_names=returned.class_names) if named else examples

    def _arrays(
        self, parts: list[ArgumentPart], kind: Kind, faults: Faults, seed: int, validation: float
    ) -> ExampleSet:
        """Images whose pixels are bytes, or arrays of any shape."""
        import numpy as np

        from velodrome.data.own.array_examples import divided, form_of, noun_of, read
        from velodrome.data.split_warnings import row_fingerprints

        count, forms = sum(map(len, parts)), [form_of(kind, parts, column) for column in parts[0].inputs]
        # They are held a second time when they are divided.
        size = 2 * count * sum(math.prod(shape) * dtype.itemsize for shape, dtype in forms)
        _check_memory(self.name, count, noun_of(kind), size)
        inputs: dict[str, NDArray[Any]] = {}

        def begin(column: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Callable[[NDArray[Any]], None]:
            inputs[column], filled = np.empty(shape, dtype), 0

            def take(window: NDArray[Any]) -> None:
                nonlocal filled
                inputs[column][filled : filled + len(window)] = window
                filled += len(window)

            return take

        examples = read(self.name, kind, parts, begin, faults)
        if self.bad_data == "fail":
            refuse(self.name, faults.found())
        examples = replace(examples, inputs=inputs, prints=row_fingerprints(inputs, examples.rows))
        return divided(self.name, examples, seed, validation, (*summaries(faults.found()), *examples.notes))


def _check_memory(name: str, count: int, noun: str, needed: int) -> None:
    if needed > (free := process_memory()):
        raise BadRequest(
            f"--dataset {name!r}: {count:,} {noun} take {bytes_text(needed)} of memory in addition to what the "
            f"function returned, and {bytes_text(free)} are free: return fewer or smaller ones"
        )


@dataclass(frozen=True)
class ScriptData(Source):
    """Stands where a job names a data set."""

    name: str

    def describe(self, validation: float) -> Description:
        return Description(
            self.name, "what the script reads", "", "", train=None, validation=None, test=None, input_shape=None,
            classes=None,
        )
