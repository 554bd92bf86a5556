"""Every form of a verdict, with the runs that lead to it: what a person reads, word for word.

A change of the words changes these lists, so that somebody reads the new ones.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from synthetic_races import beside, repeated, result
from velodrome.analysis.compare import compare
from velodrome.analysis.lead import Kind, Lead
from velodrome.analysis.recommend import Recommendation, recommend
from velodrome.spec.job import Target

pytestmark = pytest.mark.unit

Runs = list[dict[str, Any]]


def single(*rates: float, **fields: Any) -> Runs:
    return repeated(list(rates), strategy="single", **fields)


def ddp(*rates: float, workers: int = 2, **fields: Any) -> Runs:
    return repeated(list(rates), workers=workers, **fields)


def answer(runs: Runs, objective: str = "throughput", target: str | None = None) -> Recommendation:
    return recommend(compare(runs, Target.parse(target) if target else None), objective, target)


#: What is asked, and the three lines of the answer.
FORMS = [
    pytest.param(
        lambda: answer([
            *single(100, 101, 99),
            *ddp(190, 192, 188),
            *repeated([150, 152, 148], strategy="allreduce", workers=2),
        ]),
        "use torch/ddp with 2 workers: the fastest of 3 configurations.",
        "190 examples/s for torch/ddp with 2 workers (mean of 3 runs), 90 % faster (at least 87 %) than "
        "torch/single with 1 worker, and 27 % faster (at least 24 %) than the next, 150 examples/s for "
        "torch/allreduce with 2 workers (mean of 3 runs).",
        "try 4 workers: 2 still reach 95 % of the ideal.",
        id="one has beaten all others",
    ),
    pytest.param(
        lambda: answer([*single(100, 101, 99), *ddp(1900, 1920, 1880, workers=32)]),
        "use torch/ddp with 32 workers: the fastest of 2 configurations.",
        "1,900 examples/s for torch/ddp with 32 workers (mean of 3 runs), 19 times as fast (at least 18 times) as "
        "the other, 100 examples/s for torch/single with 1 worker (mean of 3 runs).",
        "try a larger batch or fewer workers: 32 workers reach 59 % of the ideal, so much of what they cost is "
        "waiting and messages.",
        id="one of two",
    ),
    pytest.param(
        lambda: answer([*single(100, 101, 99), *ddp(70, 71, 69)]),
        "do not distribute this: use torch/single with 1 worker.",
        "100 examples/s for torch/single with 1 worker (mean of 3 runs) is 43 % faster (at least 38 %) than the "
        "best distributed one, 70 examples/s for torch/ddp with 2 workers (mean of 3 runs).",
        "a larger model, data set or batch gives every message more work: race again with one of them before paying"
        " for more workers.",
        id="one has beaten all that are distributed",
    ),
    pytest.param(
        lambda: answer([*single(100, 101, 99), *ddp(7, 7.1, 6.9)]),
        "do not distribute this: use torch/single with 1 worker.",
        "100 examples/s for torch/single with 1 worker (mean of 3 runs) is 14 times as fast (at least 13 times) as "
        "the best distributed one, 7 examples/s for torch/ddp with 2 workers (mean of 3 runs).",
        "a larger model, data set or batch gives every message more work: race again with one of them before paying"
        " for more workers.",
        id="by far",
    ),
    pytest.param(
        lambda: answer([
            *single(100, 101, 99),
            *ddp(200, 202, 198, workers=4),
            *repeated([199, 201, 198], strategy="allreduce", workers=2),
        ]),
        "use torch/allreduce with 2 workers: level with torch/ddp with 4 workers, and none of them is simpler.",
        "199 examples/s for torch/allreduce with 2 workers (mean of 3 runs) against 200 examples/s for torch/ddp "
        "with 4 workers (mean of 3 runs): 0.3 % apart, surely less than 5 %.",
        "try 4 workers: 2 still reach 100 % of the ideal.",
        id="level and distributed",
    ),
    pytest.param(
        lambda: answer([*single(100, 101, 99), *ddp(100.5, 101.4, 99.6)]),
        "do not distribute this: use torch/single with 1 worker; it is level with torch/ddp with 2 workers.",
        "100 examples/s for torch/single with 1 worker (mean of 3 runs) against 100 examples/s for torch/ddp with 2"
        " workers (mean of 3 runs): 0.5 % apart, surely less than 5 %.",
        "a larger model, data set or batch gives every message more work: race again with one of them before paying"
        " for more workers.",
        id="level with one process",
    ),
    pytest.param(
        lambda: answer([*single(100, 101, 99), *ddp(100, 101, 99)]),
        "do not distribute this: use torch/single with 1 worker; it is level with torch/ddp with 2 workers.",
        "100 examples/s for torch/single with 1 worker (mean of 3 runs) against 100 examples/s for torch/ddp with 2"
        " workers (mean of 3 runs): less than 0.1 % apart, surely less than 5 %.",
        "a larger model, data set or batch gives every message more work: race again with one of them before paying"
        " for more workers.",
        id="equal",
    ),
    pytest.param(
        lambda: answer([*single(100, 100, 100), *ddp(100.02, 100.02, 100.02)]),
        "do not distribute this: use torch/single with 1 worker; it is level with torch/ddp with 2 workers.",
        "100 examples/s for torch/single with 1 worker (mean of 3 runs) against 100 examples/s for torch/ddp with 2"
        " workers (mean of 3 runs): less than 0.1 % apart, surely less than 5 %.",
        "a larger model, data set or batch gives every message more work: race again with one of them before paying"
        " for more workers.",
        id="a difference that no clock can show",
    ),
    pytest.param(
        lambda: answer([*single(100, 120, 110), *ddp(145, 125, 138)]),
        "distributing is not shown to pay: by default use torch/single with 1 worker (torch/ddp with 2 workers "
        "leads, but not beyond doubt).",
        "136 examples/s for torch/ddp with 2 workers (mean of 3 runs) against 110 examples/s for torch/single with "
        "1 worker (mean of 3 runs): 24 % apart, but as far as these runs show the first may be anything from 2.6 "
        "times slower to 4.0 times as fast.",
        "probably 6 more repetitions of both would settle it: 12 runs, about 9 min. Run the same race again with "
        "--until-sure --max-repeat 9.",
        id="a lead that may be chance",
    ),
    pytest.param(
        lambda: answer([*single(100, 20, 110), *ddp(145, 125, 18)]),
        "distributing is not shown to pay: by default use torch/single with 1 worker (torch/ddp with 2 workers "
        "leads, but not beyond doubt).",
        "69 examples/s for torch/ddp with 2 workers (mean of 3 runs) against 60 examples/s for torch/single with 1 "
        "worker (mean of 3 runs): 14 % apart, but the runs differ too much among themselves to tell.",
        "more than 100 further repetitions would be needed to tell them apart: choose the simplest, or ask with a "
        "larger --tolerance.",
        id="runs that differ too much",
    ),
    pytest.param(
        lambda: answer([*single(100, 120, 110), *single(120, 100, 112, batch_size=128), *ddp(10, 10.2, 9.9)]),
        "do not distribute this; which of torch/single with 1 worker, batch 128 and torch/single with 1 worker, "
        "batch 64 is best is open.",
        "110 examples/s for torch/single with 1 worker, batch 128 (mean of 3 runs) against 110 examples/s for "
        "torch/single with 1 worker, batch 64 (mean of 3 runs): 0.6 % apart, but as far as these runs show the "
        "first may be anything from 3.3 times slower to 3.3 times as fast.",
        "more than 100 further repetitions would be needed to tell them apart: choose the simplest, or ask with a "
        "larger --tolerance.",
        id="open among those in one process",
    ),
    pytest.param(
        lambda: answer([*single(10, 10.1, 9.9), *ddp(100, 120, 110, workers=16), *ddp(120, 100, 112, workers=32)]),
        "distributing pays; which of torch/ddp with 32 workers and torch/ddp with 16 workers is best is open.",
        "110 examples/s for torch/ddp with 32 workers (mean of 3 runs) against 110 examples/s for torch/ddp with 16"
        " workers (mean of 3 runs): 0.6 % apart, but as far as these runs show the first may be anything from 3.3 "
        "times slower to 3.3 times as fast.",
        "more than 100 further repetitions would be needed to tell them apart: choose the simplest, or ask with a "
        "larger --tolerance.",
        id="open among those that are distributed",
    ),
    pytest.param(
        lambda: answer([*ddp(100, 120, 110), *ddp(120, 100, 112, workers=4)]),
        "open: torch/ddp with 4 workers leads torch/ddp with 2 workers, but not beyond doubt.",
        "110 examples/s for torch/ddp with 4 workers (mean of 3 runs) against 110 examples/s for torch/ddp with 2 "
        "workers (mean of 3 runs): 0.6 % apart, but as far as these runs show the first may be anything from 3.7 "
        "times slower to 3.7 times as fast. Everything here was distributed, so whether distributing pays at all is"
        " not known.",
        "more than 100 further repetitions would be needed to tell them apart: choose the simplest, or ask with a "
        "larger --tolerance.",
        id="open without a baseline",
    ),
    pytest.param(
        lambda: answer([result("single", 1, 100.0), result("ddp", 2, 150.0)]),
        "distributing is not shown to pay: by default use torch/single with 1 worker (torch/ddp with 2 workers "
        "leads, but not beyond doubt).",
        "150 examples/s for torch/ddp with 2 workers (1 run) against 100 examples/s for torch/single with 1 worker "
        "(1 run): 50 % apart, but one run of each cannot tell whether that is chance.",
        "probably 2 more repetitions of both would settle it: 4 runs, about 3 min. Run the same race again with "
        "--until-sure --max-repeat 3.",
        id="one run of each",
    ),
    pytest.param(
        lambda: answer([*single(100, 101), *ddp(150, 152)]),
        "distributing is not shown to pay: by default use torch/single with 1 worker (torch/ddp with 2 workers "
        "leads, but not beyond doubt).",
        "151 examples/s for torch/ddp with 2 workers (mean of 2 runs) against 100 examples/s for torch/single with "
        "1 worker (mean of 2 runs): 50 % apart, but 2 runs of each cannot tell whether that is chance.",
        "probably 1 more repetition of both would settle it: 2 runs, about 85 s. Run the same race again with "
        "--until-sure --max-repeat 3.",
        id="two runs of each",
    ),
    pytest.param(
        lambda: answer(single(100, 101, 99)),
        "only torch/single with 1 worker can be judged, so there is nothing to compare it with.",
        "100 examples/s for torch/single with 1 worker (mean of 3 runs).",
        "race it against another number of workers.",
        id="nothing to compare with",
    ),
    pytest.param(
        lambda: answer([]),
        "no run finished, so there is nothing to compare.",
        "the race has no finished run.",
        "look at `velodrome runs list` and the logs, then run the same race again.",
        id="no run finished",
    ),
    pytest.param(
        lambda: answer([
            *single(100, 101, 99, accuracies=[0.90, 0.901, 0.902]),
            *ddp(50, 50, 50, accuracies=[0.95, 0.951, 0.952]),
        ], "accuracy"),
        "use torch/ddp with 2 workers: the most accurate of 2 configurations.",
        "test accuracy 0.9510 for torch/ddp with 2 workers (mean of 3 runs), 5.0 points better (at least 3.9) than "
        "the other, test accuracy 0.9010 for torch/single with 1 worker (mean of 3 runs).",
        "try a larger batch or fewer workers: 2 workers reach 25 % of the ideal, so much of what they cost is "
        "waiting and messages.",
        id="more accurate",
    ),
    pytest.param(
        lambda: answer([
            *single(100, 101, 99, accuracies=[0.93, 0.97, 0.91]),
            *ddp(50, 50, 50, accuracies=[0.95, 0.91, 0.952]),
        ], "accuracy"),
        "distributing is not shown to help: by default use torch/single with 1 worker (torch/ddp with 2 workers "
        "leads, but not beyond doubt).",
        "test accuracy 0.9371 for torch/ddp with 2 workers (mean of 3 runs) against test accuracy 0.9363 for "
        "torch/single with 1 worker (mean of 3 runs): 0.1 points apart, but as far as these runs show the first may"
        " be anything from 38.1 points worse to 38.2 points better.",
        "more than 100 further repetitions would be needed to tell them apart: choose the simplest, or ask with a "
        "larger --tolerance.",
        id="not shown to be more accurate",
    ),
    pytest.param(
        lambda: answer([*single(100, 101, 99), *ddp(190, 192, 188)], "time-to-accuracy", "accuracy>=0.9"),
        "use torch/ddp with 2 workers: the fastest to accuracy>=0.9 of 2 configurations.",
        "25.26 s for torch/ddp with 2 workers (mean of 3 runs), 90 % faster (at least 88 %) than the other, 48.00 s"
        " for torch/single with 1 worker (mean of 3 runs). All 3 runs of torch/ddp with 2 workers reached "
        "accuracy>=0.9. So few runs cannot show that it always will: up to 71 % of its runs may miss it, so what it"
        " takes per success is not settled.",
        "try 4 workers: 2 still reach 95 % of the ideal.",
        id="faster to a target",
    ),
    pytest.param(
        lambda: answer([
            *single(*[100] * 6),
            *ddp(180, 182, 178, 181, 179, 180, accuracies=[0.95, 0.95, 0.9, 0.95, 0.95, 0.95]),
        ], "time-to-accuracy", "accuracy>=0.94"),
        "distributing is not shown to pay: by default use torch/single with 1 worker (torch/ddp with 2 workers "
        "leads, but not beyond doubt).",
        "32.00 s of training per success for torch/ddp with 2 workers (reached accuracy>=0.94 in 5 of 6 runs) "
        "against 48.00 s for torch/single with 1 worker (mean of 6 runs): 50 % apart, but as far as these runs show"
        " the first may be anything from 36 % slower to 4.2 times as fast.",
        "probably 8 more repetitions of both would settle it: 16 runs, about 11 min. Run the same race again with "
        "--until-sure --max-repeat 14.",
        id="a target that was missed once",
    ),
    pytest.param(
        lambda: answer([*single(100, 101, 99), *ddp(190, 192, 188)], "time-to-accuracy", "accuracy>=0.99"),
        "no configuration reached accuracy>=0.99; the best validation accuracy was 0.9500, by torch/single with 1 "
        "worker.",
        "every finished run was looked at.",
        "train for more epochs, change the learning rate, or ask for a target that was reached.",
        id="a target that nobody reached",
    ),
    pytest.param(
        lambda: answer([*single(100, 101, 99), *ddp(150, 151, 149)], "cost"),
        "do not distribute this: use torch/single with 1 worker.",
        "50.6 instance-seconds a run for torch/single with 1 worker (mean of 3 runs) is 27 % cheaper (at least 25 "
        "%) than the best distributed one, 69.2 instance-seconds a run for torch/ddp with 2 workers (mean of 3 "
        "runs).",
        "a larger model, data set or batch gives every message more work: race again with one of them before paying"
        " for more workers.",
        id="cheaper",
    ),
    pytest.param(
        lambda: answer([
            *single(100, 101, 99),
            *ddp(400, 402, 398, accuracy=0.9),
            *repeated([180, 182, 178], strategy="allreduce", workers=2),
        ]),
        "use torch/allreduce with 2 workers: the fastest of 2 configurations.",
        "180 examples/s for torch/allreduce with 2 workers (mean of 3 runs), 80 % faster (at least 78 %) than the "
        "other, 100 examples/s for torch/single with 1 worker (mean of 3 runs). (1 of 3 configurations set aside: "
        "torch/ddp with 2 workers, accuracy 5.0 points lower than torch/single with 1 worker (3.9–6.1).)",
        "try 4 workers: 2 still reach 90 % of the ideal.",
        id="set aside because of its accuracy",
    ),
    pytest.param(
        lambda: answer([
            *single(100, 101, 99, accuracies=[0.95, 0.951, 0.952]),
            *ddp(190, 192, 188, accuracies=[0.941, 0.949, 0.947]),
            *ddp(150, 152, 148, workers=4, accuracies=[0.942, 0.948, 0.949]),
        ]),
        "use torch/ddp with 2 workers: the fastest of 3 configurations.",
        "190 examples/s for torch/ddp with 2 workers (mean of 3 runs), 90 % faster (at least 87 %) than "
        "torch/single with 1 worker, and 27 % faster (at least 24 %) than the next, 150 examples/s for torch/ddp "
        "with 4 workers (mean of 3 runs). (accuracy not settled: torch/ddp with 2 workers may be up to 3.4 points "
        "lower than torch/single with 1 worker (0.5 so far), and so may 1 other.)",
        "torch/ddp with 4 workers did no better here: a larger model, data set or batch gives every message more "
        "work: race again with one of them before paying for more workers.",
        id="accuracy not settled",
    ),
    pytest.param(
        lambda: answer([
            *single(100, 101, 99, accuracies=[0.95, 0.951, 0.952]),
            *ddp(190, 192, 188, accuracies=[0.92, 0.92, 0.92]),
        ], "time-to-accuracy", "accuracy>=0.94"),
        "only torch/single with 1 worker reached accuracy>=0.94, so there is nothing to compare it with.",
        "48.00 s for torch/single with 1 worker (mean of 3 runs). (1 of 2 configurations set aside: torch/ddp with "
        "2 workers reached accuracy>=0.94 in 0 of 3 runs.)",
        "train the others for more epochs or with another learning rate, or ask for a target that they reach.",
        id="a target that only one reached",
    ),
    pytest.param(
        lambda: answer([*single(100, 100.4, 99.8), *ddp(103, 103.3, 102.8)]),
        "do not distribute this: use torch/single with 1 worker; it is level with torch/ddp with 2 workers.",
        "100 examples/s for torch/single with 1 worker (mean of 3 runs) against 103 examples/s for torch/ddp with 2"
        " workers (mean of 3 runs): 3 % apart, surely less than 5 %.",
        "a larger model, data set or batch gives every message more work: race again with one of them before paying"
        " for more workers.",
        id="a lead that is shown but too small to matter",
    ),
    pytest.param(
        lambda: answer([*single(*[100, 101, 99] * 4), *ddp(*[106, 107.2, 104.9] * 4)]),
        "use torch/ddp with 2 workers: the fastest of 2 configurations.",
        "106 examples/s for torch/ddp with 2 workers (mean of 12 runs), 6 % faster (at least 5 %) than the other, "
        "100 examples/s for torch/single with 1 worker (mean of 12 runs).",
        "try a larger batch or fewer workers: 2 workers reach 53 % of the ideal, so much of what they cost is "
        "waiting and messages.",
        id="a small lead that may matter",
    ),
    pytest.param(
        lambda: answer([*single(100, 101, 99), *ddp(190, 192, 188), result("ddp", 2, 1.0, status="failed", seed=4)]),
        "use torch/ddp with 2 workers: the fastest of 2 configurations; torch/ddp with 2 workers crashed in 1 of 4 "
        "runs.",
        "190 examples/s for torch/ddp with 2 workers (mean of 3 runs), 90 % faster (at least 88 %) than the other, "
        "100 examples/s for torch/single with 1 worker (mean of 3 runs). (torch/ddp with 2 workers crashed in 1 of "
        "4 runs.)",
        "try 4 workers: 2 still reach 95 % of the ideal.",
        id="a winner that crashed",
    ),
    pytest.param(
        lambda: answer([*[beside(run, 0.9) for run in single(100, 101, 99)], *ddp(190, 192, 188)]),
        "not reliable: use torch/ddp with 2 workers: the fastest of 2 configurations.",
        "Other programs used 0.9 of 2 cores during 3 of 6 runs: their figures are not reliable; repeat them on an "
        "idle machine. As measured: 190 examples/s for torch/ddp with 2 workers (mean of 3 runs), 90 % faster (at "
        "least 88 %) than the other, 100 examples/s for torch/single with 1 worker (mean of 3 runs).",
        "repeat those runs on an idle machine, then ask again: `velodrome runs rm` removes them from the race, and "
        "the same `velodrome race` command runs what is missing, or with --until-sure what is needed to be sure.",
        id="beside other programs",
    ),
    pytest.param(
        lambda: answer([*single(100, 101, 99), *ddp(500, 510, 490)]),
        "not reliable: use torch/ddp with 2 workers: the fastest of 2 configurations.",
        "torch/ddp with 2 workers is 5.0 times as fast as its engine's single run, an efficiency of 250 %: more "
        "than 100 % is suspect, most likely something slowed the baseline; repeat both on an idle machine. As "
        "measured: 500 examples/s for torch/ddp with 2 workers (mean of 3 runs), 5.0 times as fast (at least 4.6 "
        "times) as the other, 100 examples/s for torch/single with 1 worker (mean of 3 runs).",
        "repeat those runs on an idle machine, then ask again: `velodrome runs rm` removes them from the race, and "
        "the same `velodrome race` command runs what is missing, or with --until-sure what is needed to be sure.",
        id="too good to be true",
    ),
    pytest.param(
        lambda: answer([*single(100, 101, 99), *ddp(190, 192, 188, batch_scope="per-worker", batch_of_step=128)]),
        "use torch/ddp with 2 workers: the fastest of 2 configurations (128-example updates against 64 of "
        "torch/single with 1 worker).",
        "190 examples/s for torch/ddp with 2 workers (mean of 3 runs), 90 % faster (at least 88 %) than the other, "
        "100 examples/s for torch/single with 1 worker (mean of 3 runs).",
        "try 4 workers: 2 still reach 95 % of the ideal.",
        id="updates of different size",
    ),
]


@pytest.mark.parametrize(("ask", "verdict", "why", "proposal"), FORMS)
def test_the_words_of_every_form_of_a_verdict(ask: Any, verdict: str, why: str, proposal: str) -> None:
    found = ask()
    assert found.lines == (f"Verdict: {verdict}", f"Why: {why}", f"Next: {proposal}")


@pytest.mark.parametrize("text", [" ".join(map(str, form.values[1:])) for form in FORMS])
def test_no_form_has_a_number_that_says_nothing(text: str) -> None:
    assert not re.search(r"\b0\.00\b|\b1\.00×|\bnan\b|\binf\b|\d\.\d{5}|\d{2,}\.\d+ (%|times)", text), text
    assert not re.search(r"  |\.\.|,,| \.", text), text


@pytest.mark.parametrize(
    ("lead", "kind", "words"),
    [
        (Lead(1.9, 1.899, 1.95), "speed", "90 % faster (at least 89 %) than the next"),
        (Lead(19.4, 18.97, 20.0), "speed", "19 times as fast (at least 18 times) as the next"),
        (Lead(2.04, 1.997, 2.1), "speed", "2.0 times as fast (at least 1.9 times) as the next"),
        (Lead(1.012, 1.0019, 1.02), "speed", "1.2 % faster (at least 0.1 %) than the next"),
        (Lead(1.012, 1.0004, 1.02), "speed", "1.2 % faster than the next"),
        (Lead(1.25, 1.2, 1.3), "cost", "20 % cheaper (at least 16 %) than the next"),
        (Lead(4.0, 3.9, 4.1), "cost", "75 % cheaper (at least 74 %) than the next"),
        (Lead(1.3, 1.29, 1.4), "quality", "30 % better (at least 29 %) than the next"),
        (Lead(2.5, 2.41, 3.0), "quality", "2.5 times as good (at least 2.4 times) as the next"),
        (Lead(1.0, 0.96, 1.4, "points"), "quality", "1.0 point better (at least 0.9) than the next"),
    ],
)
def test_a_lead_is_called_by_what_it_is_in_and_the_least_of_it_is_rounded_down(
    lead: Lead, kind: Kind, words: str
) -> None:
    assert lead.than("the next", kind) == words


@pytest.mark.parametrize(
    ("lead", "kind", "words"),
    [
        (Lead(1.1, 0.9, 1.4), "speed", "from 10 % slower to 40 % faster"),
        (Lead(1.1, 0.4, 4.0), "speed", "from 2.5 times slower to 4.0 times as fast"),
        (Lead(1.1, 0.8, 1.25), "cost", "from 25 % more expensive to 20 % cheaper"),
        (Lead(1.1, 0.25, 2.0), "cost", "from 4.0 times as expensive to 50 % cheaper"),
        (Lead(1.1, 0.01, 200.0), "speed", ""),
    ],
)
def test_where_a_lead_may_lie_in_words(lead: Lead, kind: Kind, words: str) -> None:
    assert lead.span(kind) == words


@pytest.mark.parametrize(
    ("lead", "words"),
    [
        (Lead(1.62, 1.389, 1.9), " (at least 1.38×)"),
        (Lead(4.0, 3.87, 4.4), " (at least 3.8×)"),
        (Lead(1.06, 1.0079, 1.1), " (at least 1.007×)"),
        (Lead(1.06, 1.0004, 1.1), ""),
        (Lead(0.8, 0.49, 1.2, "points"), " (at least 0.4)"),
        (Lead(0.8, 0.04, 1.2, "points"), ""),
    ],
)
def test_the_least_of_a_lead_never_says_nothing(lead: Lead, words: str) -> None:
    assert lead.at_least == words


def test_a_range_shows_on_which_side_of_one_it_ends() -> None:
    assert Lead(1.06, 1.0012, 1.12).interval == "[1.001, 1.12]"
    assert Lead(0.96, 0.9, 0.9988).interval == "[0.90, 0.999]"
    assert Lead(1.2, 1.004, 300.0).interval == "[1.004, >100]"
