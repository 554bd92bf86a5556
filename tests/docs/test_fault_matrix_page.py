"""The fault matrix is whole where it was recorded: every fault of a launcher, or why it cannot happen there."""

from __future__ import annotations

import sys

import pytest
from samples import ROOT

sys.path.insert(0, str(ROOT / "docs"))
from fault_matrix import FAULTS, LAUNCHERS, recorded

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("launcher", sorted(LAUNCHERS))
def test_every_fault_is_recorded_or_cannot_happen(launcher: str) -> None:
    cells = recorded()[launcher]
    assert not cells.keys() & LAUNCHERS[launcher].keys()
    assert cells.keys() | LAUNCHERS[launcher].keys() == FAULTS.keys()
    for fault, cell in cells.items():
        assert cell["seconds"] < cell["limit"], fault
        assert cell["sentence"], fault
