"""The pages and JSON answers of `velodrome ui` and `velodrome serve` about stored runs are what they were."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cases
import normal
import pytest
from starlette.testclient import TestClient

from velodrome.web.model_api import serve_app
from velodrome.web.security import CSRF_HEADER, Security
from velodrome.web.ui import ui_app

Golden = Callable[[str, str], None]
ROOT = Path(__file__).resolve().parents[2]
_CSRF = "token-of-the-page"


def _written(answer: Any, places: dict[str, str]) -> str:
    """Status, kind and text of an answer."""
    kind = answer.headers["content-type"]
    shown = [f"{answer.status_code} {kind}"]
    text = normal.plain(answer.text, places)
    lines = normal.json_lines(text) if "json" in kind else None
    return "\n".join([*shown, lines or "\n".join(line for line in text.splitlines() if line.strip())])


@pytest.fixture
def client(work: Path) -> TestClient:
    return TestClient(ui_app(work / "runs", Security(csrf=_CSRF)), base_url="http://127.0.0.1:8200")


@pytest.mark.parametrize("name", cases.PAGES)
def test_pages_show_what_they_showed(client: TestClient, work: Path, golden: Golden, name: str) -> None:
    places = normal.places(work, ROOT)
    golden(name, "\n\n".join(
        f"GET {address}\n{_written(client.get(address), places)}" for address in cases.PAGES[name]
    ))


def test_the_form_of_a_new_race_is_checked_as_it_was(client: TestClient, work: Path, golden: Golden) -> None:
    places, parts = normal.places(work, ROOT), []
    for fields in (
        {"dataset": "digits", "engine": "torch", "batch_size": "32,64", "name": "first"},
        {"dataset": "nonsense", "name": "first"}, {"name": "../evil"}, {},
    ):
        answer = client.post("/api/check", json=fields, headers={CSRF_HEADER: _CSRF})
        parts.append(f"POST /api/check {fields}\n{_written(answer, places)}")
    golden("web-form", "\n\n".join(parts))


def test_the_page_of_a_model_is_what_it_was(work: Path, golden: Golden) -> None:
    places = normal.places(work, ROOT)
    with TestClient(serve_app(["torch-single"], work / "runs"), base_url="http://127.0.0.1:8300") as client:
        golden("web-model", "\n\n".join(
            f"GET {address}\n{_written(client.get(address), places)}" for address in cases.MODEL_PAGES
        ))
