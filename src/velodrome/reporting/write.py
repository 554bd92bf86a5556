"""Writes a report as a page, Markdown, LaTeX or CSV. Names are escaped for each: none can break a table or run as code.

The page is one self-contained HTML file: styles, figures and the sorting of tables are inside.
"""

from __future__ import annotations

import csv
import io
import re
import textwrap
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Literal, get_args

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
_TINY, _BREAK = r"\tiny", r"\\"
#: Columns that hold sentences, and so wrap, with their share of the width: names do not.
_WRAPPED = {"failures": {-1: 0.5}, "claims": {0: 0.3, 1: 0.15, 3: 0.45}, "published": {0: 0.25, 6: 0.2, 7: 0.15}}
#: Rows of one LaTeX table; longer tables are split.
_LATEX_ROWS = 40


def latex_escape(text: str) -> str:
    """Text escaped for LaTeX; characters that plain pdfLaTeX lacks become question marks."""
    found = []
    for character in " ".join(text.split()):
        if character in _LATEX:
            found.append(_LATEX[character])
        elif character.isascii() and character.isprintable():
            found.append(character)
        else:
            found.append(character if character.isalpha() and ord(character) < 0x180 else "?")
    return "".join(found)


def markdown_escape(text: str) -> str:
    text = printable(" ".join(text.split()))
    for character in "\\`*_[]<>|#":
        text = text.replace(character, f"\\{character}")
    return text.replace("&", "&amp;")


def to_markdown(report: Report) -> str:
    """The verdict and every table."""
    parts = [f"# {markdown_escape(report.title)}", ""]
    for answer in report.answers:
        if answer.task:
            parts += [f"## {markdown_escape(answer.task)}", ""]
        for line in answer.recommendation.lines:
            name, _, rest = line.partition(": ")
            parts += [f"**{name}:** {markdown_escape(rest)}", ""]
        parts += [*(f"- {markdown_escape(caveat)}" for caveat in answer.recommendation.caveats), ""]
    parts += [f"- {markdown_escape(note)}" for note in report.notes]
    for table in report.tables:
        parts += ["", f"## {markdown_escape(table.title)}", "", *_markdown_rows(table), "", markdown_escape(table.note)]
    for title, pairs in (("Varied", report.varied), ("Common to all runs", report.shared),
                         ("Environment", report.environment)):
        parts += ["", f"## {title}", "", "| | |", "|---|---|"]
        parts += [f"| {markdown_escape(name)} | {markdown_escape(value)} |" for name, value in pairs]
    fence = "`" * 4
    race = printable(report.record.text.rstrip(), None)
    parts += ["", "## How to reproduce", "", "`race.yaml`:", "", f"{fence}yaml", race, fence, ""]
    parts += [f"{fence}sh", *report.commands, fence, ""]
    return "\n".join(parts)


def _markdown_rows(table: Table) -> Iterable[str]:
    headings = [f"{column.heading} ({column.unit})" if column.unit else column.heading for column in table.columns]
    yield f"| {' | '.join(map(markdown_escape, headings))} |"
    yield f"|{'|'.join('---:' if column.numeric else '---' for column in table.columns)}|"
    for row in table.rows:
        yield f"| {' | '.join(map(_markdown_cell, row))} |"


def _markdown_cell(cell: Cell) -> str:
    text = f"**{markdown_escape(cell.text)}**" if cell.best else markdown_escape(cell.text)
    return f"{text} ({markdown_escape(cell.detail)})" if cell.detail else text


def to_latex(report: Report) -> str:
    """Tables to \\input into a document that has \\usepackage{booktabs}."""
    lines = [line for answer in report.answers for line in (answer.task, *answer.recommendation.lines) if line]
    verdicts = [f"% {latex_escape(line)}" for line in lines]
    parts = [f"% Race {latex_escape(report.record.name)}. In the preamble: \\usepackage{{booktabs}}", *verdicts, ""]
    for table in report.tables:
        pieces = [table.rows[place : place + _LATEX_ROWS] for place in range(0, len(table.rows), _LATEX_ROWS)]
        for number, rows in enumerate(pieces):
            parts += [*_latex_table(table, rows, number), ""]
    return "\n".join(parts)


def _latex_table(table: Table, rows: Sequence[tuple[Cell, ...]], number: int) -> Iterable[str]:
    columns = ["r" if column.numeric else "l" for column in table.columns]
    for place, width in _WRAPPED.get(table.name, {}).items():
        columns[place] = f"p{{{width}\\linewidth}}"
    title = latex_escape(table.title) + (" (continued)" if number else "")
    note = "" if number else f" {latex_escape(table.note)}"
    yield r"\begin{table}[htbp]"
    yield r"\centering"
    yield rf"\caption{{{title}.{note}}}"
    yield rf"\label{{tab:velodrome-{table.name}{f'-{number + 1}' if number else ''}}}"
    size = _TINY if len(table.columns) > 11 or table.name == "nodes" else r"\scriptsize"
    yield rf"{size}\setlength{{\tabcolsep}}{{{'2pt' if size == _TINY else '3pt'}}}"
    # A table wider than the text is centred.
    yield rf"\smallskip\makebox[\linewidth][c]{{\begin{{tabular}}{{{''.join(columns)}}}"
    yield r"\toprule"
    yield " & ".join(map(_latex_heading, table.columns)) + r" \\"
    yield r"\midrule"
    for row in rows:
        yield " & ".join(_latex_cell(cell) for cell in row) + r" \\"
        if any(cell.detail for cell in row):
            yield " & ".join(rf"{{\tiny {latex_escape(cell.detail)}}}" if cell.detail else "" for cell in row) + r" \\"
    yield r"\bottomrule"
    yield r"\end{tabular}}"
    yield r"\end{table}"


def _latex_heading(column: Column) -> str:
    """A heading over as many lines as keep its column narrow, its unit below."""
    lines = textwrap.wrap(column.heading, 11, break_long_words=False) + ([column.unit] if column.unit else [])
    if len(lines) == 1:
        return latex_escape(lines[0])
    return rf"\shortstack[{'r' if column.numeric else 'l'}]{{{(_BREAK + ' ').join(map(latex_escape, lines))}}}"


def _latex_cell(cell: Cell) -> str:
    return rf"\textbf{{{latex_escape(cell.text)}}}" if cell.best else latex_escape(cell.text)


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
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    folder = resources.files("velodrome.reporting") / "templates"

    def read(name: str) -> str:
        return (folder / name).read_text(encoding="utf-8")

    environment = Environment(
        loader=FunctionLoader(read), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        finalize=lambda value: printable(value) if type(value) is str else value,  # of `Markup` nothing is changed
    )
    environment.filters["code"] = code
    return environment.get_template("report.html").render(
        report=report,
        is_settled=is_settled,
        pictures=[{"about": picture, "svg": Markup(to_svg(picture))} for picture in pictures],
        style=Markup(read("report.css")),
        script=Markup(read("sort.js")),
    )


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
