"""Build the documentation as a searchable site, and check it: `make docs`, or `docs/build_site.py FOLDER`.

The pages stay Markdown that reads well in the repository. Here they are copied, with the README as the first page, and
given the navigation below to Sphinx, which checks every link. No page may load anything from another host.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path

from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
SITE = ROOT / "build" / "site"
#: Pages beside the folder of the documentation, and their names in the site.
OUTSIDE = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
#: Pages in the order of a user's questions.
NAVIGATION = {
    "Get a first answer": ["tutorial", "how-to/recommend", "how-to/long-trainings", "how-to/networks"],
    "My model and my code": [
        "how-to/own-model", "how-to/own-task", "how-to/script", "how-to/optimization", "how-to/language-model",
        "how-to/python-api",
    ],
    "My data": [
        "how-to/data", "how-to/own-data", "how-to/photos", "how-to/tables", "how-to/catalogue", "how-to/shards",
        "how-to/sharding", "how-to/hdfs",
    ],
    "My cluster": [
        "how-to/clusters", "how-to/several-machines", "how-to/emulated", "how-to/ssh", "how-to/slurm", "how-to/ray",
        "how-to/kubernetes", "how-to/engines",
    ],
    "Faster and larger": ["how-to/faster", "how-to/large-models", "how-to/consistency"],
    "Reports and studies": ["how-to/report", "how-to/web-ui", "how-to/studies", "how-to/teaching"],
    "After the training": ["how-to/serve", "how-to/keep", "how-to/resume", "how-to/safety"],
    "Reference": [
        "reference/commands", "reference/job", "reference/engines", "reference/clusters", "reference/numbers",
        "reference/verdicts", "reference/run-folder", "reference/events", "reference/faults", "reference/ports",
        "reference/names",
    ],
    "Results": ["results", "results-studies", "results-language-model", "results-gpt-mini", "benchmarks"],
    "For developers": [
        "design", "adding-an-engine", "adding-a-task", "adding-a-launcher", "contributing", "changelog",
    ],
}
CONFIGURATION = {
    "project": "Velodrome", "html_title": "Velodrome", "html_theme": "furo", "extensions": ["myst_parser"],
    "myst_heading_anchors": 4, "html_copy_source": False, "html_show_sphinx": False,
    # Code in pages is checked by the tests; terminal output and abridged JSON are no language that can be parsed.
    "suppress_warnings": ["misc.highlighting_failure", "myst.header"],
}
#: What a style sheet loads from another host.
_SHEET = re.compile(r"(?:url\(|@import\s)\s*['\"]?((?:https?:)?//[^'\")\s]+)")
_LINK = re.compile(r"(?<=\]\()([^)#\s]+)((?:#[^)\s]*)?)(?=\))")


class SiteError(Exception):
    """A page that is in no chapter, or that loads something from another host."""


def navigation() -> str:
    """The table of contents, as Sphinx reads it from the first page."""
    return "".join(
        f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n" + "\n".join(pages) + "\n```\n"
        for caption, pages in NAVIGATION.items()
    )


def copy_pages(target: Path) -> None:
    """Copy all pages and pictures, with links between the repository's root and `docs` as they are in the site."""
    pages = {page: page.relative_to(DOCS) for page in DOCS.rglob("*.md")}
    pages |= {ROOT / name: Path(place) for name, place in OUTSIDE.items()}
    listed = {f"{page}.md" for pages_of_chapter in NAVIGATION.values() for page in pages_of_chapter} | {"index.md"}
    if missing := {place.as_posix() for place in pages.values()} ^ listed:
        raise SiteError(f"in no chapter, or not there: {', '.join(sorted(missing))}")
    for page, place in pages.items():
        def moved(match: re.Match[str], page: Path = page, place: Path = place) -> str:
            linked = (page.parent / match[1]).resolve()
            if ":" in match[1] or not linked.is_relative_to(ROOT):
                return match[0]
            found = pages.get(linked) or linked.relative_to(DOCS if linked.is_relative_to(DOCS) else ROOT)
            if linked.is_file() and linked not in pages:
                (target / found).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(linked, target / found)
            return "../" * (len(place.parts) - 1) + found.as_posix() + match[2]

        text = _LINK.sub(moved, page.read_text(encoding="utf-8"))
        copy = target / place
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text + (navigation() if place == Path("index.md") else ""), encoding="utf-8")


class _Loads(HTMLParser):
    """Addresses from which a page loads something when it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        if tag in ("script", "img", "iframe", "source", "video", "audio", "embed", "use"):
            self.found.append(values.get("src") or values.get("href") or "")
        elif tag == "link" and values.get("rel") not in ("canonical", "author", "copyright", "next", "prev"):
            self.found.append(values.get("href") or "")


def check_offline(site: Path) -> None:
    """Refuse a site whose pages or style sheets load anything from another host."""
    for page in site.rglob("*.html"):
        loads = _Loads()
        loads.feed(page.read_text(encoding="utf-8"))
        if away := [address for address in loads.found if re.match(r"(https?:)?//", address)]:
            raise SiteError(f"{page.relative_to(site)} loads {away[0]}")
    for sheet in site.rglob("*.css"):
        if away := _SHEET.findall(sheet.read_text(encoding="utf-8")):
            raise SiteError(f"{sheet.relative_to(site)} loads {away[0]}")


def build(site: Path) -> int:
    """Build the site in a folder; the number of its pages."""
    with tempfile.TemporaryDirectory(prefix="velodrome-docs-") as folder:
        pages, trees = Path(folder) / "pages", Path(folder) / "trees"
        copy_pages(pages)
        shutil.rmtree(site, ignore_errors=True)
        app = Sphinx(str(pages), None, str(site), str(trees), "html", CONFIGURATION, status=None,  # type: ignore[arg-type]
                     warning=sys.stderr, warningiserror=True)
        app.build()
        if app.statuscode:
            raise SiteError("Sphinx found mistakes")
    check_offline(site)
    return len(list(site.rglob("*.html")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=SITE, help="where the site is written [build/site]")
    site = parser.parse_args().folder
    try:
        count = build(site)
    except SiteError as error:
        sys.exit(f"The documentation cannot be built: {error}")
    print(f"{count} pages: {site / 'index.html'}")


if __name__ == "__main__":
    main()
