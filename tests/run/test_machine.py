"""The facts of this machine that go into every result."""

from __future__ import annotations

import os

import psutil
import pytest

from velodrome.machine import describe_machine

pytestmark = pytest.mark.unit


def test_the_machine_is_the_one_we_run_on() -> None:
    about = describe_machine()
    assert about["cores"] == len(os.sched_getaffinity(0))
    assert about["memory_bytes"] == psutil.virtual_memory().total
    assert about["processor"]
    assert os.uname().release in about["system"]
