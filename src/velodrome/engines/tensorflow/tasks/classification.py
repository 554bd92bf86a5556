"""Classification under TensorFlow: its side is that of all tasks on examples."""

from __future__ import annotations

from velodrome.engines.tensorflow.tasks.arrays import TASK

__all__ = ["TASK"]
