"""The benchmark of all engines and strategies: it measures a row for real, and gives reasons for what it cannot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def _benchmarks_importable(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.syspath_prepend(str(FOLDER.parent / "docs"))


def test_a_row_whose_framework_has_no_loop_here_says_so(tmp_path, monkeypatch):
    import engines

    monkeypatch.setattr(engines, "HERE", tmp_path)
    for row in engines.rows():
        assert engines.throughput(row, Namespace(), tmp_path, tmp_path) == {"reason": "no bare loop"}


def test_every_loop_belongs_to_an_engine_of_the_registry():
    import engines

    known = {engines.bare_loop(row).name for row in engines.rows()}
    assert {path.name for path in (FOLDER / "bare" / "rows").glob("*_rows.py")} <= known


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif("VELODROME_DATA_MIRROR" not in os.environ, reason="no mirror of data sets beside the checkout")
def test_a_row_is_measured_against_its_loop_with_memory_and_bytes(tmp_path):
    pytest.importorskip("torch")
    words = ["--only", "torch/ddp", "--counts", "2", "--turns", "1", "--json", str(tmp_path / "found.json")]
    done = subprocess.run([sys.executable, FOLDER / "engines.py", *words], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "found.json").read_text())["rows"]["torch/ddp"]
    speed, size = found["throughput"], found["size"]
    assert speed["low"] <= speed["ratio"] <= speed["high"]
    assert min(speed["velodrome"], speed["bare"]) > 0
    # Each of two workers sends the gradient once, with headers.
    assert 0.95 < size["bytes_per_step"] / size["gradient_bytes"] < 1.25
    assert size["memory_mb"]["worker"] > 50
