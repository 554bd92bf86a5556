"""Every form of a verdict, with the runs that lead to it: what a person reads, word for word.

The words are in `verdicts.txt` beside this file. `python tests/judge/test_verdict_words.py` writes them anew, so
that somebody reads the difference.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from synthetic_races import beside, repeated, result
from velodrome.judge.criteria import Price
from velodrome.judge.verdict import Recommendation
from verdict_questions import answer, ddp, script, single, with_right, words_that_say_nothing

pytestmark = pytest.mark.unit

GOLDEN = Path(__file__).with_name("verdicts.txt")
#: Words of a first line, at most.
MOST_WORDS = 40

#: What is asked, by what it is an example of.
FORMS: dict[str, Callable[[], Recommendation]] = {
    "one has beaten all others": lambda: answer(
        [
            *single(100, 101, 99),
            *ddp(190, 192, 188),
            *repeated([150, 152, 148], strategy="allreduce", workers=2),
        ]
    ),
    "one of two": lambda: answer([*single(100, 101, 99), *ddp(1900, 1920, 1880, workers=32)]),
    "one that was out early, on a machine that slowed down later": lambda: answer(
        [*single(100, 101, 99), *ddp(190, 192, 188, 150, 152, 149, 151, 150, 148)]
    ),
    "one has beaten all that are distributed": lambda: answer([*single(100, 101, 99), *ddp(70, 71, 69)]),
    "by far": lambda: answer([*single(100, 101, 99), *ddp(7, 7.1, 6.9)]),
    "level and distributed": lambda: answer(
        [
            *single(100, 101, 99),
            *ddp(200, 202, 198, workers=4),
            *repeated([199, 201, 198], strategy="allreduce", workers=2),
        ]
    ),
    "level with one process": lambda: answer([*single(100, 101, 99), *ddp(100.5, 101.4, 99.6)]),
    "equal": lambda: answer([*single(100, 101, 99), *ddp(100, 101, 99)]),
    "a difference that no clock can show": lambda: answer([*single(100, 100, 100), *ddp(100.02, 100.02, 100.02)]),
    "a lead that is shown but too small to matter": lambda: answer(
        [*single(100, 100.4, 99.8), *ddp(103, 103.3, 102.8)]
    ),
    "a small lead that may matter": lambda: answer([*single(*[100, 101, 99] * 4), *ddp(*[106, 107.2, 104.9] * 4)]),
    "one worker has won, and single is about as good": lambda: answer(
        [
            *repeated(
                [100.0, 103.1, 97.2, 101.4, 98.3, 102.6, 99.1, 97.9, 101.8, 100.4, 98.8, 101.1],
                strategy="allreduce",
                workers=1,
            ),
            *single(97.0, 93.6, 92.5, 96.2, 94.9, 93.4, 95.5, 94.5, 97.4, 91.9, 95.8, 92.9),
            *ddp(95.4, 93.9, 96.0, 95.0, 97.9, 92.3, 96.3, 93.4, 97.5, 94.1, 93.0, 96.7),
        ]
    ),
    "one worker has won, and single is far behind": lambda: answer(
        [
            *repeated([130, 131, 129], strategy="allreduce", workers=1),
            *single(100, 101, 99),
            *ddp(90, 91, 89),
        ]
    ),
    "one worker has won, and single did not run": lambda: answer(
        [*repeated([130, 131, 129], strategy="allreduce", workers=1), *ddp(90, 91, 89)]
    ),
    "level, and both in one process": lambda: answer(
        [
            *single(100, 101, 99),
            *single(100.2, 101.1, 99.1, engine="tensorflow"),
            *ddp(90, 91, 89),
        ]
    ),
    "one worker beside a parameter server": lambda: answer(
        [
            *repeated([160, 161, 159], strategy="parameter-server", engine="tensorflow", servers=1),
            *single(100, 101, 99, engine="tensorflow"),
        ]
    ),
    "less than one example per second": lambda: answer([*single(0.1, 0.101, 0.099), *ddp(0.16, 0.161, 0.159)]),
    "a lead that may be chance": lambda: answer([*single(100, 120, 110), *ddp(145, 125, 138)]),
    "runs that differ too much": lambda: answer([*single(100, 20, 110), *ddp(145, 125, 18)]),
    "open among those in one process": lambda: answer(
        [*single(100, 120, 110), *single(120, 100, 112, batch_size=128), *ddp(10, 10.2, 9.9)]
    ),
    "open between single and a strategy with one worker": lambda: answer(
        [*single(100, 120, 110), *ddp(120, 100, 112, workers=1), *ddp(10, 10.2, 9.9)]
    ),
    "open among those that are distributed": lambda: answer(
        [*single(10, 10.1, 9.9), *ddp(100, 120, 110, workers=16), *ddp(120, 100, 112, workers=32)]
    ),
    "open without a baseline": lambda: answer([*ddp(100, 120, 110), *ddp(120, 100, 112, workers=4)]),
    "one run of each": lambda: answer([result("single", 1, 100.0), result("ddp", 2, 150.0)]),
    "two runs of each": lambda: answer([*single(100, 101), *ddp(150, 152)]),
    "nothing to compare with": lambda: answer(single(100, 101, 99)),
    "no run finished": lambda: answer([]),
    "more accurate": lambda: answer(
        [
            *single(100, 101, 99, accuracies=[0.90, 0.901, 0.902]),
            *ddp(50, 50, 50, accuracies=[0.95, 0.951, 0.952]),
        ],
        "accuracy",
    ),
    "not shown to be more accurate": lambda: answer(
        [
            *single(100, 101, 99, accuracies=[0.93, 0.97, 0.91]),
            *ddp(50, 50, 50, accuracies=[0.95, 0.91, 0.952]),
        ],
        "accuracy",
    ),
    "faster to a target": lambda: answer(
        [*single(100, 101, 99), *ddp(190, 192, 188)], "time-to-accuracy", "accuracy>=0.9"
    ),
    "a target that was missed once": lambda: answer(
        [
            *single(*[100] * 6),
            *ddp(180, 182, 178, 181, 179, 180, accuracies=[0.95, 0.95, 0.9, 0.95, 0.95, 0.95]),
        ],
        "time-to-accuracy",
        "accuracy>=0.94",
    ),
    "a target that nobody reached": lambda: answer(
        [*single(100, 101, 99), *ddp(190, 192, 188)], "time-to-accuracy", "accuracy>=0.99"
    ),
    "a target that only one reached": lambda: answer(
        [
            *single(100, 101, 99, accuracies=[0.95, 0.951, 0.952]),
            *ddp(190, 192, 188, accuracies=[0.92, 0.92, 0.92]),
        ],
        "time-to-accuracy",
        "accuracy>=0.94",
    ),
    "cheaper": lambda: answer([*single(100, 101, 99), *ddp(150, 151, 149)], "cost"),
    "set aside because of its accuracy": lambda: answer(
        [
            *single(100, 101, 99),
            *ddp(400, 402, 398, accuracy=0.9),
            *repeated([180, 182, 178], strategy="allreduce", workers=2),
        ]
    ),
    "accuracy not settled": lambda: answer(
        [
            *single(100, 101, 99, accuracies=[0.95, 0.951, 0.952]),
            *ddp(190, 192, 188, accuracies=[0.941, 0.949, 0.947]),
            *ddp(150, 152, 148, workers=4, accuracies=[0.942, 0.948, 0.949]),
        ]
    ),
    "all others set aside because of their accuracy": lambda: answer(
        [*single(100, 101, 99), *ddp(180, 181, 179, accuracy=0.8)]
    ),
    "a test set that is too small": lambda: answer(
        [
            *with_right(353, 359, single(100, 101, 99)),
            *with_right(352, 359, ddp(150, 151, 149)),
        ],
        "accuracy",
    ),
    "accuracy not settled by a hair": lambda: answer(
        [
            *with_right(9530, 10_000, single(100, 101, 99)),
            *with_right(9508, 10_000, ddp(150, 151, 149)),
        ]
    ),
    "a winner that crashed": lambda: answer(
        [*single(100, 101, 99), *ddp(190, 192, 188), result("ddp", 2, 1.0, status="failed", seed=4)]
    ),
    "beside other programs": lambda: answer([*[beside(run, 0.9) for run in single(100, 101, 99)], *ddp(190, 192, 188)]),
    "too good to be true": lambda: answer([*single(100, 101, 99), *ddp(500, 510, 490)]),
    "updates of different size": lambda: answer(
        [*single(100, 101, 99), *ddp(190, 192, 188, batch_scope="per-worker", batch_of_step=128)]
    ),
    "stragglers left out of means, as they are of leads": lambda: answer(
        [
            *single(100, 101, 99, 100, 30, 100, 101, 99, 100, 100),
            *ddp(150, 152, 149, 20, 150, 151, 150, 149, 150, 150),
        ]
    ),
    "stragglers left out of repetitions that decided": lambda: answer(
        [
            *single(100, 108, 94, 104, 98, 106, 95, 101),
            *ddp(112, 110, 113, 111, 40, 114, 109, 112),
        ]
    ),
    "updates of three sizes": lambda: answer(
        [
            *single(100, 101, 99),
            *ddp(150, 151, 149, batch_scope="per-worker", batch_of_step=128),
            *ddp(140, 141, 139, workers=4, batch_scope="per-worker", batch_of_step=256),
        ]
    ),
    "two workers lead in every repetition, on a machine that is busy": lambda: answer(
        [*[beside(run, 0.3) for run in single(100, 110, 95)], *[beside(run, 0.3) for run in ddp(280, 300, 270)]]
    ),
    "a lead that the load may have made": lambda: answer(
        [*[beside(run, 0.3) for run in single(100, 101, 99)], *[beside(run, 0.3) for run in ddp(130, 131, 129)]]
    ),
    "a lead on a machine that others use up": lambda: answer(
        [*[beside(run, 1.4) for run in single(100, 101, 99)], *[beside(run, 1.4) for run in ddp(400, 404, 396)]]
    ),
    "open, on a machine that others use up": lambda: answer(
        [*[beside(run, 1.4) for run in single(100, 120, 110)], *[beside(run, 1.4) for run in ddp(145, 125, 138)]]
    ),
    "runs that scatter beside other programs": lambda: answer(
        [*[beside(run, 1.4) for run in single(100, 160, 60, 130)], *[beside(run, 1.4) for run in ddp(90, 70, 150, 80)]]
    ),
    "open, between configurations with long names": lambda: answer(
        [
            *[
                beside(run, 1.4)
                for workers, batch, rates in ((2, 64, (100, 120, 110)), (16, 128, (145, 125, 138)))
                for run in repeated(rates, strategy="parameter-server", engine="tensorflow", workers=workers,
                                    servers=2 * workers, batch_size=batch)
            ]
        ]
    ),
    "level on a machine that is busy": lambda: answer(
        [*[beside(run, 0.3) for run in single(100, 101, 99)], *[beside(run, 0.3) for run in ddp(100, 101, 99)]]
    ),
    "the fastest learns far less, in one run each": lambda: answer(
        [*single(100, accuracy=0.918), *ddp(280, accuracy=0.523)]
    ),
    "the fastest learns far less, in two runs each": lambda: answer(
        [*single(100, 101, accuracy=0.918), *ddp(280, 282, accuracy=0.523)]
    ),
    "the fastest seems to learn less": lambda: answer(
        [
            *repeated([100, 101, 99], [0.918, 0.93, 0.925], strategy="single"),
            *repeated([280, 282, 278], [0.5, 0.95, 0.85], workers=2),
        ]
    ),
    "a script that trains otherwise with more workers": lambda: answer(
        [*script(1, 100, 101, 99), *script(2, 190, 192, 188, batch=128)]
    ),
    "a script that keeps its batch": lambda: answer([*script(1, 100, 101, 99), *script(2, 190, 192, 188)]),
    "a script that reported no examples": lambda: answer([*script(1, None, None, None), *script(2, None, None, None)]),
    "a script that sets its own seed, and learns a little less": lambda: answer(
        [
            *script(1, 100, 101, 99, one_seed=True, accuracy=0.262),
            *script(2, 190, 192, 188, one_seed=True, accuracy=0.243),
        ]
    ),
    "a script that sets its own seed, and learns far less": lambda: answer(
        [
            *script(1, 100, 101, 99, one_seed=True, accuracy=0.918),
            *script(2, 190, 192, 188, one_seed=True, accuracy=0.523),
        ]
    ),
    "the accuracy of a script that sets its own seed": lambda: answer(
        [
            *script(1, 100, 101, 99, one_seed=True, accuracy=0.262),
            *script(2, 190, 192, 188, one_seed=True, accuracy=0.243),
        ],
        "accuracy",
    ),
    "one core": lambda: answer(
        [
            run | {"machine": run["machine"] | {"cores": 1}}
            for run in [*single(100, 101, 99), *ddp(70, 71, 69, workers=1, batch_size=128)]
        ]
    ),
    "losers that waited": lambda: answer(
        [
            *single(100, 101, 99),
            *[run | {"shares": {"compute": 0.4, "wait": 0.35, "communicate": 0.25}} for run in ddp(70, 71, 69)],
        ]
    ),
    "four ways to use one process": lambda: answer(
        [
            *single(100, 101, 99),
            *ddp(103, 102, 104, workers=1),
            *repeated([99, 98, 97], strategy="allreduce"),
            *ddp(60, 61, 59),
        ]
    ),
}


def written(name: str) -> str:
    """A form as the file has it: its name, the decision, the three lines, and the caveats."""
    found = FORMS[name]()
    mark = "" if found.reliable else ", not reliable"
    return "\n".join([f"# {name} ({found.decision}{mark})", *found.lines, *(f"- {caveat}" for caveat in found.caveats)])


def _golden() -> dict[str, str]:
    parts = GOLDEN.read_text(encoding="utf-8").strip().split("\n\n")
    return {part.removeprefix("# ").partition(" (")[0]: part for part in parts}


@pytest.mark.parametrize("name", FORMS)
def test_the_words_of_every_form_of_a_verdict(name: str) -> None:
    assert written(name) == _golden()[name]


def test_no_form_is_written_down_that_is_not_asked_for() -> None:
    assert list(_golden()) == list(FORMS)


@pytest.mark.parametrize("name", FORMS)
def test_a_first_line_is_short_and_no_number_says_nothing(name: str) -> None:
    found = FORMS[name]()
    assert len(found.verdict.split()) <= MOST_WORDS
    assert "((" not in found.verdict
    assert "(" not in found.verdict
    assert not words_that_say_nothing(" ".join((*found.lines, *found.caveats)))


@pytest.mark.parametrize("name", FORMS)
def test_the_command_runs_as_many_repetitions_as_the_verdict_says_are_needed(name: str) -> None:
    found = FORMS[name]()
    needed = re.search(r"(?P<number>\d+) (?P<what>more|repetitions on an idle)", found.verdict)
    most = re.search(r"--max-repeat (\d+)", found.next)
    if needed is not None and most is not None:
        so_far = max(counts["runs"] for counts in found.configurations.values())
        more = needed["what"] == "more"
        assert int(most[1]) == int(needed["number"]) + (so_far if more else 0)
        assert ("RACE-idle" in found.next) != more


def test_runs_of_a_script_that_report_different_figures_count_each() -> None:
    found = answer([*script(1, 100, 101, 99, accuracy=0.918), *script(2, 190, 192, 188, accuracy=0.523)])
    assert found.best == "torch/script with 1 worker"
    assert found.decision == "alone", "three seeds prove it"


def test_a_small_price_has_no_exponent() -> None:
    found = answer([*single(100, 101, 99), *ddp(50, 51, 49)], "cost", price=Price(0.001))
    assert "0.00001406 against" in found.why


if __name__ == "__main__":
    GOLDEN.write_text("\n\n".join(map(written, FORMS)) + "\n", encoding="utf-8")
