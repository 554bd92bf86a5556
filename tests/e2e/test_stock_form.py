"""A strategy in its stock form as a user types it: it learns, and the result reports what trained."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from scene import left_in

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.usefixtures("no_strays")]


@pytest.mark.skipif(find_spec("tensorflow") is None, reason="tensorflow is not installed")
def test_a_stock_parameter_server_learns_the_digits_and_leaves_no_temporary_files(
    velodrome, runs, tmp_path, monkeypatch
):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    done = velodrome(
        "train", "--engine", "tensorflow", "--strategy", "parameter-server", "--implementation", "stock",
        "--workers", 2, "--servers", 1, "--dataset", "digits", "--model", "dense-128", "--epochs", 20, "--runs", runs,
        "--json",
    )
    assert done.code == 0, done.text
    result = done.json()
    assert result["test"]["accuracy"] >= 0.9
    assert (result["implementation"]["kind"], result["implementation"]["own"]) == ("stock", [])
    assert left_in(tmp_path / "temporary") == []
