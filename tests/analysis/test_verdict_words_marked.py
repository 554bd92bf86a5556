"""Forms of a verdict with a mark: crashes, doubts and updates of different size, word for word.

A change of the words changes these lists, so that somebody reads the new ones.
"""

from __future__ import annotations

import pytest

from synthetic_races import beside, result
from verdict_questions import Form, answer, ddp, single, words_that_say_nothing

pytestmark = pytest.mark.unit

#: What is asked, and the three lines of the answer.
FORMS = [
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
    pytest.param(
        lambda: answer([
            *single(100, 101, 99, 100, 30, 100, 101, 99, 100, 100),
            *ddp(150, 152, 149, 20, 150, 151, 150, 149, 150, 150),
        ]),
        "use torch/ddp with 2 workers: the fastest of 2 configurations.",
        "150 examples/s for torch/ddp with 2 workers (mean of 8 of 10 runs, stragglers left out), 50 % faster (at "
        "least 48 %) than the other, 100 examples/s for torch/single with 1 worker (mean of 8 of 10 runs, stragglers "
        "left out).",
        "try 4 workers: 2 still reach 75 % of the ideal.",
        id="stragglers left out of means, as they are of leads",
    ),
    pytest.param(
        lambda: answer([
            *single(100, 101, 99),
            *ddp(150, 151, 149, batch_scope="per-worker", batch_of_step=128),
            *ddp(140, 141, 139, workers=4, batch_scope="per-worker", batch_of_step=256),
        ]),
        "use torch/ddp with 2 workers: the fastest of 3 configurations (128-example updates against 256 of torch/ddp "
        "with 4 workers and 64 of torch/single with 1 worker).",
        "150 examples/s for torch/ddp with 2 workers (mean of 3 runs), 50 % faster (at least 46 %) than torch/single "
        "with 1 worker, and 7 % faster (at least 5 %) than the next, 140 examples/s for torch/ddp with 4 workers "
        "(mean of 3 runs).",
        "torch/ddp with 4 workers did no better here: a larger model, data set or batch gives every message more "
        "work: race again with one of them before paying for more workers.",
        id="updates of three sizes",
    ),
]


@pytest.mark.parametrize(("ask", "verdict", "why", "proposal"), FORMS)
def test_the_words_of_every_form_of_a_verdict(ask: Form, verdict: str, why: str, proposal: str) -> None:
    assert ask().lines == (f"Verdict: {verdict}", f"Why: {why}", f"Next: {proposal}")


@pytest.mark.parametrize("text", [" ".join(map(str, form.values[1:])) for form in FORMS])
def test_no_form_has_a_number_that_says_nothing(text: str) -> None:
    assert not words_that_say_nothing(text), text
