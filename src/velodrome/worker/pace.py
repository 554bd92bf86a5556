"""How fast a process trains: seconds, examples and steps of the training phase alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Pace:
    """Seconds and examples of the training phase alone, with the first steps apart as warm-up."""

    warmup_steps: int
    seconds: float = 0.0
    examples: int = 0
    steps: int = 0
    warmup: dict[str, float] = field(default_factory=lambda: {"steps": 0, "examples": 0, "seconds": 0.0})

    def add(self, steps: int, examples: int, seconds: float) -> None:
        self.steps += steps
        self.examples += examples
        self.seconds += seconds
        if self.warmup["steps"] < self.warmup_steps:
            self.warmup = {"steps": self.steps, "examples": self.examples, "seconds": self.seconds}

    def fields(self) -> dict[str, Any]:
        """As the result event carries them."""
        return {"seconds": self.seconds, "examples": self.examples, "steps": self.steps, "warmup": self.warmup}
