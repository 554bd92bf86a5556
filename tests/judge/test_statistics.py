"""Intervals against independent references: scipy's own t-test, printed tables, simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from velodrome.judge.measures import Ratio, Spread, ratio, t_quantile

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(("freedom", "value"), [(1, 12.706), (2, 4.303), (4, 2.776), (10, 2.228), (30, 2.042)])
def test_quantiles_are_those_of_printed_tables(freedom: int, value: float) -> None:
    assert t_quantile(0.975, freedom) == pytest.approx(value, abs=5e-4)


def test_the_interval_is_that_of_welchs_test_on_logarithms() -> None:
    from scipy import stats

    first, second = (100.0, 104.0, 97.0, 110.0), (60.0, 75.0, 66.0)
    reference = stats.ttest_ind(np.log(first), np.log(second), equal_var=False).confidence_interval(0.95)
    found = ratio(Spread(first), Spread(second))
    assert found is not None
    assert (found.low, found.high) == pytest.approx((math.exp(reference.low), math.exp(reference.high)))
    assert found.estimate == pytest.approx(stats.gmean(first) / stats.gmean(second))
    assert found.above_one
    assert found.inverted().below_one


def test_the_interval_holds_the_true_ratio_in_19_of_20_races() -> None:
    random = np.random.default_rng(7)
    held = 0
    for _ in range(1_500):
        first = Spread(tuple(2.0 * np.exp(random.normal(0, 0.1, 3))))
        second = Spread(tuple(np.exp(random.normal(0, 0.3, 4))))
        found = ratio(first, second)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 2.0 <= found.high
    assert 0.93 < held / 1_500 < 0.985


def test_one_run_gives_an_estimate_and_no_interval() -> None:
    assert ratio(Spread((2.0,)), Spread((1.0, 1.1))) == Ratio(pytest.approx(2.0 / math.sqrt(1.1)))


def test_a_value_of_zero_has_no_ratio() -> None:
    assert ratio(Spread((0.0, 1.0)), Spread((1.0, 1.0))) is None


def test_counts_that_agree_to_the_last_example_still_have_a_width() -> None:
    counted = ratio(Spread((0.951, 0.951), 1 / 100), Spread((0.95, 0.95), 1 / 100))
    assert counted is not None
    assert not counted.above_one
    exact = ratio(Spread((2.0, 2.0)), Spread((1.0, 1.0)))
    assert exact == Ratio(2.0, 2.0, 2.0)


def test_means_and_ranges_are_of_the_values_and_the_centre_is_geometric() -> None:
    spread = Spread((1.0, 4.0, 100.0))
    assert (spread.mean, spread.low, spread.high, spread.count) == (35.0, 1.0, 100.0, 3)
    assert spread.centre == pytest.approx(400 ** (1 / 3))
    assert Spread((1.0, 4.0, 100.0), geometric=True).mean == spread.centre
    assert Spread((0.1, 0.1, 0.1), geometric=True).mean == 0.1
    assert Spread((0.0, 2.0)).centre == 1.0
