"""Every test of this folder has a cache of its own and no mirror but the one it sets."""

from __future__ import annotations

from pathlib import Path

import pytest

from velodrome.data import fetch


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VELODROME_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("VELODROME_DATA_MIRROR", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(fetch, "PAUSE_SECONDS", 0.01)
    return tmp_path / "cache"
