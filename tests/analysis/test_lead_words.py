"""How a lead is called, and how its numbers are rounded."""

from __future__ import annotations

import pytest

from velodrome.analysis.lead import Kind, Lead

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("lead", "kind", "words"),
    [
        (Lead(1.9, 1.899, 1.95), "speed", "90 % faster (at least 89 %) than the next"),
        (Lead(19.4, 18.97, 20.0), "speed", "19 times as fast (at least 18 times) as the next"),
        (Lead(2.04, 1.997, 2.1), "speed", "2.0 times as fast (at least 1.9 times) as the next"),
        (Lead(1.012, 1.0019, 1.02), "speed", "1.2 % faster (at least 0.1 %) than the next"),
        (Lead(1.012, 1.0004, 1.02), "speed", "1.2 % faster than the next"),
        (Lead(1.25, 1.2, 1.3), "cost", "20 % cheaper (at least 16 %) than the next"),
        (Lead(4.0, 3.9, 4.1), "cost", "75 % cheaper (at least 74 %) than the next"),
        (Lead(1.3, 1.29, 1.4), "quality", "30 % better (at least 29 %) than the next"),
        (Lead(2.5, 2.41, 3.0), "quality", "2.5 times as good (at least 2.4 times) as the next"),
        (Lead(1.0, 0.96, 1.4, "points"), "quality", "1.0 point better (at least 0.9) than the next"),
    ],
)
def test_a_lead_is_called_by_what_it_is_in_and_the_least_of_it_is_rounded_down(
    lead: Lead, kind: Kind, words: str
) -> None:
    assert lead.than("the next", kind) == words


@pytest.mark.parametrize(
    ("lead", "kind", "words"),
    [
        (Lead(1.1, 0.9, 1.4), "speed", "from 10 % slower to 40 % faster"),
        (Lead(1.1, 0.4, 4.0), "speed", "from 2.5 times slower to 4.0 times as fast"),
        (Lead(1.1, 0.8, 1.25), "cost", "from 25 % more expensive to 20 % cheaper"),
        (Lead(1.1, 0.25, 2.0), "cost", "from 4.0 times as expensive to 50 % cheaper"),
        (Lead(1.1, 0.01, 200.0), "speed", ""),
    ],
)
def test_where_a_lead_may_lie_in_words(lead: Lead, kind: Kind, words: str) -> None:
    assert lead.span(kind) == words


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
