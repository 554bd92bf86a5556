"""`velodrome.log`: figures that a script of the user reports while it trains, and the names that people give them.
Standard library only.

Outside a run nobody listens, and a call does nothing. In a run, `training/script.py` listens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

Split = Literal["train", "validation", "test"]
SPLITS: tuple[str, ...] = get_args(Split)

#: Receives split, step, examples, epoch and the other figures of a call, as plain numbers.
Listener = Callable[[str, int | None, int | None, int | None, Mapping[str, float]], None]

#: What a name may begin or end with, and the split that it stands for.
_SPLIT_WORDS = {
    "train": "train", "training": "train", "val": "validation", "valid": "validation", "validation": "validation",
    "dev": "validation", "eval": "validation", "test": "test",
}
#: Names of accuracy and loss; any other figure keeps its own.
_SYNONYMS = {
    **dict.fromkeys(("accuracy", "acc", "acc1", "acc_1", "top1", "top_1", "top1_acc", "top_1_acc", "acc_top1",
                     "top1_accuracy", "top_1_accuracy", "accuracy_top1", "prec1", "prec_1", "binary_accuracy",
                     "categorical_accuracy", "sparse_categorical_accuracy"), "accuracy"),
    **dict.fromkeys(("loss", "avg_loss", "mean_loss", "running_loss", "epoch_loss"), "loss"),
}
_PERCENT_WORDS = ("percent", "pct")
#: An accuracy above this is in per cent; rounding makes none of a fraction.
_MOST_OF_FRACTION = 1.001
#: Figures other than accuracy of which less is better: one of these words in the name.
_LESS = frozenset(
    {"loss", "error", "err", "rmse", "mse", "mae", "nll", "perplexity", "ppl", "wer", "cer", "bpc", "fid", "distance"}
)

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
        accuracy: between 0 and 1; above 1 it is read as per cent.
        epoch: the epoch that the figures are of.
        split: what they were measured on: ``train``, ``validation`` or ``test``.
        others: further figures by name. A name such as ``val_acc`` or ``test_loss`` states the split as well;
            ``total_epochs`` and ``total_steps`` are how many there will be.
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
        return float(value.detach() if hasattr(value, "detach") else value)
    except (TypeError, ValueError):
        kind = type(value).__name__
        raise TypeError(f"velodrome.log: {name} must be a number or a tensor of one element, not {kind!r}") from None


def _count(name: str, value: Any) -> int:
    number = _number(name, value)
    if not number >= 0 or number != int(number):
        raise ValueError(f"velodrome.log: {name} {number:g} must be a whole number of at least 0")
    return int(number)


@dataclass(frozen=True)
class Named:
    """What a name stands for: `val_acc` is `accuracy` of the split `validation`."""

    #: None where the name does not tell.
    split: str | None
    #: `accuracy`, `loss`, or the script's own name without the split.
    metric: str
    own: str
    percent: bool = False


def named(name: str) -> Named:
    """Take a name apart: words such as `val` before or after it are the split, `percent` after it the unit."""
    words = [word for word in re.split(r"[\W_]+", name) if word]
    percent = len(words) > 1 and words[-1].lower() in _PERCENT_WORDS
    words = words[:-1] if percent else words
    split = None
    if len(words) > 1:
        for place in (0, -1):
            if split is None and (split := _SPLIT_WORDS.get(words[place].lower())) is not None:
                del words[place]
    own = "_".join(words) if split or percent else name
    return Named(split, _SYNONYMS.get("_".join(words).lower(), own), own, percent)


def less_is_better(name: str) -> bool:
    """Whether a figure of this name is the better the smaller it is, as errors and losses are."""
    return not _LESS.isdisjoint(re.split(r"[\W_]+", name.lower()))


class Names:
    """Gives the figures of one run the names of Velodrome, and states once what it read as what."""

    def __init__(self, state: Callable[[str], None]) -> None:
        self._state = state
        self._stated: set[tuple[str, str, bool]] = set()
        #: Which of the script's names a metric of a split is reported by.
        self._owner: dict[tuple[str, str], str] = {}
        self._in_percent: set[tuple[str, str]] = set()

    def by_split(self, split: str, figures: Mapping[str, float]) -> dict[str, dict[str, float]]:
        """The figures of a report by the split that they are of; a split other than training was stated and stays."""
        parts: dict[str, dict[str, float]] = {}
        for name, value in figures.items():
            about = named(name)
            part = split if split != "train" else about.split or split
            metric = about.metric
            if metric != name and self._owner.setdefault((part, metric), name) != name:
                metric = about.own  # another figure has that name already
            elif metric == name:
                self._owner[part, metric] = name
            percent = about.percent or self._is_percent(part, name, metric, value)
            parts.setdefault(part, {})[metric] = value / 100 if percent else value
            if (metric != about.own or (percent and not about.percent)) and (key := (part, name, percent)) \
                    not in self._stated:
                self._stated.add(key)
                unit = " in per cent, and divided by 100" if percent else ""
                self._state(f"{name!r} is read as {part} {metric}{unit}")
        return parts

    def _is_percent(self, part: str, name: str, metric: str, value: float) -> bool:
        if metric == "accuracy" and _MOST_OF_FRACTION < value <= 100:
            self._in_percent.add((part, name))
        return (part, name) in self._in_percent
