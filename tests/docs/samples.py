"""Reads the fenced blocks of a Markdown page, with the comments before them that tell what to do with each."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: What newcomers read. Other pages are for contributors, or are about results.
USER_PAGES = [ROOT / "README.md", ROOT / "docs" / "tutorial.md", *sorted((ROOT / "docs" / "how-to").glob("*.md"))]
_BLOCK = re.compile(
    r"(?:^<!-- (?P<order>not run|slow|file|real): (?P<value>[^\n]+?) -->\n+)?^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
RUN = ("bash", "python")


@dataclass(frozen=True)
class Block:
    """A fenced block and the line it begins on."""

    language: str
    text: str
    line: int
    not_run: str | None = None
    slow: str | None = None
    file: str | None = None
    #: The launcher whose real hosts it needs: tests/docs/test_real_hosts.py has them.
    real: str | None = None

    @property
    def runs(self) -> bool:
        return self.language in RUN and self.not_run is None and self.file is None and self.real is None


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            language=found["language"],
            text=found["text"],
            line=text.count("\n", 0, found.start("language")) + 1,
            not_run=found["value"] if found["order"] == "not run" else None,
            slow=found["value"] if found["order"] == "slow" else None,
            file=found["value"] if found["order"] == "file" else None,
            real=found["value"] if found["order"] == "real" else None,
        )
        for found in _BLOCK.finditer(text)
    ]


def links(page: Path) -> list[str]:
    """Targets of links and images that stay in this repository, without their anchors."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|href)="([^"]+)"', text)
    return [link for link in found if not re.match(r"[a-z]+:", link)]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, made as repository hosts make them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def commands(block: Block) -> list[list[str]]:
    """The words of every `velodrome` command in a block of shell."""
    lines = block.text.replace("\\\n", " ")
    found = re.findall(r"^(?:[A-Z_]+=\S+ |if |\s)*velodrome ((?:'[^']*'|\"[^\"]*\"|[^;&|<>#\n])*)", lines, re.MULTILINE)
    return [shlex.split(words) for words in found]


def section_before(page: Path, block: Block) -> str:
    """The text between the heading above a block and the block, without other blocks."""
    above = "\n".join(page.read_text(encoding="utf-8").splitlines()[: block.line - 1])
    prose = re.sub(r"^```.*?^```$|^<!--.*?-->$", "", above, flags=re.MULTILINE | re.DOTALL)
    return re.split(r"^#+ ", prose, flags=re.MULTILINE)[-1]
