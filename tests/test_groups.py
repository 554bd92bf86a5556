"""What `make test` relies on: tests that share something run in one of its pytest processes."""

from __future__ import annotations

import os

import pytest


def test_a_module_stays_in_one_process(request: pytest.FixtureRequest) -> None:
    """pytest-xdist appends the group to the name of a test; without that, every process makes what a module shares."""
    is_grouped = request.node.nodeid.endswith("@test_groups")
    assert is_grouped == ("PYTEST_XDIST_WORKER" in os.environ)
