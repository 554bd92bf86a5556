"""Every form of a verdict that is settled by speed, with the runs that lead to it: what a person reads, word for word.

A change of the words changes these lists, so that somebody reads the new ones.
"""

from __future__ import annotations

import pytest

from synthetic_races import repeated
from verdict_questions import Form, answer, ddp, single, words_that_say_nothing

pytestmark = pytest.mark.unit

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
        lambda: answer([*single(100, 101, 99), *ddp(190, 192, 188, 150, 152, 149, 151, 150, 148)]),
        "use torch/ddp with 2 workers: the fastest of 2 configurations.",
        "162 examples/s for torch/ddp with 2 workers (mean of 9 runs), 90 % faster (at least 88 %) than the other in "
        "the 3 repetitions that both ran, 100 examples/s for torch/single with 1 worker (mean of 3 runs).",
        "try 4 workers: 2 still reach 95 % of the ideal.",
        id="one that was out early, on a machine that slowed down later",
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
        lambda: answer([
            *repeated([100.0, 103.1, 97.2, 101.4, 98.3, 102.6, 99.1, 97.9, 101.8, 100.4, 98.8, 101.1],
                      strategy="allreduce", workers=1),
            *single(97.0, 93.6, 92.5, 96.2, 94.9, 93.4, 95.5, 94.5, 97.4, 91.9, 95.8, 92.9),
            *ddp(95.4, 93.9, 96.0, 95.0, 97.9, 92.3, 96.3, 93.4, 97.5, 94.1, 93.0, 96.7),
        ]),
        "do not distribute this: use torch/single with 1 worker.",
        "100 examples/s for torch/allreduce with 1 worker (mean of 12 runs) is 5 % faster (at least 1.0 %) than the "
        "best distributed one, 95 examples/s for torch/ddp with 2 workers (mean of 12 runs). torch/single with 1 "
        "worker does the same without a strategy (95 examples/s), and a difference of more than 5 % is not shown.",
        "a larger model, data set or batch gives every message more work: race again with one of them before paying "
        "for more workers.",
        id="one worker has won, and single is about as good",
    ),
    pytest.param(
        lambda: answer([
            *repeated([130, 131, 129], strategy="allreduce", workers=1), *single(100, 101, 99), *ddp(90, 91, 89),
        ]),
        "one worker is enough: use torch/allreduce with 1 worker.",
        "130 examples/s for torch/allreduce with 1 worker (mean of 3 runs) is 44 % faster (at least 41 %) than the "
        "best distributed one, 90 examples/s for torch/ddp with 2 workers (mean of 3 runs). It is 30 % faster (at "
        "least 27 %) than torch/single with 1 worker.",
        "a larger model, data set or batch gives every message more work: race again with one of them before paying "
        "for more workers.",
        id="one worker has won, and single is far behind",
    ),
    pytest.param(
        lambda: answer([*repeated([130, 131, 129], strategy="allreduce", workers=1), *ddp(90, 91, 89)]),
        "one worker is enough: use torch/allreduce with 1 worker.",
        "130 examples/s for torch/allreduce with 1 worker (mean of 3 runs) is 44 % faster (at least 40 %) than the "
        "best distributed one, 90 examples/s for torch/ddp with 2 workers (mean of 3 runs).",
        "add its engine's single run to the race: one worker needs no strategy, so that is most likely as good.",
        id="one worker has won, and single did not run",
    ),
    pytest.param(
        lambda: answer([
            *single(100, 101, 99), *single(100.2, 101.1, 99.1, engine="tensorflow"), *ddp(90, 91, 89),
        ]),
        "do not distribute this: use tensorflow/single with 1 worker; it is level with torch/single with 1 worker.",
        "100 examples/s for tensorflow/single with 1 worker (mean of 3 runs) against 100 examples/s for torch/single "
        "with 1 worker (mean of 3 runs): 0.1 % apart, surely less than 5 %.",
        "a larger model, data set or batch gives every message more work: race again with one of them before paying "
        "for more workers.",
        id="level, and both in one process",
    ),
    pytest.param(
        lambda: answer([
            *repeated([160, 161, 159], strategy="parameter-server", engine="tensorflow", servers=1),
            *single(100, 101, 99, engine="tensorflow"),
        ]),
        "use tensorflow/parameter-server with 1 worker and 1 server: the fastest of 2 configurations.",
        "160 examples/s for tensorflow/parameter-server with 1 worker and 1 server (mean of 3 runs), 60 % faster (at "
        "least 55 %) than the other, 100 examples/s for tensorflow/single with 1 worker (mean of 3 runs).",
        "add runs of tensorflow/parameter-server with 2 and more workers: so far it ran with one.",
        id="one worker beside a parameter server",
    ),
    pytest.param(
        lambda: answer([*single(0.1, 0.101, 0.099), *ddp(0.16, 0.161, 0.159)]),
        "use torch/ddp with 2 workers: the fastest of 2 configurations.",
        "0.16 examples/s for torch/ddp with 2 workers (mean of 3 runs), 60 % faster (at least 55 %) than the other, "
        "0.1 examples/s for torch/single with 1 worker (mean of 3 runs).",
        "try 4 workers: 2 still reach 80 % of the ideal.",
        id="less than one example per second",
    ),
]


@pytest.mark.parametrize(("ask", "verdict", "why", "proposal"), FORMS)
def test_the_words_of_every_form_of_a_verdict(ask: Form, verdict: str, why: str, proposal: str) -> None:
    assert ask().lines == (f"Verdict: {verdict}", f"Why: {why}", f"Next: {proposal}")


@pytest.mark.parametrize("text", [" ".join(map(str, form.values[1:])) for form in FORMS])
def test_no_form_has_a_number_that_says_nothing(text: str) -> None:
    assert not words_that_say_nothing(text), text
