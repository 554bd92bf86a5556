"""The long description of the package, from README.md; everything else about the package is in pyproject.toml.

A package page is not beside the files that README.md links to. Where pyproject.toml names a repository, relative links
become links into it; without one they become plain text, and an image is left out with its paragraph.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from setuptools import setup

_RELATIVE = r"\((?!#|[a-z][a-z0-9+.-]*:)(?P<path>[^)\s]+)\)"
_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]" + _RELATIVE)
_IMAGE_PARAGRAPH = re.compile(r"^!\[[^\]]*\]" + _RELATIVE + r".*?\n\n", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"^<!--.*?-->\n", re.MULTILINE | re.DOTALL)


def package_page(readme: str, repository: str | None) -> str:
    """Turn the relative links of a README into absolute ones, or into plain text if there is no repository."""
    page = _COMMENT.sub("", readme)
    if repository is None:
        return _LINK.sub(lambda link: link["text"], _IMAGE_PARAGRAPH.sub("", page))
    root = repository.rstrip("/")

    def absolute(link: re.Match[str]) -> str:
        view = "raw" if link["image"] else "blob"
        return f"{link['image']}[{link['text']}]({root}/{view}/main/{link['path']})"

    return _LINK.sub(absolute, page)


if __name__ == "__main__":
    root = Path(__file__).resolve().parent
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    setup(
        long_description=package_page(
            (root / "README.md").read_text(encoding="utf-8"), project.get("urls", {}).get("Repository")
        ),
        long_description_content_type="text/markdown",
    )
