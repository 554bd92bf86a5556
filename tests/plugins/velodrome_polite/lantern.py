"""The training side of `lantern`: PyTorch's, which reports how brightly it shines."""

from __future__ import annotations

from velodrome.engines.torch import worker
from velodrome.training.context import Context
from velodrome_polite import SHINE


def train(context: Context) -> None:
    context.events.emit("warning", message=f"shines at {SHINE.of(context.job)}")
    worker.train(context)
