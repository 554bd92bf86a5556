"""Classification: one of several classes for every example, accuracy. No framework here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from velodrome.job.job import Job
from velodrome.tasks.base import LOSS, Metric, mean_loss
from velodrome.tasks.examples import ExampleTask
from velodrome.tasks.targets import as_classes

if TYPE_CHECKING:
    from velodrome.data.examples import ExampleSet

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
    from velodrome.tasks.answers import fingerprint

    test = data.test
    if not test.inputs or len(test.targets) != 1:
        return None
    return fingerprint(next(iter(test.inputs.values())), next(iter(test.targets.values())))
