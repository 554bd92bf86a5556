"""How a lead is called, and how its numbers are rounded."""

from __future__ import annotations

import pytest

from velodrome.judge.criteria import COST, QUALITY, SPEED, Wording
from velodrome.judge.phrases import Lead

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("lead", "wording", "words", "within"),
    [
        (Lead(1.9, 1.899, 1.95), SPEED, "90 % faster than the next", "89 % to 95 %"),
        (Lead(19.4, 18.97, 20.0), SPEED, "19 times as fast as the next", "18 to 20 times"),
        (Lead(2.04, 1.997, 2.1), SPEED, "2.0 times as fast as the next", "1.9 to 2.1 times"),
        (Lead(1.012, 1.0019, 1.02), SPEED, "1.2 % faster than the next", "0.1 % to 2 %"),
        (Lead(0.8, 0.7, 0.9), SPEED, "20 % slower than the next", "from 30 % slower to 10 % slower"),
        (Lead(0.4, 0.3, 0.5), SPEED, "2.5 times slower than the next", "from 3.3 times slower to 2.0 times slower"),
        (Lead(1.25, 1.2, 1.3), COST, "20 % cheaper than the next", "16 % to 23 %"),
        (Lead(4.0, 3.9, 4.1), COST, "75 % cheaper than the next", "74 % to 76 %"),
        (Lead(1.3, 1.29, 1.4), QUALITY, "30 % better than the next", "29 % to 40 %"),
        (Lead(2.5, 2.41, 3.0), QUALITY, "2.5 times as good as the next", "2.4 to 3.0 times"),
        (Lead(1.0, 0.96, 1.4, "points"), QUALITY, "1.0 point better than the next", "0.9 to 1.4 points"),
        (Lead(2.8, 1.4, 90.0), SPEED, "2.8 times as fast as the next", "at least 1.4 times"),
        (Lead(2.8), SPEED, "2.8 times as fast as the next", ""),
    ],
)
def test_a_lead_is_called_by_what_it_is_in_and_the_least_of_it_is_rounded_down(
    lead: Lead, wording: Wording, words: str, within: str
) -> None:
    assert lead.plain("the next", wording) == words
    assert lead.range(wording) == within


@pytest.mark.parametrize(
    ("lead", "wording", "words"),
    [
        (Lead(1.1, 0.9, 1.4), SPEED, "from 10 % slower to 40 % faster"),
        (Lead(1.1, 0.4, 4.0), SPEED, "from 2.5 times slower to 4.0 times as fast"),
        (Lead(1.1, 0.8, 1.25), COST, "from 25 % more expensive to 20 % cheaper"),
        (Lead(1.1, 0.25, 2.0), COST, "from 4.0 times as expensive to 50 % cheaper"),
        (Lead(1.1, 0.01, 200.0), SPEED, ""),
    ],
)
def test_where_a_lead_may_lie_in_words(lead: Lead, wording: Wording, words: str) -> None:
    assert lead.span(wording) == words


@pytest.mark.parametrize(
    ("lead", "words"),
    [
        (Lead(1.62, 1.389, 1.9), " (at least 1.38×)"),
        (Lead(4.0, 3.87, 4.4), " (at least 3.8×)"),
        (Lead(1.06, 1.0079, 1.1), " (at least 1.007×)"),
        (Lead(1.06, 1.0004, 1.1), ""),
        (Lead(0.8, 0.49, 1.2, "points"), " (at least 0.4)"),
        (Lead(0.8, 0.04, 1.2, "points"), ""),
    ],
)
def test_the_least_of_a_lead_never_says_nothing(lead: Lead, words: str) -> None:
    assert lead.at_least == words


def test_a_range_shows_on_which_side_of_one_it_ends() -> None:
    assert Lead(1.06, 1.0012, 1.12).interval == "[1.001, 1.12]"
    assert Lead(0.96, 0.9, 0.9988).interval == "[0.90, 0.999]"
    assert Lead(1.2, 1.004, 300.0).interval == "[1.004, >100]"
