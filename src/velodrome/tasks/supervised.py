"""Tasks with targets: classes, yes or no once or several times for every example, or numbers.

A model of binary and multi-label classification returns one logit per answer; an answer is yes where its logit is above
0. Regression learns by the mean squared error. No framework here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from velodrome.data.examples import ExampleSet, Named
from velodrome.data.split import PARTS
from velodrome.errors import BadRequest
from velodrome.job.job import Job
from velodrome.tasks.base import LOSS, Metric, finite, mean_loss
from velodrome.tasks.correctness_bits import fingerprint
from velodrome.tasks.examples import ExampleTask


def roc_auc(labels: NDArray[Any], scores: NDArray[np.float64]) -> float | None:
    """The share of pairs of a positive and a negative example that scores put in the right order; a tie is half a pair.

    None where only one of both occurs, or a score is not a number.
    """
    truth = np.asarray(labels, np.bool_)
    positives = int(truth.sum())
    negatives = len(truth) - positives
    if not positives or not negatives or np.isnan(scores).any():
        return None
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    # Twice the mean rank of each distinct score: whole numbers, so that nothing is rounded before the division.
    ends = np.cumsum(counts)
    twice_rank = 2 * ends - counts + 1
    twice = int(twice_rank[place.ravel()][truth].sum())
    return (twice - positives * (positives + 1)) / (2 * positives * negatives)


ACCURACY = Metric("accuracy", "more", ".4f", margin=0.01, fraction=True)


class Classification(ExampleTask):
    """Counts how many examples were classified correctly."""

    name = "classification"
    side = "arrays"
    metrics = (ACCURACY, LOSS)
    counted = ("correct",)

    def measure(self, counts: Mapping[str, Any]) -> dict[str, float | None]:
        return {"accuracy": float(counts["correct"] / counts["total"]), "loss": mean_loss(counts)}

    def amount(self, counts: Mapping[str, Any]) -> str:
        correct, total = counts.get("correct"), counts.get("total")
        return super().amount(counts) if correct is None or total is None else f"{correct:,} of {total:,}"

    def fit(self, job: Job, data: ExampleSet) -> ExampleSet:
        return as_classes(job, data)

    def outputs(self, data: ExampleSet) -> int:
        return data.class_count

    def classifies_images(self, data: ExampleSet) -> bool:
        return data.kind == "images"

    def class_names(self, data: ExampleSet) -> Sequence[str]:
        return data.class_names

    def test_fingerprint(self, data: ExampleSet) -> str | None:
        return fingerprint_of(data)


def fingerprint_of(data: ExampleSet) -> str | None:
    """Equal for equal test sets; None where their rows are computed when they are asked for."""
    test = data.test
    if not test.inputs or len(test.targets) != 1:
        return None
    return fingerprint(next(iter(test.inputs.values())), next(iter(test.targets.values())))


PRECISION = Metric("precision", "more", ".4f")
RECALL = Metric("recall", "more", ".4f")
F1 = Metric("f1", "more", ".4f", margin=0.01)
ROC_AUC = Metric("roc_auc", "more", ".4f", margin=0.01)


class _Labels(ExampleTask):
    """What both have in common: counts of answers, over all labels, and areas under the ROC curve.

    `correct` counts examples whose answers are all right. Precision, recall and F1 are of the sums over all labels
    (micro average), 0 where their denominator is. The area under the ROC curve is exact: it is computed from the
    scores of all examples of an evaluation, and averaged over the labels that have both answers (macro average).
    Training, whose scores are not of one model, has none.
    """

    counted = ("correct", "true_positives", "false_positives", "false_negatives", "auc_sum", "auc_labels")
    side = "arrays"
    scored: ClassVar[bool] = True

    def measure(self, counts: Mapping[str, Any]) -> dict[str, float | None]:
        hits, false_alarms, misses = (counts[name] for name in self.counted[1:4])
        labels, area = counts.get("auc_labels") or 0, counts.get("auc_sum")
        values: dict[str, float | None] = {
            "accuracy": float(counts["correct"] / counts["total"]),
            "precision": _share(hits, hits + false_alarms),
            "recall": _share(hits, hits + misses),
            "f1": _share(2 * hits, 2 * hits + false_alarms + misses),
            "roc_auc": float(area / labels) if labels and area is not None else None,
            "loss": mean_loss(counts),
        }
        return {metric.name: values[metric.name] for metric in self.metrics}

    def amount(self, counts: Mapping[str, Any]) -> str:
        correct, total = counts.get("correct"), counts.get("total")
        return super().amount(counts) if correct is None or total is None else f"{correct:,} of {total:,} right"

    def count_scores(self, data: ExampleSet, part: str, scores: NDArray[np.float64]) -> Mapping[str, float]:
        chosen = getattr(data, part)
        targets = chosen.targets or chosen.gather(np.arange(len(chosen), dtype=np.int64))[1]
        (labels,) = targets.values()
        columns = zip(labels.reshape(len(labels), -1).T, scores.reshape(len(labels), -1).T, strict=True)
        areas = [area for truth, score in columns if (area := roc_auc(truth, score)) is not None]
        return {"auc_sum": float(sum(areas)), "auc_labels": len(areas)}

    def test_fingerprint(self, data: ExampleSet) -> str | None:
        return fingerprint_of(data)


class Binary(_Labels):
    """One yes or no per example."""

    name = "binary"
    metrics = (ACCURACY, PRECISION, RECALL, F1, ROC_AUC, LOSS)

    def fit(self, job: Job, data: ExampleSet) -> ExampleSet:
        return as_binary(job, data)

    def outputs(self, data: ExampleSet) -> int:
        return 1


class MultiLabel(_Labels):
    """Several yes or no per example; `accuracy` is of examples whose labels are all right."""

    name = "multi-label"
    metrics = (F1, PRECISION, RECALL, ROC_AUC, ACCURACY, LOSS)

    def fit(self, job: Job, data: ExampleSet) -> ExampleSet:
        return as_labels(job, data)

    def outputs(self, data: ExampleSet) -> int:
        return data.targets[0].shape[0]

    def class_names(self, data: ExampleSet) -> Sequence[str]:
        return data.class_names


def _share(part: float, whole: float) -> float:
    return float(part / whole) if whole else 0.0


#: Rows that are read at a time where they are computed.
_ROWS = 1024


class Regression(ExampleTask):
    """Counts errors of the predicted numbers; those of an example with several are averaged over them.

    R² compares the squared errors with those of the constant prediction that is best for the part: the mean of its
    targets, number by number. `deviations` are the squares of that comparison, counted around that mean, because
    the difference of two large sums would lose them. Of several numbers per example, R² weighs each by its variance.
    """

    name = "regression"
    side = "arrays"
    metrics = (
        Metric("mae", "less", ".4g", margin=0.05, relative_margin=True), Metric("rmse", "less", ".4g"),
        Metric("r2", "more", ".4f"), LOSS,
    )
    counted = ("absolute_errors", "squared_errors", "deviations")

    def measure(self, counts: Mapping[str, Any]) -> dict[str, float | None]:
        absolute, squared, deviations = (finite(counts[name]) for name in self.counted)
        total = counts["total"]
        return {
            "mae": None if absolute is None else absolute / total,
            "rmse": None if squared is None else math.sqrt(squared / total),
            "r2": None if squared is None or not deviations else 1 - squared / deviations,
            "loss": mean_loss(counts),
        }

    def fit(self, job: Job, data: ExampleSet) -> ExampleSet:
        return as_numbers(job, data)

    def outputs(self, data: ExampleSet) -> int:
        return math.prod(data.targets[0].shape)

    def centre(self, data: ExampleSet, part: str) -> NDArray[np.float64]:
        """What `deviations` of a part are counted from: the mean of its targets, of the shape of one example's.

        Not a number for training rows that are computed one by one: their R² is not known.
        """
        examples = getattr(data, part)
        if examples.targets:
            (values,) = examples.targets.values()
            return np.zeros(values.shape[1:]) if not len(values) else np.mean(values, axis=0, dtype=np.float64)
        shape = examples.target_fields[0].shape
        if part == "train":  # rows that are computed: reading all of them would take as long as an epoch
            return np.full(shape, np.nan)
        total = np.zeros(shape)
        for first in range(0, len(examples), _ROWS):
            _, targets = examples.gather(np.arange(first, min(first + _ROWS, len(examples)), dtype=np.int64))
            total += sum(values.sum(axis=0, dtype=np.float64) for values in targets.values())
        return total / max(1, len(examples))


def as_classes(job: Job, data: ExampleSet) -> ExampleSet:
    """One whole number per example, from 0 up to, not including, the number of classes."""
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
        raise _misfit(job, f"it has {classes} classes, but training needs two")
    return data.with_targets(_each(lambda array: array.reshape(len(array)).astype(np.int64)), classes=classes)


def as_numbers(job: Job, data: ExampleSet) -> ExampleSet:
    """One array of numbers with fractions; several targets become its columns."""
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
    return [(name, array) for name, part in zip(PARTS, data.parts, strict=True) for array in part.targets.values()]


def _each(change: Callable[[NDArray[Any]], NDArray[Any]]) -> Callable[[Named], dict[str, NDArray[Any]]]:
    return lambda targets: {name: change(array) for name, array in targets.items()}


def _floats(array: NDArray[Any]) -> NDArray[Any]:
    """Float64 stays as it is; whole numbers and others become float32."""
    kept = array.dtype in (np.float32, np.float64)
    return np.asarray(array) if kept else np.asarray(array, np.float32)


def _bits(array: NDArray[Any]) -> NDArray[np.uint8]:
    return np.asarray(array, np.uint8)


def _refuse_others(job: Job, data: ExampleSet, task: str) -> None:
    """Refuse targets that are not all 0 or 1."""
    for part, values in _values(data):
        wrong = values[~np.isin(values, (0, 1))]
        if wrong.size:
            raise _misfit(job, f"{wrong.size:,} of its {part} targets are not 0 or 1, such as {wrong.flat[0]!s}, and "
                          f"{task} takes no others")
