"""The data of a script of the user's own: the script reads it, and nothing is known of it."""

from __future__ import annotations

from dataclasses import dataclass

from velodrome.data.base import Description, Progress


@dataclass(frozen=True)
class ScriptData:
    """Stands where a job names a data set."""

    name: str

    def describe(self, validation: float) -> Description:
        return Description(
            self.name, "what the script reads", "", "", train=None, validation=None, test=None, input_shape=None,
            classes=None,
        )

    def prepare(self, progress: Progress | None) -> None:
        """Nothing to do."""
