"""A user's model and its loss, tried before training: what every engine's trial refuses, with its error messages.

No framework here: an engine calls the model, and asks with what came out of it."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from velodrome.errors import BadRequest, UsersCodeFailed, VelodromeError
from velodrome.models.own import reason_of
from velodrome.tasks.examples import ExampleTask
from velodrome.tasks.own import OwnTask


class Trial:
    """What the trials of a model for a task have in common, whatever the engine."""

    def __init__(self, name: str, task: ExampleTask) -> None:
        self._name, self._task = name, task

    @contextmanager
    def _users_code(self, size: int, *, training: bool = False) -> Iterator[None]:
        """Around a call of the user's loss or model: what it raises becomes one sentence with the user's traceback."""
        try:
            yield
        except VelodromeError:
            raise
        except Exception as error:
            when, task = "train" if training else "evaluate", self._task
            what = f"--task {task.name!r}" if isinstance(task, OwnTask) else f"model {self._name!r}"
            raise UsersCodeFailed(
                f"{what} cannot {when} a first batch of {size} examples: {reason_of(error)}"
            ) from error

    def _check_shape(
        self, outputs: Any, is_tensor: Callable[[Any], bool], size: int, shape: tuple[int, ...], *,
        training: bool = False,
    ) -> None:
        """Refuse outputs for `size` examples that are no tensor with as many numbers as the target has (`shape`)."""
        when, needed = " in training" if training else "", (size, *shape)
        if not is_tensor(outputs):
            raise BadRequest(
                f"model {self._name!r} returns {type(outputs).__name__!r}{when}, and one tensor of shape {needed} is "
                f"needed for task {self._task.name!r}: return one, or name a task of your own"
            )
        returned = tuple(outputs.shape)
        if returned[:1] != (size,) or math.prod(returned) != math.prod(needed):
            alone = f" or {(size, 1)}" if not shape else ""
            raise BadRequest(
                f"model {self._name!r} answers with shape {returned} for {size} examples{when}; the target needs "
                f"{needed}{alone}"
            )

    def _check_first(self, loss: float, size: int, *, has_gradient: bool, no_gradient: str) -> None:
        """Refuse a first loss that is not finite, or has no gradient for the reason in the sentence `no_gradient`."""
        if not has_gradient:
            task = self._task
            own_loss = f"--task {task.name!r}: loss(){task.place('loss')}" if isinstance(task, OwnTask) else ""
            raise BadRequest(f"{own_loss or f'model {self._name!r}'} has no gradient: {no_gradient}")
        if not math.isfinite(loss):
            raise BadRequest(
                f"the loss of a first batch of {size} examples is {loss}: look for a division by zero, a logarithm "
                "of zero, or numbers in the data that are not finite"
            )


def saving_problem(folder: Path, try_in: Callable[[Path], str | None]) -> str | None:
    """What is wrong with a model that is saved and loaded again: what `try_in` returns for a new folder below `folder`,
    or the first sentence of what it raises; None if nothing is."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".saving-", dir=folder) as place:
        try:
            return try_in(Path(place))
        except Exception as error:
            if isinstance(error, OSError) and error.errno is not None:  # a full disk, no permission
                raise
            text = " ".join(str(error).split()) or type(error).__name__
            return text.partition(". ")[0].rstrip(".")[:300]
