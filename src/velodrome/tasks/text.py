"""Language modelling: rows of a text that are read side by side, words as examples, perplexity."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from velodrome.catalog.models import UNROLL, is_own, text_models, zoo_model
from velodrome.catalog.registry import strategy_of
from velodrome.data import catalogue
from velodrome.data.examples import Text
from velodrome.data.source import Description
from velodrome.errors import BadRequest
from velodrome.job.job import Job
from velodrome.job.resolve import batch_of_step, replicas_of
from velodrome.tasks.base import LOSS, Counts, Metric, Task, mean_loss
from velodrome.tasks.schedule import TextSchedule

#: The exponential of more would overflow.
_LARGEST_LOSS = 700.0


class LanguageModel(Task):
    """Predicts the next word of a text."""

    name = "language-model"
    unit = "words"
    metrics = (Metric("perplexity", "less", ",.2f", margin=0.05, relative_margin=True), LOSS)
    row_field = "unroll"

    def measure(self, counts: Mapping[str, Any]) -> dict[str, float | None]:
        loss = mean_loss(counts)
        return {"perplexity": None if loss is None else math.exp(min(loss, _LARGEST_LOSS)), "loss": loss}

    # Readers of earlier versions expect the names of classification as well.

    def fields(self, counts: Counts) -> dict[str, Any]:
        return {"correct": 0, **super().fields(counts)}

    def summary(self, counts: Mapping[str, Any] | None) -> dict[str, Any] | None:
        scores = super().summary(counts)
        return scores and {"perplexity": scores["perplexity"], "accuracy": None, "correct": None, **scores}

    def history(self, **parts: Mapping[str, Any]) -> dict[str, Any]:
        return {**super().history(**parts), **{f"{part}_accuracy": None for part in parts}}

    def recorded(self, entry: Mapping[str, Any], part: str) -> dict[str, float | None]:
        """Checkpoints of earlier versions hold the loss alone."""
        loss = entry.get(f"{part}_loss")
        return self.measured({"total": 0 if loss is None else 1, "loss_sum": loss})

    def check(self, job: Job, about: Description) -> None:
        if is_own(job.model) or zoo_model(job.model).takes != "text":
            raise BadRequest(
                f"--task language-model: model {job.model!r} does not read text: choose {text_models()}"
            )
        if about.kind != "text":
            raise BadRequest(
                f"--model {job.model!r} reads text, and {job.dataset!r} is {about.kind}: choose a text, such as ptb"
            )
        if job.transform is not None:
            raise BadRequest(f"--transform {job.transform!r}: {job.dataset!r} is text, which is not transformed")
        if job.pixels != "auto":
            raise BadRequest(f"--pixels {job.pixels!r}: {job.dataset!r} is text and has no pixels; leave it out")
        if about.train is not None:
            check_rows(job, about.train)

    def load(self, job: Job, rank: int) -> Text:
        text = catalogue.load_text(job.dataset, bad_data=job.bad_data)
        check_rows(job, len(text.train))
        return text

    def schedule(self, job: Job, data: Text, epoch: int) -> TextSchedule:
        """Every epoch reads the same rows."""
        strategy = strategy_of(job)
        batch, unroll = batch_of_step(job, strategy), UNROLL.of(job)
        if strategy.synchronous:
            return TextSchedule(len(data.train), batch, unroll, replicas_of(job))
        # Workers that do not wait for one another have a batch of rows each, from the first word to the last.
        groups, copies = (1, job.workers) if job.sharding == "off" else (job.workers, 1)
        return TextSchedule(len(data.train), batch, unroll, groups=groups, copies=copies)

    def schedule_warnings(self, job: Job, data: Text) -> list[str]:
        epoch = self.schedule(job, data, 1)
        left_out = len(data.train) - 1 - epoch.examples(0, epoch.steps) // epoch.copies
        if not left_out:
            return []
        return [
            f"{left_out:,} of {len(data.train):,} words are left out in every epoch: {epoch.batch * epoch.groups} rows "
            f"of equal length, read {UNROLL.of(job)} words at a time, do not hold them"
        ]


def check_rows(job: Job, words: int) -> None:
    """Refuse a resolved job whose text is too short for one step."""
    strategy = strategy_of(job)
    whole = job.sharding == "off" and not strategy.synchronous
    if job.sharding in ("file", "off") and not whole:
        raise BadRequest(f"--sharding {job.sharding}: a text is divided by its rows; leave sharding out")
    rows = batch_of_step(job, strategy) * (1 if strategy.synchronous or whole else job.workers)
    if words // rows <= UNROLL.of(job):
        raise BadRequest(
            f"--batch-size {job.batch_size}: {rows:,} rows of more than {UNROLL.of(job)} words need more than the "
            f"{words:,} words of {job.dataset}; choose a smaller batch, a smaller --unroll or fewer workers"
        )
