"""The pages hold together: links lead somewhere, the reference is what the code says, YAML is YAML."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from samples import anchors, blocks, links

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_link_inside_the_repository_leads_somewhere(page: Path) -> None:
    for link in links(page):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{link} is not there"
        if anchor:
            assert anchor in anchors(target), f"{link}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_block_says_its_language_and_yaml_can_be_read(page: Path) -> None:
    for block in blocks(page):
        assert block.language, f"line {block.line}: a block without language"
        if block.language == "yaml":
            yaml.safe_load(block.text)


def test_no_page_is_out_of_reach_of_the_readme() -> None:
    reached: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        names = [link.partition("#")[0] for link in links(page)]
        waiting += [(page.parent / name).resolve() for name in names if name]
    assert set(PAGES) - reached == set()


@pytest.mark.integration
def test_the_generated_reference_is_what_the_code_says() -> None:
    command = [sys.executable, str(ROOT / "docs" / "generate_reference.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
