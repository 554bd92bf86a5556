"""Data that the user's own function returns: `module:function`. Only loading calls it, so only workers run it."""

from __future__ import annotations

import importlib
import inspect
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from velodrome.data.bad_data import Faults, refuse, summaries
from velodrome.data.base import BadData, Description, Progress
from velodrome.data.own.standard_library import refuse_standard, refuse_standard_function
from velodrome.errors import BadRequest
from velodrome.machine import process_memory
from velodrome.printable import bytes_text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from velodrome.data.images.arrays import ArrayExamples
    from velodrome.data.splits import Splits

_FOUR = ("x_train", "y_train", "x_test", "y_test")
#: What Python needs in addition to the bytes of an example, roughly.
_EACH = 300


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
            raise _no_module(self.name, top)

    def load(self, seed: int, validation: float) -> Splits:
        import numpy as np

        from velodrome.data.images.arrays import check_arrays
        from velodrome.data.images.cached_set import divide, large_enough
        from velodrome.data.remarks import fingerprints, with_remarks
        from velodrome.data.splits import Part, Splits

        # Every worker calls it for itself, and what they get must be the same.
        random.seed(seed)
        np.random.seed(seed)
        returned = _function(self.name)()
        faults = Faults()
        examples = check_arrays(self.name, _as_arrays(self.name, returned, faults), faults)
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
        train, validated, test = (Part(images[rows[chosen]], labels[chosen]) for chosen in division)
        splits = Splits(
            self.name, train, validated, test, classes=int(trained.sum()), scale=1 / 255,
            class_names=tuple(name for name, any_ in zip(names, trained, strict=True) if any_),
            notes=(*summaries(faults.found()), *examples.notes),
        )
        return with_remarks(splits, [fingerprints(part.images) for part in (train, validated, test)])


def _converted(examples: ArrayExamples, faults: Faults) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """All images as bytes, and the rows of those that can be used."""
    import numpy as np

    # They are held a second time when they are divided.
    needed, free = 2 * examples.bytes, process_memory()
    if needed > free:
        raise BadRequest(
            f"--dataset {examples.name!r}: {len(examples):,} images take {bytes_text(needed)} of memory in addition to "
            f"what the function returned, and {bytes_text(free)} are free: return fewer or smaller ones"
        )
    images = np.empty((len(examples), *examples.shape), np.uint8)
    filled = 0

    def take(window: NDArray[np.uint8]) -> None:
        nonlocal filled
        images[filled : filled + len(window)] = window
        filled += len(window)

    return images, examples.convert(take, faults)


def _no_module(name: str, module: str) -> BadRequest:
    return BadRequest(f"--dataset {name!r}: no module named {module!r} in {Path.cwd()} or on PYTHONPATH")


def _function(name: str) -> Callable[[], Any]:
    module, _, function = name.partition(":")
    refuse_standard("--dataset", name, module)
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and (module == error.name or module.startswith(f"{error.name}.")):
            raise _no_module(name, error.name) from None
        raise
    for part in function.split("."):
        if not hasattr(found, part):
            raise BadRequest(f"--dataset {name!r}: module {module!r} has no {part!r}")
        found = getattr(found, part)
    if not callable(found):
        raise BadRequest(f"--dataset {name!r}: {function!r} is not a function")
    refuse_standard_function("--dataset", name, found)
    called: Callable[[], Any] = found
    try:
        inspect.signature(called).bind()
    except ValueError:
        pass  # nothing is known of its arguments
    except TypeError as error:
        raise BadRequest(f"--dataset {name!r}: {function!r} is called without arguments: {error}") from None
    return called


def _as_arrays(name: str, returned: Any, faults: Faults) -> Mapping[str, Any]:
    """Four arrays, two pairs of them, a mapping, or single examples."""
    if isinstance(returned, Mapping):
        return returned
    if isinstance(returned, tuple) and len(returned) == 4:
        return dict(zip(_FOUR, returned, strict=True))
    if isinstance(returned, tuple) and len(returned) == 2:
        if all(isinstance(pair, tuple) and len(pair) == 2 for pair in returned):
            return dict(zip(_FOUR, (*returned[0], *returned[1]), strict=True))
        return dict(zip(_FOUR, returned, strict=False))
    if not isinstance(returned, Iterable) or isinstance(returned, str | bytes):
        raise BadRequest(
            f"--dataset {name!r}: the function returned {type(returned).__name__}; return x_train, y_train, x_test, "
            "y_test, a dictionary with these names, or an iterable of (image, label)"
        )
    return _gathered(name, returned, faults)


def _gathered(name: str, examples: Iterable[Any], faults: Faults) -> Mapping[str, Any]:
    """Single examples as two arrays; those of another shape than most are faults."""
    import numpy as np

    from velodrome.data.images.arrays import as_array

    images, labels, places = [], [], []
    size, most = 0, _most_bytes()
    for place, example in enumerate(examples):
        try:
            image, label = example
        except (TypeError, ValueError):
            raise BadRequest(
                f"--dataset {name!r}: item {place} of what the function returned is no pair of image and label"
            ) from None
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
            raise BadRequest(
                f"--dataset {name!r}: the first {place + 1:,} examples of what the function returned take "
                f"{bytes_text(size)}, more than a worker's share of the free memory, and more follow: end it "
                "sooner, or write the examples to files and name them as path:FOLDER"
            )
    kept = _alike("examples", [image.shape for image in images], places, faults)
    kinds: list[object] = ["words" if label.dtype.kind == "U" else "numbers" for label in labels]
    kept &= _alike("labels", [label.shape for label in labels], places, faults)
    kept &= _alike("labels", kinds, places, faults, what="kind")
    if not kept:
        wrong = "; ".join(map(str, faults.found()))
        more = f" that can be used: {wrong}" if wrong else ""
        raise BadRequest(f"--dataset {name!r}: the function returned no examples{more}")
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


def _most_bytes() -> int:
    """What single examples may take: they are held twice more, as one array and as bytes."""
    from velodrome.data.budget import memory_budget

    return memory_budget(1 / 3)
