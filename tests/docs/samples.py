"""Reads the fenced blocks of a Markdown page, with the comments before them that tell what to do with each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(
    r"(?:^<!-- (?P<order>not run|file): (?P<value>[^\n]+?) -->\n+)?^```(?P<language>\w*)\n(?P<text>.*?)^```$",
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
    file: str | None = None

    @property
    def runs(self) -> bool:
        return self.language in RUN and self.not_run is None and self.file is None


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            language=found["language"],
            text=found["text"],
            line=text.count("\n", 0, found.start("language")) + 1,
            not_run=found["value"] if found["order"] == "not run" else None,
            file=found["value"] if found["order"] == "file" else None,
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
