"""Training metrics over batches, from the progress that runs stored: a figure for each that a study asks for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from velodrome.events.models import Event, ProgressEvent
from velodrome.reporting.figures import COLOURS, STYLES, Picture, drawing, legend_below, new_figure
from velodrome.run.store import RunFolder
from velodrome.studies.format import BatchCurves, fits_any
from velodrome.studies.outcome import FigureComparison
from velodrome.studies.settings import label_of

#: Lines of a figure that can be told apart.
_MOST_CURVES = 18


@dataclass(frozen=True)
class Line:
    """A training metric of one process over the batches of a run."""

    batches: Sequence[int]
    values: Sequence[float]
    #: Batches of the longest report: a value is their mean.
    longest: int


def batch_pictures(asked: Sequence[BatchCurves], compared: Sequence[FigureComparison]) -> list[Picture]:
    """The figures of a study that have a line of ours."""
    drawn = [_picture(number, curves, compared) for number, curves in enumerate(asked, start=1)]
    return [picture for picture in drawn if picture is not None]


def _picture(number: int, asked: BatchCurves, compared: Sequence[FigureComparison]) -> Picture | None:
    lines = [*_lines(asked, compared)]
    if not lines:
        return None
    shown = lines[:_MOST_CURVES]
    with drawing():
        figure, axes = new_figure(11, 4.2)
        panel = axes[0][0]
        keys = [
            panel.plot(line.batches, line.values, marker="" if len(line.batches) > 1 else "_", label=label,
                       linewidth=1.1, color=COLOURS[place % len(COLOURS)], linestyle=STYLES[place // len(COLOURS)])[0]
            for place, (label, line) in enumerate(shown)
        ]
        if asked.metric != "accuracy":
            panel.set_yscale("log")
            panel.yaxis.set_major_formatter("{x:g}")
            panel.yaxis.set_minor_formatter("")
        panel.set_xlabel("batches of the process")
        panel.set_ylabel(f"train {asked.metric}")
        legend_below(figure, keys)
    title = f"Train {asked.metric} over batches" + (f", as in {asked.place}" if asked.place else "")
    return Picture(f"batches-{number}", title, _caption(asked, shown, len(lines)), figure)


def _caption(asked: BatchCurves, shown: Sequence[tuple[str, Line]], of: int) -> str:
    longest = max(line.longest for _, line in shown)
    sentences = ["Of the first process that reports it, in the typical run of each configuration."]
    if asked.mean == "epoch":
        sentences.append("A point is the mean since the epoch began.")
    if longest > 1:
        sentences.append("Where a progress report is about more than one batch, a point is its mean over the steps of "
                         f"that report: here {longest} at most.")
    if not asked.place:
        sentences.append("The document has no such figure.")
    if len(shown) < of:
        sentences.append(f"The first {len(shown)} of {of} configurations are drawn.")
    return " ".join(sentences)


def _lines(asked: BatchCurves, compared: Sequence[FigureComparison]) -> Iterator[tuple[str, Line]]:
    """Lines of our jobs with their labels; a job that stands for several published ones has one."""
    drawn: set[str] = set()
    for each in compared:
        row, ours = each.row, each.setting.ours
        if row is None or ours is None or row.name in drawn or not fits_any(each.setting.published, asked.where):
            continue
        drawn.add(row.name)
        folder = row.representative.folder
        line = line_of(RunFolder(folder).events(), asked) if folder else None
        if line is not None:
            yield label_of(ours) + (", not in the study" if each.setting.added else ""), line


def line_of(events: Iterable[Event], asked: BatchCurves) -> Line | None:
    """A metric over the batches of the first process that reports it; None if none does.

    A run that was resumed reports some steps again: the later report counts.
    """
    reported: dict[tuple[int, str], dict[tuple[int, int], float | None]] = {}
    lengths: dict[int, int] = {}
    for event in events:
        if isinstance(event, ProgressEvent):
            steps = reported.setdefault((event.rank or 0, event.role or ""), {})
            steps[event.epoch, event.step] = event.metrics.get(asked.metric)
            lengths[event.epoch] = max(lengths.get(event.epoch, 0), event.step, event.steps)
    with_values = [key for key, steps in reported.items() if any(value is not None for value in steps.values())]
    if not with_values:
        return None
    begins = {epoch: sum(length for before, length in lengths.items() if before < epoch) for epoch in lengths}
    batches, values, longest = [], [], 0
    current, last, total = 0, 0, 0.0
    for (epoch, step), value in sorted(reported[min(with_values)].items()):
        if epoch != current:
            current, last, total = epoch, 0, 0.0
        if value is None:
            continue
        weight, last = step - last, step
        longest = max(longest, weight)
        total += weight * value
        batches.append(begins[epoch] + step)
        values.append(total / step if asked.mean == "epoch" else value)
    return Line(batches, values, longest)
