"""Hugging Face Accelerate: what it offers. No framework here; the training side is `engines/accelerate.py`."""

from __future__ import annotations

from velodrome.catalog.base import Engine, Need
from velodrome.catalog.engines.torch import ENGINE as TORCH
from velodrome.catalog.engines.torch import wrapped_strategies

ENGINE = Engine(
    name="accelerate",
    description="Hugging Face Accelerate around PyTorch",
    strategies=wrapped_strategies("Accelerator.prepare and backward of Accelerate", "Accelerate"),
    worker="velodrome.engines.accelerate",
    memory_bytes=350 * 2**20,
    needs=(Need("accelerate", 'pip install "velodrome[accelerate]"'),),
    environment=TORCH.environment,
    packages=("accelerate", "torch"),
    tasks=TORCH.tasks,
    tasks_of="torch",
)
