"""The targets of loaded arrays as each task takes them, or a refusal that says how to fix it. No framework here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from velodrome.errors import BadRequest
from velodrome.job.job import Job

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from velodrome.data.examples import ExampleSet, Named

_PARTS = ("train", "validation", "test")


def as_classes(job: Job, data: ExampleSet) -> ExampleSet:
    """One whole number per example, from 0 up to, not including, the number of classes."""
    import numpy as np

    target = _only(job, data, "classification")
    if not target.is_whole:
        raise _misfit(job, f"its target {target.name!r} has fractions, which are not classes: add --task regression")
    if target.shape not in ((), (1,)):
        raise _misfit(job, f"its target {target.name!r} has the shape {target.shape}, and classification takes one "
                      "class per example: add --task multi-label, or name a task of your own")
    classes = data.classes
    for part, values in _values(data):
        if not len(values):
            continue
        if values.min() < 0 or (classes is not None and values.max() >= classes):
            raise _misfit(job, f"its {part} targets are from {values.min()} to {values.max()}, and {classes or 'the'} "
                          "classes are counted from 0")
    if classes is None:
        known = [int(values.max()) + 1 for _, values in _values(data) if len(values)]
        if not known:
            raise _misfit(job, "how many classes it has is not known: give its class names")
        classes = max(known)
    if classes < 2:
        raise _misfit(job, f"it has {classes} classes, and training needs two")
    return data.with_targets(_each(lambda array: array.reshape(len(array)).astype(np.int64)), classes=classes)


def as_numbers(job: Job, data: ExampleSet) -> ExampleSet:
    """One array of numbers with fractions; several targets become its columns."""
    import numpy as np

    def joined(targets: Named) -> dict[str, NDArray[Any]]:
        numbers = {name: _floats(array) for name, array in targets.items()}
        if len(numbers) == 1:
            return numbers
        return {"y": np.concatenate([array.reshape(len(array), -1) for array in numbers.values()], axis=1)}

    names = tuple(column.name for column in data.targets)
    fitted = data.with_targets(joined, classes=None, class_names=names if len(names) > 1 else data.class_names)
    for part, values in _values(fitted):
        if not np.isfinite(values).all():
            raise _misfit(job, f"{int((~np.isfinite(values)).sum()):,} of its {part} targets are not finite numbers: "
                          "remove or replace them")
    return fitted


def as_binary(job: Job, data: ExampleSet) -> ExampleSet:
    """One 0 or 1 per example."""
    target = _only(job, data, "binary")
    if target.shape not in ((), (1,)):
        raise _misfit(job, f"its target {target.name!r} has the shape {target.shape}, and binary takes one answer per "
                      "example: use --task multi-label")
    _refuse_others(job, data, "binary")
    return data.with_targets(_each(lambda array: _bits(array.reshape(len(array)))), classes=2)


def as_labels(job: Job, data: ExampleSet) -> ExampleSet:
    """A row of 0 and 1 per example; several targets become its columns."""
    import numpy as np

    _refuse_others(job, data, "multi-label")

    def joined(targets: Named) -> dict[str, NDArray[Any]]:
        name = next(iter(targets)) if len(targets) == 1 else "y"
        columns = [_bits(array).reshape(len(array), -1) for array in targets.values()]
        return {name: np.concatenate(columns, axis=1)}

    fitted = data.with_targets(joined)
    (target,) = fitted.targets
    names = tuple(column.name for column in data.targets) if len(data.targets) > 1 else data.class_names
    if target.shape == (1,):
        raise _misfit(job, "it has one label: use --task binary")
    return fitted.with_targets(lambda targets: targets, classes=target.shape[0],
                               class_names=names if len(names) == target.shape[0] else ())


def _misfit(job: Job, why: str) -> BadRequest:
    return BadRequest(f"--dataset {job.dataset!r}: {why}")


def _only(job: Job, data: ExampleSet, task: str) -> Any:
    if len(data.targets) != 1:
        names = ", ".join(repr(column.name) for column in data.targets) or "none"
        raise _misfit(job, f"{task} takes one target, and it has {names}: leave others out, or name a task of your own")
    return data.targets[0]


def _values(data: ExampleSet) -> list[tuple[str, NDArray[Any]]]:
    """The targets of every part that holds them, one array after the other."""
    parts = ((part, getattr(data, part)) for part in _PARTS)
    return [(name, array) for name, part in parts for array in part.targets.values()]


def _each(change: Callable[[NDArray[Any]], NDArray[Any]]) -> Callable[[Named], dict[str, NDArray[Any]]]:
    return lambda targets: {name: change(array) for name, array in targets.items()}


def _floats(array: NDArray[Any]) -> NDArray[Any]:
    """Float64 stays as it is; whole numbers and others become float32."""
    import numpy as np

    kept = array.dtype in (np.float32, np.float64)
    return np.asarray(array) if kept else np.asarray(array, np.float32)


def _bits(array: NDArray[Any]) -> NDArray[np.uint8]:
    import numpy as np

    return np.asarray(array, np.uint8)


def _refuse_others(job: Job, data: ExampleSet, task: str) -> None:
    """Refuse targets that are not all 0 or 1."""
    import numpy as np

    for part, values in _values(data):
        wrong = values[~np.isin(values, (0, 1))]
        if wrong.size:
            raise _misfit(job, f"{wrong.size:,} of its {part} targets are not 0 or 1, such as {wrong.flat[0]!s}, and "
                          f"{task} takes no others")
