"""A model of some hundred megabytes, in processes whose memory the kernel limits."""

from __future__ import annotations

import resource
from pathlib import Path

from torch import nn


def build(
    input_shape: tuple[int, int, int], classes: int, width: int = 4096, layers: int = 6, times: float = 0.0
) -> nn.Module:
    """Dense layers. With `times`, this process may have so many times the weights' bytes beyond what it has now."""
    channels, height, columns = input_shape
    weights = 4 * (layers * width * (width + 1) + width * (channels * height * columns + 1) + classes * (width + 1))
    if times:
        status = Path("/proc/self/status").read_text()
        now = 1024 * int(status.split("VmData:")[1].split()[0])
        limit = now + int(times * weights)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    hidden = [layer for _ in range(layers) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(
        nn.Flatten(), nn.Linear(channels * height * columns, width), nn.ReLU(), *hidden, nn.Linear(width, classes)
    )
