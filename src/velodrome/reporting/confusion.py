"""The confusion matrix of the most accurate configuration of every task."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import Any

from velodrome.job.result import Result
from velodrome.judge.compare import Row, tasks_of
from velodrome.printable import shown
from velodrome.reporting.figures import INK, Picture, bar_words, drawing, new_figure

#: With more classes cells are too small to see, and with more than the second number counts are too small to read.
MOST_CLASSES, MOST_WRITTEN = 40, 20
MOST_TASKS = 3
#: Of a title, beside the names of the classes.
_LETTERS_PER_INCH = 10


def confusion(rows: Sequence[Row]) -> Picture | None:
    """The confusion matrix, normalized by the true class."""
    best = _best(rows)
    small = [(task, row, table) for task, row, table in best if 2 <= len(table) <= MOST_CLASSES]
    shown = small[:MOST_TASKS]
    if not shown:
        return None
    side = max(3.6, 1.6 + 0.32 * max(len(table) for _, _, table in shown))
    with drawing():
        width = min(11.0, side * len(shown) + 0.8)
        figure, axes = new_figure(width, side + 0.5, 1, len(shown))
        words = bar_words(rows)
        for panel, (task, row, table) in zip(axes[0], shown, strict=True):
            _draw(panel, table, _names(row.representative, len(table)))
            lines = [line for line in (task, row.label, words[row.name]) if line]
            letters = int(_LETTERS_PER_INCH * width / len(shown))
            panel.set_title("\n".join(fill(line, letters) for line in lines), fontsize=8)
    caption = ("Test examples by true class (row) and predicted class (column); the darker, the larger the share of "
               "the true class. One run of the most accurate configuration"
               f"{' of each task' if len(shown) > 1 else ''}.")
    caption += _cut(len(shown), len(best), sum(len(table) > MOST_CLASSES for _, _, table in best))
    return Picture("confusion", "Confusion matrix", caption, figure)


def _cut(shown: int, tasks: int, large: int) -> str:
    """Which tasks are not drawn, and why."""
    if shown == tasks:
        return ""
    why = f"; {large} of them {'has' if large == 1 else 'have'} more than {MOST_CLASSES} classes" if large else ""
    return f" {shown} of {tasks} tasks are drawn{why}."


def _best(rows: Sequence[Row]) -> list[tuple[str, Row, list[list[int]]]]:
    found = []
    for task, members in tasks_of(rows).items():
        counted = [row for row in members if _is_square(row) and row.mean("accuracy") is not None]
        if counted:
            best = max(counted, key=lambda row: row.mean("accuracy") or 0.0)
            found.append((task, best, best.representative.confusion or []))
    return found


def _is_square(row: Row) -> bool:
    """Whether its run recorded a confusion matrix that is square; a file may hold any rows."""
    table = row.representative.confusion
    return table is not None and all(len(cells) == len(table) for cells in table)


def _names(result: Result, classes: int) -> list[str]:
    names = [str(name) for name in result.class_names or ()]
    if len(names) != classes:
        return [str(place) for place in range(classes)]
    # Two dollar signs would make it a formula.
    return [shown(name, 17).replace("$", r"\$") for name in names]


def _draw(panel: Any, table: list[list[int]], names: Sequence[str]) -> None:
    shares = [[cell / max(1, sum(row)) for cell in row] for row in table]
    panel.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0)
    if len(table) <= MOST_WRITTEN:
        # Dark on light also on a dark page, so it is not the ink that follows the page.
        for true, row in enumerate(table):
            for predicted, count in enumerate(row):
                colour = "#ffffff" if shares[true][predicted] > 0.6 else "#20262e"
                if count:
                    panel.text(predicted, true, f"{count:,}", ha="center", va="center", fontsize=7, color=colour)
    wide = max(map(len, names)) > 2
    panel.set_xticks(range(len(names)), names, rotation=90 if wide else 0, fontsize=7.5)
    panel.set_yticks(range(len(names)), names, fontsize=7.5)
    panel.set_xlabel("predicted class")
    panel.set_ylabel("true class")
    panel.tick_params(length=0)
    panel.grid(visible=False)
    for spine in panel.spines.values():
        spine.set_visible(True)
        spine.set_edgecolor(INK)
