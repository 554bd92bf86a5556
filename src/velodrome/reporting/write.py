"""Writes a report in the requested format and returns the files."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from velodrome import files
from velodrome.errors import BadRequest, VelodromeError
from velodrome.reporting.document import Report, make_pictures
from velodrome.reporting.figures import save
from velodrome.reporting.page import to_html
from velodrome.reporting.text import nodes_to_csv, to_csv, to_latex, to_markdown

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
