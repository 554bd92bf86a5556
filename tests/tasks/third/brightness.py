"""A third task, as somebody would add it: predict the mean brightness of an image. The framework-free side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from velodrome.catalog.registry import strategy_of
from velodrome.data import catalogue
from velodrome.errors import BadRequest
from velodrome.job.job import Job
from velodrome.job.resolve import batch_of_step
from velodrome.tasks.base import LOSS, Metric, Steps, Task, mean_loss


class Brightness(Task):
    """Counts absolute errors, of which less is better."""

    name = "brightness"
    metrics = (Metric("error", "less", ".5f", margin=0.001), LOSS)
    counted = ("absolute",)

    def measure(self, counts: Mapping[str, Any]) -> dict[str, float | None]:
        return {"error": float(counts["absolute"] / counts["total"]), "loss": mean_loss(counts)}

    def check(self, job: Job, about: Any) -> None:
        if about.kind != "images":
            raise BadRequest(f"--dataset {job.dataset!r} has no brightness: choose images, such as digits")

    def load(self, job: Job, rank: int) -> Any:
        return catalogue.load(job.dataset, seed=job.seed, validation=job.validation, bad_data=job.bad_data)

    def schedule(self, job: Job, data: Any, epoch: int) -> Steps:
        from velodrome.tasks.schedule import by_data

        return by_data(len(data.train), batch_of_step(job, strategy_of(job)), job.workers, job.seed, epoch)

    def module(self, engine: str) -> str:
        return f"brightness_{engine}"
