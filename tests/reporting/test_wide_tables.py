"""The widest tables of a report can be read: they take the width of the window, and scroll if that is less."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from synthetic_races import repeated, write_race

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
#: Left and right edge of each table's box, the width of its table, and the width of the window.
MEASURE = """<script>document.title = JSON.stringify({window: document.documentElement.clientWidth,
  tables: [...document.querySelectorAll("table.sortable")].map((table) => { const box = table.parentElement;
    const edges = box.getBoundingClientRect(); return {left: edges.left, right: edges.right, box: box.clientWidth,
    table: table.scrollWidth, scrolls: getComputedStyle(box).overflowX === "auto"}; })});</script>"""


@pytest.fixture
def page(velodrome, runs: Path) -> Path:
    rows = [
        row for optimizer in ("adam", "momentum") for dataset in ("digits", "path:/home/somebody/pictures/of/things")
        for workers in (1, 2) for row in repeated(
            [1234567, 1250000], engine="tensorflow", strategy="parameter-server", servers=2, workers=workers,
            optimizer=optimizer, dataset=dataset, target="accuracy>=0.9",
        )
    ]
    path = write_race(runs, rows, "wide").path
    assert velodrome("report", "wide", "--runs", runs).code == 0
    return path / "report.html"


@pytest.mark.unit
def test_every_table_stands_in_a_box_that_is_as_wide_as_the_window(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    boxes = re.findall(r'<div class="([^"]*)">\s*<table', text)
    assert len(boxes) == text.count("<table") > 3
    assert all({"scroll", "wide"} <= set(box.split()) for box in boxes)
    assert "max-width: calc(100vw - 40px)" in text


@pytest.mark.quick("1280-True")
@pytest.mark.integration
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.parametrize(("width", "whole"), [(1280, True), (1920, True), (600, False)])
def test_a_browser_shows_the_tables_from_edge_to_edge(page: Path, tmp_path: Path, width: int, whole: bool) -> None:
    measured = page.with_name("measured.html")
    measured.write_text(page.read_text(encoding="utf-8").replace("</body>", f"{MEASURE}</body>"), encoding="utf-8")
    done = subprocess.run(
        [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync",
         "--disable-background-networking", "--disable-component-update", f"--user-data-dir={tmp_path / 'profile'}",
         f"--window-size={width},900", "--dump-dom", measured.as_uri()],
        capture_output=True, text=True, timeout=280,
    )
    title = re.search(r"<title>(.*?)</title>", done.stdout, re.DOTALL)
    assert title is not None, done.stderr
    told: dict[str, Any] = json.loads(title[1])
    assert len(told["tables"]) > 3
    for table in told["tables"]:
        assert table["left"] >= 0
        assert table["right"] <= told["window"] + 1
        assert table["scrolls"]
        assert not whole or table["table"] <= table["box"] + 1
