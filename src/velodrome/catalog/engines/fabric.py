"""Lightning Fabric: what it offers. Imports no framework; the training side is `velodrome/engines/fabric.py`."""

from __future__ import annotations

from velodrome.catalog.base import Engine, Need
from velodrome.catalog.engines.torch import ENGINE as TORCH
from velodrome.catalog.engines.torch import wrapped_strategies

ENGINE = Engine(
    name="fabric",
    description="Lightning Fabric around PyTorch",
    strategies=wrapped_strategies("setup_module, setup_optimizers and backward of Fabric", "Fabric"),
    worker="velodrome.engines.fabric",
    memory_bytes=350 * 2**20,
    needs=(Need("lightning_fabric", 'pip install "velodrome[fabric]"'),),
    environment=TORCH.environment,
    packages=("lightning-fabric", "torch"),
    tasks=TORCH.tasks,
    tasks_of="torch",
)
