"""Objectives: what may decide which configuration of a race is the best, and how a lead in it is worded.

A new objective is one entry of `OBJECTIVES`; everything else that is about objectives reads it. Command lines list
them, so nothing that is slow to import may be imported here.
"""

from __future__ import annotations

from dataclasses import dataclass

from velodrome.errors import BadRequest


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
