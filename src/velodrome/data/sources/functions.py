"""Data of the user's own code: what a function `module:function` returns, and what a script reads.

Only loading calls the function, so only workers run it. It returns arrays, single examples, or data set objects, in up
to three parts. Single examples are read into arrays within a worker's share of the memory; odd ones are faults. Of a
script's data nothing is known.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from velodrome.data.base import (
    BadData,
    Faults,
    NDArray,
    Progress,
    WrongData,
    memory_budget,
    naming,
    np,
    quiet,
    refuse,
    summaries,
)
from velodrome.data.examples import INPUT, TARGET, ExampleSet
from velodrome.data.own.array_examples import Kind, divide_examples, form_of, noun_of, read
from velodrome.data.own.arrays import NAMES, ArgumentPart, argument_parts, as_array, byte_scales
from velodrome.data.own.functions import no_module, refuse_standard, users_function
from velodrome.data.own.objects import ArraysOf, hugging_face_arrays, kind_of, seed_all, source_data, tensorflow_arrays
from velodrome.data.source import Description, Source
from velodrome.data.split import PART_NAMES, PARTS, TEST, TRAIN, VALIDATION, fingerprints
from velodrome.errors import bytes_text, shown
from velodrome.machine import process_memory


@dataclass(frozen=True)
class FunctionSet(Source):
    """Arrays or an iterable from the user's function. Nothing is known of them until it is called."""

    from_function: ClassVar[bool] = True
    name: str
    bad_data: BadData

    def describe(self, validation: float) -> Description:
        return Description(self.name, "your own function's data")

    def prepare(self, progress: Progress = quiet) -> None:
        """See that the module is there; it is not imported, because that may run anything and take long."""
        from importlib.machinery import PathFinder

        top = self.name.partition(":")[0].partition(".")[0]
        refuse_standard("--dataset", self.name, top)
        if top not in sys.modules and PathFinder.find_spec(top, [str(Path.cwd()), *sys.path]) is None:
            raise no_module("--dataset", self.name, top)

    def load(self, seed: int, validation: float) -> ExampleSet:
        # Every worker calls it for itself, and what they get must be the same.
        seed_all(seed)
        with naming(self.name):
            return self._loaded(seed, validation)

    def _loaded(self, seed: int, validation: float) -> ExampleSet:
        faults = Faults()
        returned = read_returned(users_function("--dataset", self.name)(), faults)
        if returned.arrays is None:
            return source_data(self.name, returned.objects, seed, validation)
        parts = argument_parts(returned.arrays)
        examples = self._arrays(parts, faults, seed, validation)
        named = len(examples.class_names) == len(returned.class_names)
        return replace(examples, class_names=returned.class_names) if named else examples

    def _arrays(self, parts: list[ArgumentPart], faults: Faults, seed: int, validation: float) -> ExampleSet:
        """Images whose pixels are bytes, or arrays of any shape."""
        scales = byte_scales(parts)
        kind: Kind = "images" if scales else "arrays"
        count, forms = sum(map(len, parts)), {column: form_of(kind, parts, column) for column in parts[0].inputs}
        # They are held a second time when they are divided.
        size = 2 * count * sum(math.prod(shape) * dtype.itemsize for shape, dtype in forms.values())
        _check_memory(count, noun_of(kind), size)
        inputs = {column: np.empty((count, *shape), dtype) for column, (shape, dtype) in forms.items()}

        def write(column: str, first: int, window: NDArray[Any]) -> None:
            inputs[column][first : first + len(window)] = window

        examples = read(scales, parts, write, faults)
        if self.bad_data == "fail":
            refuse(self.name, faults.all())
        examples = replace(examples, inputs=inputs, prints=fingerprints(*inputs.values(), rows=examples.rows))
        return divide_examples(self.name, examples, seed, validation, (*summaries(faults.all()), *examples.notes))


def _check_memory(count: int, noun: str, needed: int) -> None:
    if needed > (free := process_memory()):
        raise WrongData(
            f"{count:,} {noun} take {bytes_text(needed)} of memory in addition to what the "
            f"function returned, but only {bytes_text(free)} are free: return fewer or smaller ones"
        )


@dataclass(frozen=True)
class ScriptData(Source):
    """Stands where a job names a data set."""

    name: str

    def describe(self, validation: float) -> Description:
        return Description(self.name, "what the script reads", licence="")


_FOUR = ("x_train", "y_train", "x_test", "y_test")
_FORMS = (
    "return x_train, y_train, x_test, y_test, a dictionary with these names, an iterable of (input, target), or data "
    "set objects of PyTorch, TensorFlow or Hugging Face"
)


@dataclass(frozen=True)
class Returned:
    """Either arrays by name, `x_train` and so on, or data set objects by part."""

    arrays: Mapping[str, Any] | None = None
    objects: Mapping[int, Any] = field(default_factory=dict)
    #: Where the data names its classes.
    class_names: tuple[str, ...] = ()


def read_returned(returned: Any, faults: Faults) -> Returned:
    """What the function returned, by part."""
    objects = _objects(returned)
    if objects:
        return _in_memory(objects) or Returned(objects=objects)
    if isinstance(returned, Mapping):
        return Returned(arrays=_by_part(returned))
    if isinstance(returned, tuple) and len(returned) == 4:
        return Returned(arrays=dict(zip(_FOUR, returned, strict=True)))
    if isinstance(returned, tuple) and len(returned) == 2:
        if all(isinstance(pair, tuple) and len(pair) == 2 for pair in returned):
            return Returned(arrays=dict(zip(_FOUR, (*returned[0], *returned[1]), strict=True)))
        return Returned(arrays=dict(zip(_FOUR, returned, strict=False)))
    if not isinstance(returned, Iterable) or isinstance(returned, str | bytes):
        raise WrongData(f"the function returned {type(returned).__name__}; {_FORMS}")
    return Returned(arrays=stack_examples(returned, faults))


def _by_part(returned: Mapping[str, Any]) -> Mapping[str, Any]:
    """`{"train": (x, y), "test": (x, y)}` as arrays by name; other dictionaries as they are."""
    if any(key in NAMES for key in returned) or not returned or not all(_which(key) is not None for key in returned):
        return returned
    arrays: dict[str, Any] = {}
    for key, pair in returned.items():
        which = _which(key)
        if which is None or not isinstance(pair, tuple | list) or len(pair) != 2:
            return returned
        arrays[f"x_{PARTS[which]}"], arrays[f"y_{PARTS[which]}"] = pair
    return arrays


def _which(key: object) -> int | None:
    return PART_NAMES.get(key.lower()) if isinstance(key, str) else None


def _objects(returned: Any) -> dict[int, Any]:
    """Data set objects by part; empty if it is something else."""
    if kind_of(returned) is not None:
        return {TRAIN: returned}
    if isinstance(returned, tuple) and len(returned) in (2, 3) and all(kind_of(value) for value in returned):
        return dict(zip((TRAIN, TEST) if len(returned) == 2 else (TRAIN, VALIDATION, TEST), returned, strict=True))
    if not isinstance(returned, Mapping) or not returned or not all(kind_of(value) for value in returned.values()):
        return {}
    by_part: dict[int, Any] = {}
    for key, value in returned.items():
        which = _which(key)
        if which is None or which in by_part:
            raise WrongData(
                f"the function returned data sets called {', '.join(map(shown, returned))}; call "
                "them train, validation and test"
            )
        by_part[which] = value
    if TRAIN not in by_part:
        raise WrongData("the function returned no data set called 'train'")
    return by_part


def _in_memory(objects: Mapping[int, Any]) -> Returned | None:
    """The data sets as arrays, if each can be and fits."""
    read: dict[int, ArraysOf] = {}
    for which, value in objects.items():
        kind = kind_of(value)
        if kind not in ("tensorflow", "hugging-face"):
            return None
        arrays = (tensorflow_arrays if kind == "tensorflow" else hugging_face_arrays)(value)
        if arrays is None:
            return None
        read[which] = arrays
    given: dict[str, Any] = {}
    for which, arrays in read.items():
        for letter, named, unnamed in (("x", arrays.inputs, INPUT), ("y", arrays.targets, TARGET)):
            given[f"{letter}_{PARTS[which]}"] = named[unnamed] if [*named] == [unnamed] else dict(named)
    return Returned(arrays=given, class_names=read[TRAIN].class_names)


#: What Python needs in addition to the bytes of an example, roughly.
_EACH = 300


def stack_examples(examples: Iterable[Any], faults: Faults) -> Mapping[str, Any]:
    """Single examples as two arrays; those of another shape than most are faults."""
    images, labels, places = [], [], []
    size, most = 0, memory_budget(1 / 3)  # they are held twice more, as one array and as bytes
    for place, example in enumerate(examples):
        try:
            image, label = example
        except (TypeError, ValueError):
            raise WrongData(f"item {place} of what the function returned is not a pair of image and label") from None
        try:
            images.append(as_array(image))
            labels.append(as_array(label))
            places.append(place)
        except ValueError:
            del images[len(places) :], labels[len(places) :]
            faults.add("examples whose rows are not of one length", f"item {place}")
            continue
        size += images[-1].nbytes + labels[-1].nbytes + _EACH
        if size > most:
            raise WrongData(
                f"the first {place + 1:,} examples of what the function returned take "
                f"{bytes_text(size)}, more than a worker's share of the free memory, and more follow: end it "
                "sooner, or write the examples to files and name them as path:FOLDER"
            )
    kept = _alike("examples", [image.shape for image in images], places, faults)
    kinds: list[object] = ["words" if label.dtype.kind == "U" else "numbers" for label in labels]
    kept &= _alike("labels", [label.shape for label in labels], places, faults)
    kept &= _alike("labels", kinds, places, faults, what="kind")
    if not kept:
        more = f" that can be used{faults.because}" if faults.because else ""
        raise WrongData(f"the function returned no examples{more}")
    chosen = sorted(kept)
    return {"x_train": np.stack([images[k] for k in chosen]), "y_train": np.array([labels[k] for k in chosen])}


def _alike(noun: str, signs: Sequence[object], places: list[int], faults: Faults, *, what: str = "shape") -> set[int]:
    """Which of the examples have the sign that most have; the others are faults."""
    if not signs:
        return set()
    most = Counter(signs).most_common(1)[0][0]
    for place, sign in zip(places, signs, strict=True):
        if sign != most:
            faults.add(f"{noun} of another {what} than most ({most})", f"item {place}", f"{sign}")
    return {k for k, sign in enumerate(signs) if sign == most}

