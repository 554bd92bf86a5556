"""A batch as a task of your own sees it, in the tensors of whichever engine trains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Batch:
    """Some examples: inputs and targets by name, tensors whose first axis counts the examples."""

    inputs: Mapping[str, Any]
    targets: Mapping[str, Any]

    @property
    def x(self) -> Any:
        """What the model takes: the only input, or all of them by name."""
        return next(iter(self.inputs.values())) if len(self.inputs) == 1 else dict(self.inputs)

    @property
    def y(self) -> Any:
        """The only target, or all of them by name."""
        return next(iter(self.targets.values())) if len(self.targets) == 1 else dict(self.targets)

    def __len__(self) -> int:
        return int(next(iter((self.targets or self.inputs).values())).shape[0])
