"""How many standard errors a claim needs: shares of looks that add up, and margins that grow with what may go wrong."""

from __future__ import annotations

import numpy as np
import pytest

from velodrome.judge.blocks import FIRST_LOOK, margin, share_of_look

pytestmark = pytest.mark.unit


def _margin(look: int, rivals: int, entered: int, freedom: float = 20.0) -> float:
    return float(margin(np.array([freedom]), look, float(rivals), entered)[0])


@pytest.mark.parametrize("entered", [2, 3, 4, 5, 8, 24])
def test_the_shares_of_all_looks_add_up_to_one_without_an_end(entered: int) -> None:
    assert sum(share_of_look(look, entered) for look in range(1, 50_000)) == pytest.approx(1, abs=1e-3)
    assert share_of_look(100, entered) > 0, "a race may be continued for ever"


@pytest.mark.parametrize("entered", [2, 3, 8, 24])
def test_fewer_than_three_repetitions_settle_nothing(entered: int) -> None:
    assert FIRST_LOOK == 3
    assert _margin(2, entered, entered) == np.inf
    assert np.isfinite(_margin(3, entered, entered))


def test_more_rivals_and_fewer_runs_need_a_larger_lead() -> None:
    assert _margin(10, 8, 8) > _margin(10, 4, 8) > _margin(10, 2, 8)
    assert _margin(10, 8, 8, freedom=3.0) > _margin(10, 8, 8)


@pytest.mark.parametrize("entered", [3, 8])
def test_the_first_looks_of_several_demand_most(entered: int) -> None:
    found = [_margin(look, entered, entered) for look in range(3, 10)]
    assert found == sorted(found, reverse=True)
    assert _margin(30, entered, entered) > _margin(14, entered, entered)
