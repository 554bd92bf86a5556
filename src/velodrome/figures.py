"""`velodrome.log`: figures that a script of the user reports while it trains. Standard library only.

Outside a run nobody listens, and a call does nothing. In a run, `worker/script.py` listens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

Split = Literal["train", "validation", "test"]
SPLITS: tuple[str, ...] = get_args(Split)

#: Receives split, step, examples, epoch and the other figures of a call, as plain numbers.
Listener = Callable[[str, int | None, int | None, int | None, Mapping[str, float]], None]

_listener: Listener | None = None


def log(
    step: int | None = None,
    examples: int | None = None,
    loss: Any = None,
    accuracy: Any = None,
    *,
    epoch: int | None = None,
    split: Split = "train",
    **others: Any,
) -> None:
    """Report figures of a script that `velodrome train --script` runs; does nothing outside a run.

    Args:
        step: training steps that this process has done so far; 0, before the first one, marks where training begins.
        examples: examples that this process has trained on since its previous call. Velodrome adds up the processes:
            where only one of them reports, it reports for all. With ``split``, the examples that were evaluated.
        loss: a number, or a tensor of one element.
        accuracy: between 0 and 1.
        epoch: the epoch that the figures are of.
        split: what they were measured on: ``train``, ``validation`` or ``test``.
        others: further figures by name.
    """
    if split not in SPLITS:
        raise ValueError(f"velodrome.log: split {split!r} is unknown: choose one of {', '.join(SPLITS)}")
    counts = {"step": step, "examples": examples, "epoch": epoch}
    whole = {name: None if value is None else _count(name, value) for name, value in counts.items()}
    figures = {"loss": loss, "accuracy": accuracy, **others}
    numbers = {name: _number(name, value) for name, value in figures.items() if value is not None}
    if _listener is not None:
        _listener(split, whole["step"], whole["examples"], whole["epoch"], numbers)


def listen(listener: Listener | None) -> None:
    """Pass every call of `log` in this process to a function from now on; None for nobody."""
    global _listener
    _listener = listener


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        kind = type(value).__name__
        raise TypeError(f"velodrome.log: {name} must be a number or a tensor of one element, not {kind!r}") from None


def _count(name: str, value: Any) -> int:
    number = _number(name, value)
    if not number >= 0 or number != int(number):
        raise ValueError(f"velodrome.log: {name} {number:g} must be a whole number of at least 0")
    return int(number)
