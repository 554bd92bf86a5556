"""A task of the user's own: a class `module:Class` with a loss and, if it has any, counts and metrics.

The controller never imports it: there a task knows what events and results say of its metrics. In a training process,
`bind` gives it the user's object. No framework here: the object's `loss` and `metrics` are called by the engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

from velodrome.data.examples import ExampleSet
from velodrome.errors import BadRequest
from velodrome.events.fields import MetricDefinition
from velodrome.job.job import Job
from velodrome.job.values import Target
from velodrome.tasks.base import LOSS, Counts, Metric, finite, mean_loss
from velodrome.tasks.examples import ExampleTask

_FORMS = "return one value per example, or a sum and the count that it is a sum over"
#: Whether an object is a tensor of the engine that trains.
IsTensor = Callable[[Any], bool]
#: What the user's class may have, beside its constructor without arguments.
METHODS = ("loss", "metrics", "measure")
#: Names that every count has.
_ALWAYS = ("total", "loss_sum", "metrics")
#: Own metrics within this share of the best count as equally good.
_MARGIN = 0.01


class OwnTask(ExampleTask):
    """Asks the user's object for losses and counts; see `docs/how-to/own-task.md`."""

    side = "arrays"
    has_own_loss = True

    def __init__(self, name: str, metrics: Sequence[Metric] = ()) -> None:
        self.name = name
        self.metrics = tuple(metrics) or (LOSS,)
        self.counted = ()
        #: The user's object, in a training process.
        self.user: Any = None
        self._better: dict[str, str] = {}

    # -- in a training process

    def bind(self, made: Any) -> OwnTask:
        """Take the user's object, or refuse it."""
        kind = type(made).__name__
        if not callable(getattr(made, "loss", None)):
            raise BadRequest(f"--task {self.name!r}: {kind!r} has no method 'loss': write loss(self, model, batch)")
        for name in METHODS[1:]:
            if not callable(getattr(made, name, lambda: None)):
                raise BadRequest(f"--task {self.name!r}: {name!r} of {kind!r} is not a method")
        better = getattr(made, "better", {})
        if not isinstance(better, Mapping) or not {*better.values()} <= {"more", "less"}:
            raise BadRequest(
                f"--task {self.name!r}: 'better' of {kind!r} is {better!r}; write which metrics should grow or shrink, "
                "the one that decides first, as {'coverage': 'more', 'width': 'less'}"
            )
        self.user, self._better = made, {str(name): str(way) for name, way in better.items()}
        return self

    @property
    def has_counts(self) -> bool:
        """Whether the user's object counts anything beside the loss."""
        return callable(getattr(self.user, "metrics", None))

    def place(self, method: str) -> str:
        """Where a method of the user's class begins, as the end of a sentence; empty if that cannot be found."""
        code = getattr(getattr(self.user, method, None), "__code__", None)
        return "" if code is None else f" ({Path(code.co_filename).name}, line {code.co_firstlineno})"

    def _sources(self) -> str:
        """The methods that metrics come from, each with its place."""
        return " or ".join(
            f"{name}(){self.place(name)}" for name in METHODS[1:] if callable(getattr(self.user, name, None))
        ) or "loss()"

    def loss_and_count(self, returned: Any, is_tensor: IsTensor, size: int | None) -> tuple[Any, Any]:
        """What the user's `loss` returned for `size` examples: one value per example and None, or a sum and the count
        that it is a sum over; anything else is refused. `size` is None where it is not known."""
        wrong, how = returned, ""
        if is_tensor(returned):
            axes = _axes(returned)
            if len(axes) == 1 and (None in (size, axes[0]) or size == axes[0]):
                return returned, None
            how = "" if size is None else f" for {size} examples"
        elif isinstance(returned, tuple | list) and len(returned) == 2:
            loss, count = returned
            if is_tensor(loss) and _is_single(loss):
                return loss, count
            wrong, how = loss, " as its sum"
        raise BadRequest(f"--task {self.name!r}: loss() returned {described(wrong, is_tensor)}{how}: {_FORMS}")

    def refused_count(self, count: str) -> BadRequest:
        """The refusal of a count that `loss` returned, which is described in words."""
        return BadRequest(
            f"--task {self.name!r}: the count of loss() is {count}: return a whole number, how many the loss is a sum "
            "over"
        )

    def count(self, outputs: Any, batch: Any, is_tensor: IsTensor) -> dict[str, Any]:
        """What the user's `metrics` counts of a batch: a number, or a tensor of one, by name."""
        counted = self.user.metrics(outputs, batch)
        if not isinstance(counted, Mapping):
            raise BadRequest(
                f"--task {self.name!r}: metrics() returned {described(counted, is_tensor)}: return sums by name"
            )
        for name, value in counted.items():
            if not (_is_single(value) if is_tensor(value) else isinstance(value, Real)):
                raise BadRequest(
                    f"--task {self.name!r}: metrics() returned {described(value, is_tensor)} as {name!r}: return one "
                    "number, the sum over the batch"
                )
        return dict(counted)

    def in_order(self, counted: Mapping[str, Any]) -> list[Any]:
        """The counts of a batch in the order of the first one; others than those of the first are refused."""
        if {*counted} != {*self.counted}:
            raise BadRequest(
                f"--task {self.name!r}: metrics() counted {', '.join(self.counted) or 'nothing'} before, and now "
                f"{', '.join(counted) or 'nothing'}: return the same counts for every batch"
            )
        return [counted[name] for name in self.counted]

    def learn(self, sums: Mapping[str, float], total: float, loss_sum: float) -> None:
        """Take the names of counts and metrics from a first batch, which the engine tried; refuse what cannot work."""
        wrong = [name for name in sums if not isinstance(name, str) or name in _ALWAYS]
        if wrong:
            raise BadRequest(f"--task {self.name!r}: metrics() returned a count {wrong[0]!r}: choose another name")
        if not total:
            raise BadRequest(
                f"--task {self.name!r}: the count of loss(){self.place('loss')} is 0 for a first batch, so "
                "nothing can be measured: choose a larger --batch-size, or count something that every batch has"
            )
        self.counted = tuple(sums)
        measured = self._measure({**sums, "total": total, "loss_sum": loss_sum})
        for name in self._better:
            if name not in measured:
                raise BadRequest(
                    f"--task {self.name!r}: 'better' names {name!r}, and its metrics are {', '.join(measured)}"
                )
        for name, value in measured.items():
            if value is None:
                raise BadRequest(
                    f"--task {self.name!r}: the metric {name!r} of a first batch is not a finite number: look for a "
                    f"division by zero, or a logarithm of zero, in {self._sources()}"
                )
        decided = self._better or {"loss": "less"}  # what nobody wants more or less of does not decide
        order = dict.fromkeys([*decided, *measured])
        self.metrics = tuple(_metric(name, self._better.get(name, "less")) for name in order)

    def _measure(self, counts: Mapping[str, Any]) -> dict[str, float | None]:
        """What the user's `measure` makes of counts; the mean of each count without one."""
        total = counts["total"]
        means = {name: value / total for name, value in counts.items() if name not in _ALWAYS}
        plain = {name: value for name, value in counts.items() if name != "metrics"}
        measured = self.user.measure(plain) if hasattr(self.user, "measure") else means
        if not isinstance(measured, Mapping):
            raise BadRequest(
                f"--task {self.name!r}: measure() returned {type(measured).__name__!r}; return metrics by name"
            )
        values = {str(name): _number(self.name, name, value) for name, value in measured.items()}
        values.setdefault("loss", mean_loss(counts))
        # The one that decides comes first, so that events tell it without a definition.
        first = [name for name in self._better if name in values] or ["loss"]
        return {name: values[name] for name in dict.fromkeys([*first, *values])}

    def fields(self, counts: Counts) -> dict[str, Any]:
        fields: dict[str, Any] = super().fields(counts)
        if not counts.total or self.user is None:
            return fields
        try:
            measured = self._measure(fields)
        except (ArithmeticError, ValueError) as error:
            # Plain Python raises where tensors have NaN or infinity: 1 / 0, math.exp(1000), math.log(0).
            if isinstance(error, ValueError) and "math domain" not in str(error):
                raise
            measured = dict.fromkeys(metric.name for metric in self.metrics)
            measured["loss"] = finite(counts.loss_sum / counts.total)
        return {**fields, "metrics": measured}

    def definitions(self) -> list[dict[str, Any]]:
        return [
            {"name": metric.name, "better": metric.better, "form": metric.form, "margin": metric.margin,
             "relative_margin": metric.relative_margin} for metric in self.metrics
        ]

    # -- where only events and results are known

    def measure(self, counts: Mapping[str, Any]) -> dict[str, float | None]:
        measured = counts.get("metrics")
        if measured is None:
            measured = self._measure(counts) if self.user is not None else {"loss": mean_loss(counts)}
        return dict(measured)

    def in_words(self, counts: Mapping[str, Any] | None) -> str:
        if not counts or not counts["total"]:
            return ""
        name, value = next(iter(self.measure(counts).items()))
        return f"{name} {'not finite' if value is None else _metric(name, 'less').text(value)}"

    def summary(self, counts: Mapping[str, Any] | None) -> dict[str, Any] | None:
        if not counts or not counts["total"]:
            return None
        sums = {name: value for name, value in counts.items() if name not in _ALWAYS}
        measured = self.measure(counts)
        return {**measured, **{name: value for name, value in sums.items() if name not in measured},
                "total": counts["total"]}

    # -- what is refused

    def check_target(self, target: Target) -> None:
        """The controller does not know the metrics; the training process does."""
        if self.user is not None:
            super().check_target(target)

    # -- data

    def fit(self, job: Job, data: ExampleSet) -> ExampleSet:
        return data

    def outputs(self, data: ExampleSet) -> int | dict[str, int]:
        """As many as a target has classes or numbers; by name for several targets."""
        targets = data.targets
        if len(targets) == 1 and targets[0].is_whole and not targets[0].shape and data.classes:
            return data.classes
        numbers = {column.name: math.prod(column.shape) for column in targets}
        return next(iter(numbers.values()), 1) if len(numbers) <= 1 else numbers


def described(value: Any, is_tensor: IsTensor) -> str:
    """What the user's code returned, in words."""
    if is_tensor(value):
        return f"a tensor of shape {_axes(value)}" if _axes(value) else "a single number"
    return f"{value!r}" if isinstance(value, Real) else f"{type(value).__name__!r}"


def _axes(tensor: Any) -> tuple[int | None, ...]:
    try:
        return tuple(tensor.shape)
    except ValueError:  # in a graph of TensorFlow, where not even the number of axes is known
        return ()


def _is_single(tensor: Any) -> bool:
    """Whether a tensor holds one number."""
    return all(length == 1 for length in _axes(tensor))


def metrics_of(definitions: Iterable[MetricDefinition]) -> list[Metric]:
    """The metrics that a result defines."""
    return [Metric(each.name, each.better, each.form, each.margin, each.relative_margin) for each in definitions]


def _metric(name: str, better: str) -> Metric:
    if name == "loss":
        return LOSS
    return Metric(name, "more" if better == "more" else "less", ".4g", margin=_MARGIN, relative_margin=True)


def _number(task: str, name: object, value: Any) -> float | None:
    try:
        return finite(None if value is None else float(value))
    except (TypeError, ValueError):
        raise BadRequest(
            f"--task {task!r}: the metric {name!r} is {type(value).__name__!r} and no number: return plain numbers"
        ) from None
