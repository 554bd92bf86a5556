"""The documentation as a site: every page is in it, its links hold, and nothing comes from another host."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from samples import ROOT

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    monkeypatch.delitem(sys.modules, "build_site", raising=False)


def test_the_site_has_every_page_and_a_search(tmp_path: Path) -> None:
    from build_site import build

    pages = len(list((ROOT / "docs").rglob("*.md"))) + 3
    assert build(tmp_path / "site") >= pages
    first = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert "Get a first answer" in first
    assert 'href="how-to/own-model.html"' in first
    assert "checkpoint" in (tmp_path / "site" / "searchindex.js").read_text(encoding="utf-8")


@pytest.mark.parametrize(("name", "text"), [
    ("page.html", '<script src="https://elsewhere.example/a.js"></script>'),
    ("page.html", '<link rel="stylesheet" href="//elsewhere.example/a.css">'),
    ("page.html", '<img src="http://elsewhere.example/a.png">'),
    ("style.css", "@font-face { src: url('https://elsewhere.example/a.woff2') }"),
])
def test_a_site_that_loads_from_another_host_is_refused(tmp_path: Path, name: str, text: str) -> None:
    from build_site import SiteError, check_offline

    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(SiteError, match=r"loads (https?:)?//elsewhere\.example"):
        check_offline(tmp_path)


def test_links_to_other_sites_are_no_loads(tmp_path: Path) -> None:
    from build_site import check_offline

    (tmp_path / "page.html").write_text('<a href="https://elsewhere.example">there</a>', encoding="utf-8")
    check_offline(tmp_path)


def test_a_page_that_is_in_no_chapter_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import build_site

    chapters = {**build_site.NAVIGATION, "Get a first answer": []}
    monkeypatch.setattr(build_site, "NAVIGATION", chapters)
    with pytest.raises(build_site.SiteError, match=r"tutorial\.md"):
        build_site.copy_pages(tmp_path)
