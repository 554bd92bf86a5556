"""What a race is judged by: an objective with its target and price, and which differences are too small to matter.

A new objective is one entry of `OBJECTIVES`: what may decide which configuration is the best, and how a lead in it is
worded. Everything else that is about objectives reads it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from velodrome.errors import BadRequest
from velodrome.job.race import Race


@dataclass(frozen=True)
class Wording:
    """How a difference between two configurations is called."""

    #: `14 % faster`.
    better: str
    #: `14 % slower`.
    worse: str
    #: `2.4 times as fast`; of a quantity that is saved, what the worse of two is: `2.4 times as expensive`.
    times_as: str
    #: What a configuration is that was beaten: `1.62× slower`.
    beaten: str
    #: What a run does to its measured amount: `what it takes per success`.
    uses: str = "takes"
    #: Whether the better of two saves a share of what the other uses, so a lead of 4 to 3 is 25 %.
    saves: bool = False


SPEED = Wording("faster", "slower", "as fast", "slower")
COST = Wording("cheaper", "more expensive", "as expensive", "more expensive", "costs", saves=True)
QUALITY = Wording("better", "worse", "as good", "less accurate")


@dataclass(frozen=True)
class Objective:
    """What decides a race."""

    name: str
    wording: Wording
    #: The measure that decides, by its name, whose direction and unit the objective has; empty where `question` needs
    #: none.
    measure: str = ""
    #: `module:attribute` of the function that asks the question of rows; it is slow to import.
    question: str = "velodrome.judge.candidates:of_measure"
    #: Whether there has to be a target.
    needs_target: bool = False
    #: Whether it is time or follows from it, so that other programs change it.
    timed: bool = True
    #: Whether it is how good the models are, so that no configuration is set aside for being less accurate.
    of_models: bool = False


OBJECTIVES = {objective.name: objective for objective in (
    Objective("time-to-accuracy", SPEED, question="velodrome.judge.candidates:of_time_to_target", needs_target=True),
    Objective("accuracy", QUALITY, question="velodrome.judge.candidates:of_accuracy", timed=False, of_models=True),
    Objective("throughput", SPEED, "examples_per_second", "velodrome.judge.candidates:of_throughput"),
    Objective("cost", COST, question="velodrome.judge.candidates:of_cost"),
)}


def objective_of(name: str) -> Objective:
    """The objective of that name; `BadRequest` if there is none."""
    if name not in OBJECTIVES:
        raise BadRequest(f"--objective {name!r} is unknown: choose one of {', '.join(OBJECTIVES)}")
    return OBJECTIVES[name]


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
