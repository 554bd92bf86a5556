"""Makes outputs comparable: what depends on machine, moment or checkout becomes a word in angle brackets."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from html.parser import HTMLParser
from importlib.metadata import version
from pathlib import Path
from typing import Any

#: Digits of fractions that are kept, and of moments and bytes: the last ones depend on processor and libraries.
_DIGITS, _LONG_DIGITS = 6, 13
#: Elements of a page whose text is no text of the page.
_SILENT = {"style", "script", "svg"}
_BLOCKS = {"p", "div", "h1", "h2", "h3", "h4", "li", "tr", "table", "section", "figure", "figcaption", "details",
           "summary", "pre", "header", "footer", "nav", "dt", "dd", "title", "option", "label", "button"}
_CHANGING = (
    (re.compile(r"\b2\d[01]\d[0-3]\d-[0-2]\d[0-5]\d[0-5]\d\b"), "<stamp>"),
    (re.compile(r"\?v=[0-9a-f]{12}"), "?v=<hash>"),
    (re.compile(r"(VELODROME_SECRET(?:=|: ))[0-9a-f]{48}"), r"\1<secret>"),
    (re.compile(r'(name="csrf" content=")[^"]+'), r"\1<token>"),
)


def plain(text: str, replaced: Mapping[str, str]) -> str:
    """A text with these words replaced, longest first, and without secrets, moments and spaces at the ends of lines."""
    for old in sorted(replaced, key=len, reverse=True):
        text = text.replace(old, replaced[old])
    for pattern, word in _CHANGING:
        text = pattern.sub(word, text)
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")


def places(work: Path, repository: Path) -> dict[str, str]:
    """The folders and names of this machine, and the words that stand for them."""
    return {
        str(work): "<work>", str(work.parent): "<user>", str(repository): "<checkout>",
        sys.executable: "<python>", sys.prefix: "<environment>",
        f"Velodrome {version('velodrome')}": "Velodrome <version>",
    }


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_LONG_DIGITS if abs(value) >= 10**_DIGITS else _DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list) else value


def _lines_of(value: Any, indent: str = "") -> str:
    """JSON with a line for each field; whatever fits on a line stays on it."""
    flat = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(flat) <= 110 or not isinstance(value, dict | list) or not value:
        return flat
    inner = indent + " "
    if isinstance(value, dict):
        parts = [f"{inner}{json.dumps(key)}: {_lines_of(one, inner)}" for key, one in value.items()]
        return "{\n" + ",\n".join(parts) + f"\n{indent}}}"
    if all(not isinstance(one, dict | list) for one in value) and all(isinstance(one, int | float) for one in value):
        return flat  # a curve
    return "[\n" + ",\n".join(f"{inner}{_lines_of(one, inner)}" for one in value) + f"\n{indent}]"


def json_lines(text: str) -> str | None:
    """A line of JSON as several lines, its fractions rounded; None if it is something else."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return _lines_of(_rounded(json.loads(text)))
    except ValueError:
        return None


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._silent = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._silent += tag in _SILENT
        if tag in _BLOCKS:
            self.parts.append("\n")
        elif tag in ("td", "th"):
            self.parts.append(" | ")
        given = dict(attrs)
        if tag == "svg" and self._silent == 1:
            self.parts.append(f"\n[figure {given.get('aria-label') or ''}]\n")
        elif tag == "img":
            self.parts.append(f"\n[picture {given.get('alt') or ''}]\n")

    def handle_endtag(self, tag: str) -> None:
        self._silent -= tag in _SILENT
        if tag in _BLOCKS:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.parts.append(data)


def text_of(page: str) -> str:
    """What a reader of a page sees, figures left out."""
    reader = _Text()
    reader.feed(page)
    lines = (" ".join(line.split()) for line in "".join(reader.parts).splitlines())
    return "\n".join(line for line in lines if line.strip("| "))
