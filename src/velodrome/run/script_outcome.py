"""What a script of the user's own adds to the result of a run, and what it did not report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from velodrome.analysis.unreported import untested
from velodrome.events.models import Pace, ResultEvent, Warmup
from velodrome.events.result import Throughput
from velodrome.spec.job import Job

#: Fields of a result that a script decides itself: nothing is known of them.
UNKNOWN = ("batch_size", "batch_scope", "batch_of_step", "optimizer", "learning_rate")


def pace_of_all(paces: Sequence[Pace]) -> Pace | None:
    """The pace of all processes together: their examples add up, and the slowest one decides how long it took."""
    counted = [pace for pace in paces if pace.examples] or list(paces)
    if not counted:
        return None
    warmup = Warmup(
        steps=max(pace.warmup.steps for pace in counted), examples=sum(pace.warmup.examples for pace in counted),
        seconds=max(pace.warmup.seconds for pace in counted),
    )
    return Pace(
        seconds=max(pace.seconds for pace in counted), examples=sum(pace.examples for pace in counted),
        steps=max(pace.steps for pace in counted), warmup=warmup,
    )


def of_script(job: Job, fields: dict[str, Any], final: ResultEvent | None, *, throughput: Throughput) -> dict[str, Any]:
    """The fields of a result without those that are not known of a script, and with what it did not report."""
    found = {name: value for name, value in fields.items() if name not in UNKNOWN}
    return found | {"script": job.script, "not_reported": list(_not_reported(fields, final, throughput))}


def _not_reported(fields: dict[str, Any], final: ResultEvent | None, throughput: Throughput) -> Iterator[str]:
    if not fields["history"]:
        yield "training: when it began, and how long it took without start-up and evaluation, is unknown"
    if throughput.examples_per_second is None:
        yield "examples: throughput is unknown"
    if final is None or final.steps is None:
        yield "steps: their number is unknown"
    if fields["test"] is None:
        yield untested(fields)
