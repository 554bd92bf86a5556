"""What tests of libraries around PyTorch compare with: the same job under PyTorch alone, on the same data."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from driver import Ran, each_once, write_data

from velodrome.job.job import Job

TORCH = Path(__file__).parents[1] / "torch"


@pytest.fixture(autouse=True)
def _networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of the tests of engine torch."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TORCH), os.environ.get("PYTHONPATH", "")]))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data") / "data.npz")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Callable[[Job], Ran]:
    """The run of one process of PyTorch itself for a job, made once."""
    return each_once(data, lambda: tmp_path_factory.mktemp("single"))
