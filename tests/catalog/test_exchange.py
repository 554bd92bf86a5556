"""Consistency models: how they are written, and which of them a strategy takes."""

from __future__ import annotations

import pytest

from velodrome.catalog.base import Strategy
from velodrome.catalog.exchange import ASP, BSP, Consistency

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("text", ["none", "bsp", "asp", "ssp:3", "dssp:2..8", "osp", "periodic", "script"])
def test_a_model_is_written_as_it_is_read(text: str) -> None:
    model = Consistency.parse(text)
    assert str(model) == text
    assert model.synchronous == (model.model not in ("asp", "ssp", "dssp"))


@pytest.mark.parametrize("text", ["", "bps", "bsp:3", "ssp", "ssp:x", "ssp:1..2", "dssp:3", "dssp:8..2", "asp:1"])
def test_what_is_no_model_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a consistency model: use bsp, asp, ssp:S"):
        Consistency.parse(text)


def test_a_strategy_leaves_bounds_to_the_job() -> None:
    strategy = Strategy("servers", "", consistencies=(BSP, ASP, Consistency("ssp"), Consistency("dssp")))
    assert [str(model) for model in strategy.consistencies] == ["bsp", "asp", "ssp:S", "dssp:LOW..HIGH"]
    assert strategy.synchronous
    chosen = strategy.with_consistency(Consistency.parse("ssp:3"))
    assert chosen is not None
    assert (chosen.consistency, chosen.synchronous) == (Consistency("ssp", 3), False)
    assert strategy.with_consistency(Consistency("osp")) is None
