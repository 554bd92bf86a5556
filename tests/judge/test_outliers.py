"""Stragglers: which runs are taken for them, and that comparisons without them are right."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from velodrome.judge.blocks import fit, nominal, straggling

pytestmark = pytest.mark.unit


def races(seed: int, count: int, *shape: int, noise: float = 0.05) -> np.ndarray:
    return noise * np.random.default_rng(seed).normal(size=(count, *shape))


def test_a_run_far_behind_is_found_whichever_repetition_was_slow_for_all() -> None:
    values = races(1, 1, 6, 8) + np.linspace(0, 2, 8)
    values[0, 3, 5] -= 0.7
    found = straggling(values)
    assert found[0, 3, 5]
    assert found.sum() == 1


def test_ordinary_noise_has_next_to_no_stragglers() -> None:
    assert straggling(races(2, 400, 8, 10)).mean() < 0.001
    assert straggling(races(3, 400, 2, 10)).any((1, 2)).mean() < 0.01


def test_a_configuration_that_scatters_more_than_the_others_has_no_stragglers() -> None:
    values = races(4, 300, 6, 10)
    values[:, 0] *= 3
    assert straggling(values)[:, 0].mean() < 0.01


def test_what_is_left_is_compared_as_if_stragglers_had_not_run() -> None:
    values = races(5, 1, 2, 9)
    values[0, 1, 4] -= 1.0
    found = fit(values, plain=True)
    kept = np.delete(values[0], 4, axis=1)
    reference = stats.ttest_rel(*kept)
    assert found.stragglers[0, :, 4].all(), "with two, nobody knows which of them it was"
    assert found.estimate[0, 0, 1] == pytest.approx((kept[0] - kept[1]).mean())
    # Less the ninth of the runs that was left out.
    assert found.error[0, 0, 1] == pytest.approx(abs(reference.statistic) ** -1 * abs(found.estimate[0, 0, 1])
                                                 / np.sqrt(8 / 9))
    assert found.freedom[0, 0, 1] == 7


@pytest.mark.parametrize("noise", [0.02, 0.15])
@pytest.mark.parametrize("repetitions", [3, 5, 10])
def test_plain_intervals_contain_the_truth_as_often_as_they_say_with_stragglers_too(
    repetitions: int, noise: float
) -> None:
    draws = np.random.default_rng(6)
    values = races(7, 4000, 2, repetitions, noise=noise)
    values -= np.where(draws.random(values.shape) < 0.1, np.log(draws.uniform(1.3, 3.0, values.shape)), 0.0)
    found = fit(values, plain=True)
    freedom, error = found.freedom[:, 0, 1], found.error[:, 0, 1]
    levels = np.array([nominal(one) for one in freedom])
    inside = np.abs(found.estimate[:, 0, 1]) <= stats.t.ppf((1 + levels) / 2, freedom) * error
    assert 0.93 <= inside.mean() <= 0.975
