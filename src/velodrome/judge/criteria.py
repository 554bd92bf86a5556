"""What a race is judged by: an objective with its target and price, and which differences are too small to matter."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from velodrome.errors import BadRequest
from velodrome.job.race import Race
from velodrome.judge.objective import OBJECTIVES, objective_of

#: Differences below this share are ties, by default.
TOLERANCE = 0.05


@dataclass(frozen=True)
class Tolerances:
    """Differences below these do not decide."""

    #: Differences below this share are ties.
    tolerance: float = TOLERANCE
    #: How much less accurate a faster configuration may be; None for what is usual for the metric.
    accuracy: float | None = None


def parse_tolerances(tolerance: str | float | None = None, accuracy: str | float | None = None) -> Tolerances:
    """Tolerances as given by a user, as `5%` or `0.05`; `BadRequest` if one is no share."""
    return Tolerances(
        TOLERANCE if tolerance is None else _share("--tolerance", tolerance, "5%"),
        None if accuracy is None else _share("--accuracy-margin", accuracy, "0.01"),
    )


def _share(option: str, given: str | float, example: str) -> float:
    text = str(given).strip()
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = float("nan")
    if not 0 < value < 1:
        raise BadRequest(f"{option} {text!r}: give a share between 0 and 1, for example {example}")
    return value


@dataclass(frozen=True)
class Price:
    """Price of an instance per hour, and what counts as an instance: a process of the run or a host."""

    per_hour: float | None = None
    per: Literal["process", "host"] = "process"


@dataclass(frozen=True)
class Criteria:
    """What a race is judged by."""

    #: By default the time to a target if there is one, else throughput.
    objective: str | None = None
    #: The target that somebody asks for.
    target: str | None = None
    #: The target that all runs of the race had.
    race_target: str | None = None
    price: Price = Price()
    tolerances: Tolerances = Tolerances()
    #: Epochs before which no configuration is out for not reaching the target.
    grace: int | None = None

    @property
    def chosen(self) -> str:
        """The objective."""
        return self.objective or ("time-to-accuracy" if self.shown_target else "throughput")

    @property
    def goal(self) -> str | None:
        """The target that the objective is judged with: as requested; the race's own only for the time to it."""
        return self.target or (self.race_target if objective_of(self.chosen).needs_target else None)

    @property
    def shown_target(self) -> str | None:
        """The target that tables and figures show the time to, whatever the objective is."""
        return self.target or self.race_target


def criteria_of(
    race: Race, targets: Iterable[str | None], objective: str | None = None, target: str | None = None,
    price: Price = Price(), tolerance: str | float | None = None,  # noqa: B008 - frozen
    accuracy_margin: str | float | None = None,
) -> Criteria:
    """What a race is judged by: as requested, else as the race says; `targets` are those of its jobs, which count if
    all have the same."""
    own = set(targets)
    if objective is None and target is None and race.objective in OBJECTIVES:
        objective = race.objective
    return Criteria(
        objective, target, own.pop() if len(own) == 1 else None, price,
        parse_tolerances(
            race.tolerance if tolerance is None else tolerance,
            race.accuracy_margin if accuracy_margin is None else accuracy_margin,
        ),
        race.grace,
    )
