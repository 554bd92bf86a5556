"""The difference in accuracy has the errors of seeds and of a finite test set: checked against simulated truth."""

from __future__ import annotations

import math

import numpy as np
import pytest

from synthetic_races import repeated
from typed_judge import as_result
from velodrome.judge.accuracy import Difference, Score, difference
from velodrome.judge.pairs import compare_pair

pytestmark = pytest.mark.unit


def _scores(rights: list[np.ndarray], seeds: range, sets: list[str] | None = None) -> list[Score]:
    """Scores of runs that recorded which examples were right."""
    return [
        Score(seed, float(right.mean()), len(right), right.astype(np.float64), sets[place] if sets else "the set")
        for place, (seed, right) in enumerate(zip(seeds, rights, strict=True))
    ]


def _without_examples(scores: list[Score]) -> list[Score]:
    return [Score(score.seed, score.value, score.total) for score in scores]


def _run(generator: np.random.Generator, easy: np.ndarray, quality: float, jitter: float) -> np.ndarray:
    """Which examples a run classifies correctly: an example has a difficulty, a run an ability."""
    ability = quality + generator.normal(0, jitter)
    return easy + generator.normal(0, 0.5, len(easy)) + ability > 0


def _truth(quality: float, jitter: float) -> float:
    """The accuracy over all seeds and all examples that could have been drawn."""
    return 0.5 * (1 + math.erf(quality / math.sqrt(2 * (1 + 0.25 + jitter**2))))


def _coverage(
    examples: int, runs: tuple[int, int], jitters: tuple[float, float], *, same_seeds: bool, same_set: bool = True,
    trials: int = 2_000, qualities: tuple[float, float] = (1.5, 1.4),
) -> float:
    generator = np.random.default_rng([examples, *runs, same_seeds, same_set])
    truth = _truth(qualities[0], jitters[0]) - _truth(qualities[1], jitters[1])
    covered, starts = 0, (0, 0 if same_seeds else 100)
    for _ in range(trials):
        easy = [generator.normal(0, 1, examples) for _ in range(1 if same_set else max(runs))]
        sides = [
            _scores([_run(generator, easy[min(run, len(easy) - 1)], quality, jitter) for run in range(count)],
                    range(first, first + count), None if same_set else [str(run) for run in range(count)])
            for count, quality, jitter, first in zip(runs, qualities, jitters, starts, strict=True)
        ]
        low, high = difference(*sides).interval()
        covered += low <= truth <= high
    return covered / trials


@pytest.mark.parametrize(("examples", "runs", "jitters", "same_seeds", "same_set"), [
    pytest.param(359, (3, 3), (0.0, 0.0), True, True, id="examples alone vary"),
    pytest.param(1_000, (5, 5), (0.2, 0.2), True, True, id="seeds dominate"),
    pytest.param(359, (5, 5), (0.05, 0.05), True, True, id="both vary alike"),
    pytest.param(359, (5, 5), (0.05, 0.05), True, False, id="each seed has its own test set"),
    pytest.param(359, (5, 8), (0.2, 0.02), False, True, id="other seeds and unequal spreads"),
    pytest.param(359, (10, 10), (0.05, 0.05), True, True, id="ten runs"),
])
def test_the_interval_contains_the_true_difference_in_95_of_100_cases(
    examples: int, runs: tuple[int, int], jitters: tuple[float, float], same_seeds: bool, same_set: bool
) -> None:
    assert 0.93 <= _coverage(examples, runs, jitters, same_seeds=same_seeds, same_set=same_set) <= 0.98


@pytest.mark.parametrize("jitter", [0.0, 0.05, 0.2])
def test_two_runs_of_each_are_never_trusted_too_much(jitter: float) -> None:
    assert _coverage(359, (2, 2), (jitter, jitter), same_seeds=True, trials=1_000) >= 0.93


def test_353_and_352_of_359_are_level() -> None:
    right = np.arange(359) < 353
    other = np.roll(np.arange(359) < 352, 3)
    once = [_scores([answers], range(1)) for answers in (right, other)]
    often = [_without_examples(_scores([answers] * 3, range(3))) for answers in (right, other)]
    for sides in (once, often):
        found = difference(*sides)
        low, high = found.interval()
        assert found.estimate == pytest.approx(1 / 359)
        assert low < 0 < high


def test_one_run_of_each_leaves_the_seeds_unknown_but_not_the_examples() -> None:
    generator = np.random.default_rng(1)
    right, other = generator.random(1_000) < 0.9, generator.random(1_000) < 0.8
    found = difference(_scores([right], range(1)), _scores([other], range(1)))
    each = right.astype(float) - other
    assert found.paired
    assert not found.seeds_known
    assert found.error == pytest.approx(each.std() / math.sqrt(1_000), rel=0.01)
    assert not difference(_scores([right], range(1)), _scores([other] * 4, range(4))).seeds_known


def test_runs_that_err_on_the_same_examples_are_compared_more_precisely_when_paired() -> None:
    generator = np.random.default_rng(2)
    hard = generator.random(2_000) < 0.1
    sides = [_scores([~hard ^ (generator.random(2_000) < 0.002) for _ in range(4)], range(4)) for _ in range(2)]
    paired, apart = difference(*sides), difference(*map(_without_examples, sides))
    assert paired.paired
    assert not apart.paired
    assert paired.estimate == pytest.approx(apart.estimate)
    assert paired.error < apart.error / 4


def test_equal_runs_differ_by_less_than_a_few_examples_but_not_by_exactly_nothing() -> None:
    right = np.arange(500) < 480
    found = difference(_scores([right] * 3, range(3)), _scores([right] * 3, range(3)))
    assert found.estimate == 0
    assert found.error == pytest.approx(1 / 500)


def test_other_test_sets_are_not_compared_example_by_example() -> None:
    right = np.arange(500) < 480
    first, second = _scores([right] * 2, range(2)), _scores([right] * 2, range(2), ["a", "b"])
    assert not difference(first, second).paired


def test_a_metric_that_is_no_fraction_has_the_error_of_the_seeds_alone() -> None:
    first = [Score(seed, value) for seed, value in enumerate([101.0, 111.0, 120.0])]
    second = [Score(seed, value) for seed, value in enumerate([100.0, 110.0, 121.0])]
    found = difference(first, second)
    assert found.estimate == pytest.approx(1 / 3)
    assert found.error == pytest.approx(np.std([1, 1, -1], ddof=1) / math.sqrt(3))
    assert found.freedom == 2
    low, high = difference(first[:1], second[:1]).interval()
    assert (low, high) == (-math.inf, math.inf)


def test_a_rerun_of_the_same_seed_is_not_a_new_sample() -> None:
    first = [Score(1, 100.0), Score(1, 102.0)]
    assert not difference(first, [Score(1, 90.0)]).seeds_known


def test_few_extra_runs_of_one_side_are_left_out_to_pair_the_others() -> None:
    noise = [0.0, 5.0, -5.0, 3.0]
    first = [Score(seed, 100 + by) for seed, by in enumerate(noise)]
    second = [Score(seed, 99 + by + 0.01 * seed) for seed, by in enumerate(noise[:3])]
    assert difference(first, second).error < 0.1


def test_the_interval_widens_with_the_confidence() -> None:
    found = Difference(0.01, 0.002, 9.0)
    assert found.interval(0.99)[0] < found.interval(0.95)[0] < 0.01 < found.interval(0.95)[1]


@pytest.mark.parametrize(("correct", "told"), [
    ((353, 352), "test accuracy: no significant difference (A − B is 0.3 points, between −"),
    ((353, 300), "test accuracy: a beats b by 14.8 points (between 9.5 and 20.0)."),
    ((300, 353), "test accuracy: b beats a by 14.8 points (between −20.0 and −9.5)."),
])
def test_two_runs_are_compared_in_points(correct: tuple[int, int], told: str) -> None:
    made = []
    for count, workers in zip(correct, (1, 2), strict=True):
        runs = repeated([100.0] * 3, accuracy=count / 359, workers=workers)
        for run in runs:
            run["test"] |= {"correct": count, "total": 359}
        made.append(list(map(as_result, runs)))
    sentences = compare_pair(("a", made[0]), ("b", made[1])).sentences()
    assert sentences[0].startswith(told), sentences
