"""Cost per success: made-up attempts whose answers are known, and simulated races of equal configurations."""

from __future__ import annotations

import math

import numpy as np
import pytest

from synthetic_races import EXAMPLES, repeated, result
from typed_judge import compare
from velodrome.job.values import Target
from velodrome.judge.attempts import (
    Attempts,
    contest_of_attempts,
    cost_of_unseen,
    prices_of,
    pseudo_values,
    times_to,
)
from velodrome.judge.decide import ContestState, decide

pytestmark = pytest.mark.unit

GOOD = Target.parse("accuracy>=0.9")


def attempts(amounts: list[float], *misses: int) -> Attempts:
    """So many runs, those with the given numbers without success."""
    blocks = [(number, 0) for number in range(1, len(amounts) + 1)]
    return Attempts(dict(zip(blocks, amounts, strict=True)),
                    frozenset(block for block in blocks if block[0] not in misses), tuple((miss, 0) for miss in misses))


def judged(*entries: Attempts, tolerance: float = 0.05) -> ContestState:
    return decide(contest_of_attempts(entries, tolerance))


def test_a_success_costs_what_all_runs_cost_together() -> None:
    made = repeated([EXAMPLES / 3] * 5, [0.95, 0.95, 0.80, 0.95, 0.95], workers=2)
    found = times_to(compare(made)[0], GOOD)
    assert (found.successes, found.tries, found.always) == (4, 5, False)
    assert found.per_success == pytest.approx(5 * 12.0 / 4)
    assert found.count_text == "4 of 5 runs"


def test_a_crash_costs_all_of_its_time_and_an_interrupted_run_nothing() -> None:
    made = repeated([EXAMPLES / 3] * 3, workers=2)
    crash = result("ddp", 2, status="failed", seed=4, seconds={"startup": 2.0, "train": 3.0, "total": 9.0})
    stopped = result("ddp", 2, status="interrupted", seed=5, seconds={"startup": 2.0, "train": 3.0, "total": 9.0})
    row = compare([*made, crash, stopped])[0]
    found = times_to(row, GOOD)
    assert (found.successes, found.tries) == (3, 4)
    assert found.per_success == pytest.approx((3 * 12.0 + 9.0) / 3)
    paid = prices_of(row, None, "process", 3600.0)
    assert paid.per_success == pytest.approx(2 * (3 * made[0]["seconds"]["total"] + 9.0) / 3)
    assert (paid.successes, paid.tries) == (3, 4)


def test_a_crash_that_was_run_again_counts_in_its_repetition() -> None:
    made = repeated([EXAMPLES / 3] * 3, workers=2)
    crash = result("ddp", 2, status="failed", seed=2, seconds={"startup": 2.0, "train": 3.0, "total": 9.0})
    found = times_to(compare([*made, crash])[0], GOOD)
    assert found.amounts == pytest.approx({(1, 0): 12.0, (2, 0): 21.0, (3, 0): 12.0})
    assert (found.count_text, found.always) == ("3 of 4 runs", False)
    assert found.per_success == pytest.approx(15.0)


def test_pseudo_values_are_those_of_the_jackknife() -> None:
    spent, reached = [3.0, 4.0, 5.0, 7.0], [True, False, True, True]
    found = pseudo_values(np.array([[*spent, np.nan]]), np.array([[*map(int, reached), 0]]))[0]
    whole = math.log(sum(spent) / 3)
    expected = []
    for place in range(4):
        others = [amount for other, amount in enumerate(spent) if other != place]
        left = sum(success for other, success in enumerate(reached) if other != place)
        expected.append(4 * whole - 3 * math.log(sum(others) / left))
    assert found[:4] - found[0] == pytest.approx(np.array(expected) - expected[0])
    assert found[:4].mean() == pytest.approx(whole), "a reader who divides the shown values finds the lead"
    assert np.isnan(found[4])
    assert np.isnan(pseudo_values(np.array([[1.0, 2.0]]), np.array([[0, 0]]))).all()


def test_their_scatter_is_the_error_of_the_cost_per_success() -> None:
    draws = np.random.default_rng(1)
    succeeded = (draws.random((4_000, 20)) < 0.8).astype(int)
    spent = np.exp(0.1 * draws.standard_normal(succeeded.shape))
    true = np.log(spent.sum(1) / succeeded.sum(1)).std()
    seen = pseudo_values(spent, succeeded)
    assert np.median(seen.std(1, ddof=1) / math.sqrt(20)) == pytest.approx(true, rel=0.1)
    assert seen.mean() == pytest.approx(math.log(spent.mean() / 0.8), abs=0.01)


def test_one_unlucky_run_of_five_neither_excludes_nor_hides_a_configuration() -> None:
    steady, unlucky = attempts([12.0, 12.1, 11.9, 12.0, 12.2]), attempts([4.0, 4.1, 3.9, 4.0, 4.1], 4)
    standing = judged(steady, unlucky)
    assert (standing.outcome, standing.leader) == ("open", 1), "it leads, and one failure does not put it out"
    more = judged(attempts([12.0, 12.1, 11.9, 12.0, 12.2] * 3), attempts([4.0, 4.1, 3.9, 4.0, 4.1] * 3, 4))
    assert (more.outcome, more.survivors) == ("one", (1,)), "more runs show that it wins in spite of its failure"
    close = judged(attempts([4.4, 4.5, 4.3, 4.4, 4.5]), unlucky)
    assert close.leader == 0, "the failure counts: 5.0 s per success"
    assert close.outcome == "open"


def test_runs_that_all_succeeded_are_compared_as_any_others() -> None:
    standing = judged(attempts([10.0, 10.1, 9.9]), attempts([5.0, 5.1, 4.9]))
    assert (standing.outcome, standing.survivors) == ("one", (1,))
    assert math.exp(standing.lead(1, 0).estimate) == pytest.approx(2.0, rel=0.01)


def test_a_failure_is_no_straggler() -> None:
    costly = attempts([5.0] * 9 + [60.0], 10)
    assert judged(attempts([6.0] * 10), costly).outcome == "open"


def test_a_failure_withdraws_what_was_claimed_before_it() -> None:
    steady = [10.0, 10.1, 9.9, 10.0, 10.1]
    assert [drop.look for drop in judged(attempts(steady), attempts([5.0, 5.1, 4.9, 5.0, 5.1])).drops] == [3]
    assert not judged(attempts(steady), attempts([5.0, 5.1, 4.9, 5.0, 90.0], 5)).drops
    before = judged(attempts(steady), attempts([50.0, 2.5, 2.4, 2.6, 2.5], 1))
    assert before.outcome == "open"


def test_a_failure_counts_also_in_a_repetition_that_the_others_lack() -> None:
    steady = attempts([10.0, 10.1, 9.9])
    assert judged(steady, attempts([5.0, 5.1, 4.9, 5.0])).outcome == "one"
    standing = judged(steady, attempts([5.0, 5.1, 4.9, 90.0], 4))
    assert (standing.outcome, standing.leader) == ("open", 0)
    assert standing.lead(0, 1).estimate == pytest.approx(math.log(105 / 3 / 10))


def test_one_that_has_not_failed_yet_beats_one_that_has_only_if_failures_to_come_would_not_change_that() -> None:
    flaky = attempts([10.0, 10.1, 9.9, 10.0, 10.1, 10.0], 3)
    steady = [10.0, 10.1, 9.9, 10.0, 10.1, 10.0]
    assert cost_of_unseen(6, 2) == pytest.approx(math.log(2 / 0.05) / 6), "0.54 ** 6 is a share of the error rate"
    standing = judged(attempts([0.9 * one for one in steady]), flaky)
    seen = standing.lead(0, 1)
    assert seen.estimate - seen.low > seen.high - seen.estimate, "only the one that never failed may be worse so"
    # Fewer failures than the other had are enough: without them it would be compared by the runs that succeed.
    assert (seen.estimate - seen.low) - (seen.high - seen.estimate) == pytest.approx(math.log(60.1 / 50.2))
    often = judged(attempts([0.9 * one for one in steady]), attempts(steady, 1, 3, 5, 6)).lead(0, 1)
    assert (often.estimate - often.low) - (often.high - often.estimate) == pytest.approx(cost_of_unseen(6, 2))


def test_those_that_never_failed_are_compared_by_their_runs_beside_one_that_did() -> None:
    fast, slow = attempts([5.0, 5.1, 4.9, 5.0, 5.1] * 2), attempts([10.0, 10.1, 9.9, 10.0, 10.1] * 2)
    lead = judged(fast, slow, attempts([9.0, 9.1, 8.9, 9.0, 9.1] * 2, 2)).lead(0, 1)
    assert lead.low > 0
    assert lead.estimate - lead.low == pytest.approx(lead.high - lead.estimate)


def test_a_run_that_was_ended_early_took_at_least_so_long_and_can_lose_but_not_win() -> None:
    cut = Attempts({(number, 0): 10.0 for number in (1, 2, 3)}, frozenset({(1, 0), (2, 0), (3, 0)}),
                   cut=frozenset({(2, 0), (3, 0)}))
    assert judged(attempts([5.0, 5.1, 4.9]), cut).survivors == (0,)
    assert judged(attempts([20.0, 20.2, 19.8]), cut).outcome == "open"


def test_a_run_that_was_ended_early_counts_with_its_training_until_then() -> None:
    made = repeated([EXAMPLES / 3] * 2, workers=2)
    ended = result("ddp", 2, seed=3, status="interrupted", error={"message": "ended early", "cause": "beaten"},
                   history=[{"epoch": 1, "seconds": 7.0}, {"epoch": 2, "seconds": 8.0}])
    found = times_to(compare([*made, ended])[0], GOOD)
    assert found.amounts == pytest.approx({(1, 0): 12.0, (2, 0): 12.0, (3, 0): 15.0})
    assert (found.successes, found.tries, found.cut) == (3, 3, frozenset({(3, 0)}))
    sooner = times_to(compare([*made, {**ended, "history": ended["history"][:1]}])[0], GOOD)
    assert set(sooner.amounts.values()) == {7.0}, "of none of them more is known"
    missed = times_to(compare([*repeated([EXAMPLES / 3] * 2, accuracy=0.8, workers=2), ended])[0], GOOD)
    assert (missed.successes, missed.tries) == (0, 3), "without any success it is one more that was none"


def test_equal_configurations_that_fail_now_and_then_are_seldom_told_apart() -> None:
    draws, races, wrong = np.random.default_rng(7), 250, 0
    for _ in range(races):
        shared = 0.1 * draws.standard_normal(6)
        entries = []
        for _ in range(3):
            spent = np.exp(shared + 0.1 * draws.standard_normal(6))
            misses = 1 + np.flatnonzero(draws.random(6) > 0.8)
            spent[misses - 1] *= 1.5
            entries.append(attempts(spent.tolist(), *misses.tolist()))
        wrong += bool(judged(*entries).drops)
    assert wrong / races <= 0.05
