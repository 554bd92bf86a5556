"""Classification, binary and multi-label classification: one of several classes, or yes and no, for every example.

A model of the last two returns one logit per answer; an answer is yes where its logit is above 0. No framework here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from velodrome.job.job import Job
from velodrome.tasks.base import LOSS, Metric, mean_loss
from velodrome.tasks.examples import ExampleTask
from velodrome.tasks.targets import as_binary, as_classes, as_labels

if TYPE_CHECKING:
    from velodrome.data.examples import ExampleSet

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

    def class_names(self, data: ExampleSet) -> Sequence[str]:
        return data.class_names

    def test_fingerprint(self, data: ExampleSet) -> str | None:
        return fingerprint_of(data)


def fingerprint_of(data: ExampleSet) -> str | None:
    """Equal for equal test sets; None where their rows are computed when they are asked for."""
    from velodrome.tasks.correctness_bits import fingerprint

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
        found: dict[str, float | None] = {
            "accuracy": float(counts["correct"] / counts["total"]),
            "precision": _share(hits, hits + false_alarms),
            "recall": _share(hits, hits + misses),
            "f1": _share(2 * hits, 2 * hits + false_alarms + misses),
            "roc_auc": float(area / labels) if labels and area is not None else None,
            "loss": mean_loss(counts),
        }
        return {metric.name: found[metric.name] for metric in self.metrics}

    def amount(self, counts: Mapping[str, Any]) -> str:
        correct, total = counts.get("correct"), counts.get("total")
        return super().amount(counts) if correct is None or total is None else f"{correct:,} of {total:,} right"

    def count_scores(self, data: ExampleSet, part: str, scores: NDArray[np.float64]) -> Mapping[str, float]:
        import numpy as np


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
        return as_binary(job, data.as_arrays())

    def outputs(self, data: ExampleSet) -> int:
        return 1


class MultiLabel(_Labels):
    """Several yes or no per example; `accuracy` is of examples whose labels are all right."""

    name = "multi-label"
    metrics = (F1, PRECISION, RECALL, ROC_AUC, ACCURACY, LOSS)

    def fit(self, job: Job, data: ExampleSet) -> ExampleSet:
        return as_labels(job, data.as_arrays())

    def outputs(self, data: ExampleSet) -> int:
        return data.targets[0].shape[0]

    def class_names(self, data: ExampleSet) -> Sequence[str]:
        return data.class_names


def _share(part: float, whole: float) -> float:
    return float(part / whole) if whole else 0.0
