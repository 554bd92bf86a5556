"""Turns sentences of the judge into HTML, for the report and the web pages."""

from __future__ import annotations

import re

from markupsafe import Markup, escape

from velodrome.errors import printable


def code(text: str) -> Markup:
    """A text whose words between backticks are code; everything in it is escaped."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(printable(text)))))
