"""Classification of images and of anything else: examples like those of other tasks."""

from __future__ import annotations

from velodrome.engines.torch.tasks.arrays import TASK

__all__ = ["TASK"]
