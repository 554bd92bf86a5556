"""Ratios of configurations with plain intervals: paired by repetition, and by the runs of the two alone."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from velodrome.judge.blocks import paired_ratios

pytestmark = pytest.mark.unit


def _values(table):
    return {name: dict(enumerate(row)) for name, row in zip("abcdefgh", np.exp(table), strict=False)}


def test_an_interval_is_that_of_the_paired_t_test_on_logarithms():
    logs = np.random.default_rng(2).normal(0, 0.05, size=(2, 6)) + np.linspace(0, 1, 6)
    found = paired_ratios(_values(logs))("a", "b")
    reference = stats.ttest_rel(*logs).confidence_interval(0.95)
    assert np.log([found.low, found.high]) == pytest.approx([reference.low, reference.high])


def test_an_interval_does_not_depend_on_the_noise_of_other_configurations():
    logs = np.random.default_rng(1).normal(0, 0.05, size=(8, 4))
    louder = logs.copy()
    louder[2:] *= 10
    assert paired_ratios(_values(logs))("a", "b") == paired_ratios(_values(louder))("a", "b")


def test_two_that_share_fewer_than_two_repetitions_have_no_ratio():
    over = paired_ratios({"a": {0: 1.0, 1: 2.0}, "b": {1: 2.0, 2: 3.0}, "c": {}})
    assert (over("a", "b"), over("a", "c")) == (None, None)
