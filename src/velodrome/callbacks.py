"""Callbacks that report figures of a script through `velodrome.log`: for Hugging Face Trainer, Lightning and Keras.

    trainer = transformers.Trainer(..., callbacks=[velodrome.callbacks.HuggingFace()])
    trainer = lightning.Trainer(..., callbacks=[velodrome.callbacks.Lightning()])
    model.fit(..., callbacks=[velodrome.callbacks.Keras()])

Outside a run they do nothing. A framework is imported when its callback is first asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any

from velodrome.figures import log, named

__all__ = ["HuggingFace", "Keras", "Lightning"]

#: What `log` has other meanings for.
_ARGUMENTS = ("", "step", "examples", "epoch", "split")

HuggingFace: Any
Lightning: Any
Keras: Any


def __getattr__(name: str) -> Any:
    makers = {"HuggingFace": _hugging_face, "Lightning": _lightning, "Keras": _keras}
    if name not in makers:
        raise AttributeError(f"module 'velodrome.callbacks' has no attribute {name!r}")
    return makers[name]()


def _numbers(values: Mapping[str, Any], *, prefix: str = "", without: tuple[str, ...] = ()) -> dict[str, Any]:
    """Those of some values that are numbers and begin with a prefix, by their names without it."""
    numbers: dict[str, Any] = {}
    for name, value in values.items():
        plain = name.removeprefix(prefix)
        if not name.startswith(prefix) or name.startswith(without) or plain in _ARGUMENTS:
            continue
        try:
            numbers[plain] = float(value)
        except (TypeError, ValueError):
            continue
    return numbers


def rows_of(batch: Any) -> int | None:
    """Examples of a batch: the length of the first tensor in it; None if there is none."""
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, list | tuple):
        return next((rows for part in batch if (rows := rows_of(part)) is not None), None)
    shape = getattr(batch, "shape", None)
    return int(shape[0]) if shape is not None and len(shape) > 0 else None


@cache
def _hugging_face() -> Any:
    base: Any = import_module("transformers").TrainerCallback

    class HuggingFace(base):  # type: ignore[misc]
        """Reports steps and examples of every process, and what the Trainer logs and evaluates in the first one."""

        #: What the Trainer logs beside figures.
        _NOT_FIGURES = ("epoch", "total_flos", "train_runtime", "train_samples_per_second", "train_steps_per_second")

        def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            log(step=state.global_step)

        def on_epoch_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            self._epoch = int(state.epoch or 0)
            self._left = _share(more.get("train_dataloader"), args.world_size)

        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            batch = args.train_batch_size * args.gradient_accumulation_steps
            # The last batch of an epoch may be smaller.
            examples = batch if self._left is None else min(batch, self._left)
            self._left = None if self._left is None else self._left - examples
            log(step=state.global_step, examples=examples, epoch=self._epoch)

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
            figures = _numbers(logs or {}, without=("eval_", "test_", *self._NOT_FIGURES))
            if state.is_world_process_zero and figures and "train_runtime" not in (logs or {}):
                log(epoch=getattr(self, "_epoch", None), **figures)

        def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **more: Any) -> None:
            if state.is_world_process_zero:
                without = tuple(f"eval_{name}" for name in ("runtime", "samples_per", "steps_per"))
                figures = _numbers(metrics or {}, prefix="eval_", without=without)
                log(epoch=getattr(self, "_epoch", None), split="validation", **figures)

    return HuggingFace


def _share(loader: Any, workers: int) -> int | None:
    """Examples of an epoch that one of so many processes trains on; None where the data has no length."""
    try:
        return -(-len(loader.dataset) // workers)
    except (AttributeError, TypeError):
        return None


@cache
def _lightning() -> Any:
    # Both names of the package may be installed, and a trainer takes callbacks of its own only.
    own = "pytorch_lightning" if "pytorch_lightning" in sys.modules else "lightning.pytorch"
    base: Any = import_module(own).Callback

    class Lightning(base):  # type: ignore[misc]
        """Reports steps and examples of every process, and what the module logs in the first one."""

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            log(step=trainer.global_step)

        def on_train_batch_end(
            self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
        ) -> None:
            loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
            log(step=trainer.global_step, examples=rows_of(batch), epoch=trainer.current_epoch,
                loss=None if loss is None else float(loss))

        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            if trainer.sanity_checking or not trainer.is_global_zero:
                return
            log(epoch=trainer.current_epoch, split="validation", **_of_part(trainer, "validation"))

        def on_test_end(self, trainer: Any, pl_module: Any) -> None:
            if trainer.is_global_zero:
                log(split="test", **_of_part(trainer, "test"))

    def _of_part(trainer: Any, split: str) -> dict[str, Any]:
        about = {name: named(name) for name in trainer.callback_metrics}
        return _numbers({about[name].own: value for name, value in trainer.callback_metrics.items()
                         if about[name].split == split})

    return Lightning


@cache
def _keras() -> Any:
    base: Any = import_module("keras").callbacks.Callback

    class Keras(base):  # type: ignore[misc]
        """Reports the epochs of `fit` and, after `evaluate`, figures of a test set.

        Args:
            examples: examples of an epoch that this process trains on, which Keras does not tell: without them
                throughput is unknown.
            chief: whether this process reports what all processes measured together; by default it does.
        """

        def __init__(self, examples: int | None = None, *, chief: bool = True) -> None:
            super().__init__()
            self._examples, self._chief = examples, chief
            self._step = 0
            self._fitting = False

        def on_train_begin(self, logs: Any = None) -> None:
            self._fitting = True
            log(step=self._step)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self._step += 1

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs = logs or {}
            figures = _numbers(logs, without=("val_",)) if self._chief else {}
            log(step=self._step, examples=self._examples, epoch=epoch, **figures)
            if self._chief and (held_out := _numbers(logs, prefix="val_")):
                log(epoch=epoch, split="validation", **held_out)

        def on_train_end(self, logs: Any = None) -> None:
            self._fitting = False

        def on_test_end(self, logs: Any = None) -> None:
            if self._chief and not self._fitting:
                log(split="test", **_numbers(logs or {}))

    return Keras
