"""The figures of a verdict agree with one another and with the table of results, or it says why they do not."""

from __future__ import annotations

import re

import pytest

from synthetic_races import repeated, result
from typed_judge import compare
from velodrome.cli.output import SafeConsole
from velodrome.cli.race_output import print_comparison
from velodrome.judge.verdict import Recommendation
from verdict_questions import Runs, answer, ddp, single

pytestmark = pytest.mark.unit

#: The winner of these is faster in its first repetitions, in which the other was out, than in later ones.
OUT_EARLY: Runs = [*single(100, 101, 99), *ddp(190, 192, 188, 150, 152, 149)]
LEFT_ALONE: Runs = [*OUT_EARLY, *repeated([180, 182, 178, 160, 165, 155], strategy="allreduce", workers=2)]
ONE_MISSING: Runs = [*single(3000, 4400, 2475, 2639), *ddp(2000, 3000, 1490)]


def measured(found: Recommendation) -> tuple[float, float]:
    numbers = re.search(r"([\d,.]+) against ([\d,.]+) examples/s", found.why)
    assert numbers is not None, found.why
    first, second = (float(number.replace(",", "")) for number in numbers.groups())
    return first, second


@pytest.mark.parametrize("runs", [
    OUT_EARLY, LEFT_ALONE, ONE_MISSING,
    [*single(100, 101, 99, 70, 71, 69), *ddp(190, 192, 188, 150, 152, 149)],
    [*single(100, 101, 99, 100, 30, 100, 101, 99, 100, 100), *ddp(150, 152, 149, 20, 150, 151, 150, 149, 150, 150)],
])
def test_what_two_measured_is_as_far_apart_as_the_verdict_says(runs: Runs) -> None:
    found = answer(runs)
    first, second = measured(found)
    assert found.lead is not None
    assert first / second == pytest.approx(found.lead.estimate, rel=0.01), found.why


@pytest.mark.parametrize(("runs", "counted"), [(OUT_EARLY, "in 3 repetitions"), (ONE_MISSING, "in all 3 repetitions")])
def test_the_repetitions_are_those_that_are_compared(runs: Runs, counted: str) -> None:
    assert counted in " ".join(answer(runs).lines)


@pytest.mark.parametrize("runs", [OUT_EARLY, ONE_MISSING])
def test_means_that_differ_from_those_of_the_table_are_explained(runs: Runs) -> None:
    assert ("Figures in this answer are from the 3 repetitions in which both were compared; means in tables include "
            "all runs.") in answer(runs).caveats


def test_means_of_all_runs_need_no_explanation() -> None:
    found = answer([*single(100, 101, 99), *ddp(190, 192, 188)])
    assert not any("means in tables" in caveat for caveat in found.caveats)


def test_an_accuracy_is_the_mean_that_the_table_has() -> None:
    runs = [*single(100, 101, 99, accuracies=[0.93, 0.97, 0.91]), *ddp(50, 50, 50, accuracies=[0.95, 0.91, 0.952])]
    means = [f"{row.mean('accuracy'):.4f}" for row in compare(runs)]
    assert means == ["0.9367", "0.9373"]
    assert all(mean in answer(runs, "accuracy").why for mean in means)


def test_one_run_of_each_is_compared_as_it_is() -> None:
    assert measured(answer([result("single", 1, 100.0), result("ddp", 2, 150.0)])) == (150, 100)


@pytest.mark.parametrize(("runs", "named"), [(OUT_EARLY, True), ([*single(100, 101, 99), *ddp(190, 192, 188)], False)])
def test_a_table_says_where_a_speedup_is_of_fewer_runs_than_the_means(
    runs: Runs, named: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    print_comparison(SafeConsole(width=200), compare(runs), "velodrome report made")
    said = "speedup, scaling: from the repetitions that both ran"
    assert (said in " ".join(capsys.readouterr().out.split())) is named
