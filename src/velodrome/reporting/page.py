"""The report as one self-contained HTML file: styles, figures and the sorting of tables are inside."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from velodrome.printable import printable
from velodrome.reporting.document import Report
from velodrome.reporting.figures import Picture, to_svg


def to_html(report: Report, pictures: Sequence[Picture]) -> str:
    """The whole report as HTML; every name and text of a user is escaped."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup

    folder = files("velodrome.reporting") / "templates"

    def read(name: str) -> str:
        return (folder / name).read_text(encoding="utf-8")

    environment = Environment(
        loader=FunctionLoader(read), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        finalize=lambda value: printable(value) if type(value) is str else value,  # of `Markup` nothing is changed
    )
    return environment.get_template("report.html").render(
        report=report,
        pictures=[{"about": picture, "svg": Markup(to_svg(picture))} for picture in pictures],
        style=Markup(read("report.css")),
        script=Markup(read("sort.js")),
    )
