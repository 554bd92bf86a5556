"""Writes a report as a page, Markdown, LaTeX or CSV. Names are escaped for each: none can break a table or run as code.

The page is one self-contained HTML file: styles, figures and the sorting of tables are inside.
"""

from __future__ import annotations

import csv
import io
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args

from markupsafe import Markup, escape

from velodrome import files
from velodrome.errors import BadRequest, VelodromeError, printable
from velodrome.judge.choice import is_settled
from velodrome.judge.compare import Row
from velodrome.judge.measures import measures_of
from velodrome.reporting.document import Report, make_pictures
from velodrome.reporting.figures import Picture, save, to_svg
from velodrome.reporting.series import CURVES, Extent, name_of
from velodrome.reporting.tables import RATIOS, Cell, Column, Table
from velodrome.run.listing import cell

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': "''{}", "×": r"$\times$", "–": "--", "’": "'", "≥": r"$\geq$", "≤": r"$\leq$",
    "[": "{[}", "]": "{]}", "`": r"\textasciigrave{}", "-": "-{}",
}
_BREAK = r"\\"
#: Columns that hold sentences, and so wrap, with their share of the width: names do not.
_WRAPPED = {"failures": {-1: 0.5}, "claims": {0: 0.3, 1: 0.15, 3: 0.45}, "published": {0: 0.25, 6: 0.2, 7: 0.15}}
#: Rows of one LaTeX table, and its lines in small print; longer tables are split, because none is broken over pages.
_LATEX_ROWS, _LATEX_LINES = 40, 56
#: Letters in small print over the width of a page.
_LATEX_LETTERS = 95


def latex_escape(text: str) -> str:
    """Text escaped for LaTeX; characters that plain pdfLaTeX lacks become question marks."""
    escaped = []
    for character in " ".join(text.split()):
        if character in _LATEX:
            escaped.append(_LATEX[character])
        elif character.isascii() and character.isprintable():
            escaped.append(character)
        else:
            escaped.append(character if character.isalpha() and ord(character) < 0x180 else "?")
    return "".join(escaped)


def markdown_escape(text: str) -> str:
    text = printable(" ".join(text.split()))
    for character in "\\`*_[]<>|#":
        text = text.replace(character, f"\\{character}")
    return text.replace("&", "&amp;")


def to_markdown(report: Report) -> str:
    """The verdict and every table."""
    return _rendered("report.md", markdown_escape, report=report, race=printable(report.record.text.rstrip(), None))


def to_latex(report: Report) -> str:
    """Tables to \\input into a document that has \\usepackage{booktabs}."""
    return _rendered(
        "report.tex", latex_escape,
        {"alignment": _latex_alignment, "heading": _latex_heading, "parts": _latex_parts},
        {"block_start_string": "<%", "block_end_string": "%>", "variable_start_string": "<<",
         "variable_end_string": ">>", "comment_start_string": "<#", "comment_end_string": "#>"},
        report=report,
    )


def _latex_parts(table: Table) -> Iterator[list[Sequence[Cell]]]:
    """The rows of a table, as many at a time as fit on a page."""
    widths = {place % len(table.columns): width for place, width in _WRAPPED.get(table.name, {}).items()}
    part: list[Sequence[Cell]] = []
    lines = 0
    for row in table.rows:
        wrapped = [math.ceil(len(row[place].text) / (width * _LATEX_LETTERS)) for place, width in widths.items()]
        needed = max([1, *wrapped]) + any(cell.detail for cell in row)
        if part and (len(part) == _LATEX_ROWS or lines + needed > _LATEX_LINES):
            yield part
            part, lines = [], 0
        part.append(row)
        lines += needed
    yield part


def _latex_alignment(table: Table) -> Markup:
    """The columns of a table: numbers on the right; columns of sentences wrap."""
    columns = ["r" if column.numeric else "l" for column in table.columns]
    for place, width in _WRAPPED.get(table.name, {}).items():
        columns[place] = f"p{{{width}\\linewidth}}"
    return Markup("".join(columns))


def _latex_heading(column: Column) -> str:
    """A heading over as many lines as keep its column narrow, its unit below."""
    lines = textwrap.wrap(column.heading, 11, break_long_words=False) + ([column.unit] if column.unit else [])
    if len(lines) == 1:
        return latex_escape(lines[0])
    return rf"\shortstack[{'r' if column.numeric else 'l'}]{{{(_BREAK + ' ').join(map(latex_escape, lines))}}}"


def _csv(heading: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(heading)
    for line in lines:
        writer.writerow([cell(value) for value in line])
    return stream.getvalue()


def to_csv(rows: Sequence[Row]) -> str:
    """A line for each configuration, numbers unrounded in seconds and bytes, with ranges and intervals."""
    who = ("name", "engine", "strategy", "workers", "servers", "batch_size", "batch_scope", "runs", "failed")
    places = tuple(RATIOS)
    heading, measures = [*who], measures_of([result for row in rows for result in row.results])
    for measure in measures:
        heading += [measure.name, f"{measure.name}_min", f"{measure.name}_max"]
    for place in places:
        heading += [place, f"{place}_low", f"{place}_high"]
    lines = []
    for row in rows:
        flat = row.as_json()
        line: list[object] = [flat[name] for name in who]
        for measure in measures:
            line += [flat.get(measure.name), *flat["range"].get(measure.name, (None, None))]
        for place in places:
            line += [flat[place], *(flat[f"{place}_interval"] or (None, None))]
        lines.append(line)
    return _csv(heading, lines)


def nodes_to_csv(report: Report) -> str:
    """A line for each process of each configuration's representative run."""
    heading = ["configuration", "run", "process", "host"]
    heading += [f"{curve.name}_{end}" for curve in CURVES for end in ("mean", "min", "max")]
    lines = []
    for row in report.rows:
        for process, samples in report.series[row.name].samples.items():
            line: list[object] = [row.name, row.representative.run, name_of(process), samples.host]
            for curve in CURVES:
                extent = Extent.of(samples.values[curve.name])
                line += [extent.mean, extent.low, extent.high] if extent else [None, None, None]
            lines.append(line)
    return _csv(heading, lines)


def to_html(report: Report, pictures: Sequence[Picture]) -> str:
    """The whole report as HTML; every name and text of a user is escaped."""
    return _rendered(
        "report.html", printable, {"code": code}, {"autoescape": True}, report=report, is_settled=is_settled,
        pictures=[{"about": picture, "svg": Markup(to_svg(picture))} for picture in pictures],
        style=Markup(_template("report.css")), script=Markup(_template("sort.js")),
    )


def _template(name: str) -> str:
    return (resources.files("velodrome.reporting") / "templates" / name).read_text(encoding="utf-8")


def _rendered(
    name: str, escaped: Callable[[str], str], filters: Mapping[str, Callable[..., Any]] | None = None,
    syntax: Mapping[str, Any] | None = None, **values: Any,
) -> str:
    """A template with every text in it escaped, except for `Markup`."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(_template), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=not name.endswith(".html"),
        finalize=lambda value: escaped(value) if type(value) is str else value, **(syntax or {}),
    )
    environment.filters.update({"raw": Markup, **(filters or {})})
    return environment.get_template(name).render(**values)


Format = Literal["html", "markdown", "csv", "latex"]
FORMATS: tuple[str, ...] = get_args(Format)
_SUFFIX = {"html": ".html", "markdown": ".md", "csv": ".csv", "latex": ".tex"}


def write_report(
    report: Report, form: str = "html", out: Path | None = None, figures: Path | None = None
) -> list[Path]:
    """The report's file first, then any others: the processes' CSV, the figures."""
    if form not in FORMATS:
        raise BadRequest(f"--format {form!r} is unknown: choose one of {', '.join(FORMATS)}")
    if out is not None and out.is_dir():
        out = out / f"{report.record.name}{_SUFFIX[form]}"
    path = out or report.record.path / f"report{_SUFFIX[form]}"
    pictures = make_pictures(report) if form == "html" or figures is not None else []
    texts: dict[Path, str] = {}
    if form == "html":
        texts[path] = to_html(report, pictures)
    elif form == "markdown":
        texts[path] = to_markdown(report)
    elif form == "latex":
        texts[path] = to_latex(report)
    else:
        texts[path] = to_csv(report.rows)
        texts[path.with_name(f"{path.stem}-processes{path.suffix}")] = nodes_to_csv(report)
        texts |= {path.with_name(f"{path.stem}-{name}{path.suffix}"): text for name, text in report.more_files.items()}
    written = []
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            files.write_text(file, text, shared=True)
            written.append(file)
        if figures is not None:
            for picture in pictures:
                written += save(picture, figures)
    except OSError as error:
        raise VelodromeError(f"cannot write {error.filename or path}: {error.strerror}") from error
    return written


def code(text: str) -> Markup:
    """A text whose words between backticks are code; everything in it is escaped."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(printable(text)))))
