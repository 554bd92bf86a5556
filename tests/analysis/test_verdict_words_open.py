"""Every form of a verdict that is open or has nothing to say, with the runs that lead to it, word for word.

A change of the words changes these lists, so that somebody reads the new ones.
"""

from __future__ import annotations

import pytest

from synthetic_races import result
from verdict_questions import Form, answer, ddp, single, words_that_say_nothing

pytestmark = pytest.mark.unit

#: What is asked, and the three lines of the answer.
FORMS = [
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
        lambda: answer([*single(100, 120, 110), *ddp(120, 100, 112, workers=1), *ddp(10, 10.2, 9.9)]),
        "do not distribute this: by default use torch/single with 1 worker; which of torch/ddp with 1 worker and "
        "torch/single with 1 worker is best is open.",
        "110 examples/s for torch/ddp with 1 worker (mean of 3 runs) against 110 examples/s for torch/single with 1 "
        "worker (mean of 3 runs): 0.6 % apart, but as far as these runs show the first may be anything from 3.3 times "
        "slower to 3.3 times as fast.",
        "more than 100 further repetitions would be needed to tell them apart: choose the simplest, or ask with a "
        "larger --tolerance.",
        id="open between single and a strategy with one worker",
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
]


@pytest.mark.parametrize(("ask", "verdict", "why", "proposal"), FORMS)
def test_the_words_of_every_form_of_a_verdict(ask: Form, verdict: str, why: str, proposal: str) -> None:
    assert ask().lines == (f"Verdict: {verdict}", f"Why: {why}", f"Next: {proposal}")


@pytest.mark.parametrize("text", [" ".join(map(str, form.values[1:])) for form in FORMS])
def test_no_form_has_a_number_that_says_nothing(text: str) -> None:
    assert not words_that_say_nothing(text), text
