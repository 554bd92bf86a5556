"""Forms of a verdict by accuracy, by the time to a target and by cost, and those that accuracy decides, word for word.

A change of the words changes these lists, so that somebody reads the new ones.
"""

from __future__ import annotations

import pytest

from synthetic_races import repeated
from velodrome.analysis.compare import compare
from velodrome.analysis.objective import Price
from velodrome.analysis.recommend import recommend
from verdict_questions import Form, answer, ddp, single, with_right, words_that_say_nothing

pytestmark = pytest.mark.unit

#: What is asked, and the three lines of the answer.
FORMS = [
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
        "larger --accuracy-margin.",
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
        lambda: answer([*single(100, 101, 99), *ddp(180, 181, 179, accuracy=0.8)]),
        "use torch/single with 1 worker: the other is not accurate enough.",
        "100 examples/s for torch/single with 1 worker (mean of 3 runs). (1 of 2 configurations set aside: torch/ddp "
        "with 2 workers, accuracy 15.0 points lower than torch/single with 1 worker (13.8–16.2).)",
        "train the others for more epochs or with another learning rate, or accept less accurate ones with "
        "--accuracy-margin.",
        id="all others set aside because of their accuracy",
    ),
    pytest.param(
        lambda: answer([
            *with_right(353, 359, single(100, 101, 99)), *with_right(352, 359, ddp(150, 151, 149)),
        ], "accuracy"),
        "level as far as 359 test examples can tell: use torch/single with 1 worker.",
        "test accuracy 0.9833 for torch/single with 1 worker (mean of 3 runs) against test accuracy 0.9805 for "
        "torch/ddp with 2 workers (mean of 3 runs): 0.3 points apart, but as far as these runs show the first may be "
        "anything from 2.6 points worse to 3.2 points better.",
        "more repetitions would not tell them apart, a larger test set would: choose the simplest, or ask with a "
        "larger --accuracy-margin.",
        id="a test set that is too small",
    ),
    pytest.param(
        lambda: answer([
            *with_right(9530, 10_000, single(100, 101, 99)), *with_right(9508, 10_000, ddp(150, 151, 149)),
        ]),
        "use torch/ddp with 2 workers: the fastest of 2 configurations.",
        "150 examples/s for torch/ddp with 2 workers (mean of 3 runs), 50 % faster (at least 46 %) than the other, "
        "100 examples/s for torch/single with 1 worker (mean of 3 runs). (accuracy not settled: torch/ddp with 2 "
        "workers may be up to 1.1 points lower than torch/single with 1 worker (0.2 so far).)",
        "try 4 workers: 2 still reach 75 % of the ideal.",
        id="accuracy not settled by a hair",
    ),
]


@pytest.mark.parametrize(("ask", "verdict", "why", "proposal"), FORMS)
def test_the_words_of_every_form_of_a_verdict(ask: Form, verdict: str, why: str, proposal: str) -> None:
    assert ask().lines == (f"Verdict: {verdict}", f"Why: {why}", f"Next: {proposal}")


@pytest.mark.parametrize("text", [" ".join(map(str, form.values[1:])) for form in FORMS])
def test_no_form_has_a_number_that_says_nothing(text: str) -> None:
    assert not words_that_say_nothing(text), text


def test_a_small_price_has_no_exponent() -> None:
    found = recommend(compare([*single(100, 101, 99), *ddp(50, 51, 49)]), "cost", price=Price(0.001))
    assert found.why.startswith("0.00001406 a run for torch/single with 1 worker"), found.why
