"""The description on a package page is the README, with links that lead somewhere from there."""

from __future__ import annotations

import importlib.util
import re
import zipfile
from email.parser import BytesParser
from pathlib import Path

import pytest
from samples import ROOT

REPOSITORY = "https://code.example.org/velodrome"
_LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"")


def _package_page(readme: str, repository: str | None) -> str:
    spec = importlib.util.spec_from_file_location("velodrome_setup", ROOT / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.package_page(readme, repository)  # type: ignore[no-any-return]


def _targets(page: str) -> list[str]:
    return [link or attribute for link, attribute in _LINK.findall(page)]


@pytest.fixture(scope="module")
def readme() -> str:
    return (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.integration
def test_the_wheel_describes_itself_without_a_link_that_only_the_repository_resolves(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = BytesParser().parsebytes(archive.read(name))
    page = metadata.get_payload()
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert "pip install" in page
    assert "## Documentation" in page
    assert [target for target in _targets(page) if not target.startswith(("https://", "#"))] == []
    assert "<!--" not in page


def test_with_a_repository_relative_links_and_images_lead_into_it(readme: str) -> None:
    page = _package_page(readme, f"{REPOSITORY}/")
    assert "![" in page
    assert f"]({REPOSITORY}/raw/main/docs/images/demo.png)" in page
    assert f"]({REPOSITORY}/blob/main/docs/tutorial.md)" in page
    assert [target for target in _targets(page) if not target.startswith("https://")] == []


def test_without_a_repository_links_become_text_and_an_image_goes_with_its_paragraph() -> None:
    page = _package_page(
        "# Title\n\n![curve](docs/a.png)\nThe curve, measured.\n\nSee [the tutorial](docs/t.md#start), "
        "[below](#title) and [a page](https://example.org/x).\n",
        None,
    )
    assert page == "# Title\n\nSee the tutorial, [below](#title) and [a page](https://example.org/x).\n"
