"""Figures of how well and how fast configurations train: over epochs, over time, over workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

from velodrome.job.values import Target
from velodrome.judge.compare import Row, quality_of, tasks_of
from velodrome.judge.measures import THROUGHPUT, Measure, Ratio
from velodrome.reporting.figures import (
    INK,
    MOST_LINES,
    Looks,
    Picture,
    drawing,
    legend_below,
    new_figure,
    rate_of,
    styles_of,
    whole_numbers,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: More panels than this cannot be compared by eye.
MOST_PANELS = 9
#: Tasks whose curves are drawn; each has figures of its own.
MOST_TASKS = 6


def fastest(rows: Sequence[Row], most: int) -> list[Row]:
    """The fastest rows, at most `most`, in their original order."""
    kept = {row.name for row in sorted(rows, key=lambda row: -row.examples_per_second)[:most]}
    return [row for row in rows if row.name in kept]


def cut(shown: int, of: int, what: str = "configurations") -> str:
    return f" The {shown} fastest of {of} {what} are drawn." if shown < of else ""


def metric_of(rows: Sequence[Row]) -> tuple[str, str]:
    """The field of an epoch that is drawn for the rows of one task, and its name.

    A script may report other figures than those of a validation: then the first of them is drawn.
    """
    name = quality_of(rows).name
    usual = f"validation_{name}"
    if all(row.is_script for row in rows):
        first = (f"train_{name}", "validation_loss", "train_loss")
        reported = dict.fromkeys(key for row in rows for result in row.results for epoch in result.history
                                 for key in epoch.as_json() if key.startswith(("validation_", "train_")))
        there = (field for field in (usual, *first, *reported) if any(epochs_of(row, field)[0] for row in rows))
        usual = next(there, usual)
    return usual, usual.replace("_", " ", 1)


def has_curves(rows: Sequence[Row]) -> bool:
    """Whether there is something to draw over the epochs of the rows of one task."""
    field, _ = metric_of(rows)
    return any(epochs_of(row, field)[0] for row in rows)


def epochs_of(row: Row, field: str) -> tuple[list[int], list[list[float]], list[float]]:
    """Epoch numbers, the values of all runs at each, and the median training seconds at its end."""
    numbers, values, clocks = [], [], []
    elapsed = [0.0] * len(row.results)
    for place in range(max(len(result.history) for result in row.results)):
        there = [(index, result.history[place]) for index, result in enumerate(row.results)
                 if place < len(result.history)]
        for index, epoch in there:
            elapsed[index] += epoch.seconds
        reported = [value for _, epoch in there if (value := epoch.value(field)) is not None]
        if reported:
            numbers.append(place + 1)
            values.append(reported)
            clocks.append(median(elapsed[index] for index, _ in there))
    return numbers, values, clocks


def of_tasks(rows: Sequence[Row], target: str | None, looks: Looks) -> list[Picture]:
    """Quality against time and per epoch, for each task: accuracies of different data sets cannot be compared."""
    tasks = tasks_of(rows)
    pictures = []
    for number, (task, members) in enumerate(list(tasks.items())[:MOST_TASKS], start=1):
        for picture in (over_time(members, target, looks), over_epochs(members, looks)):
            if picture is not None:
                caption = picture.caption
                if len(tasks) > MOST_TASKS:
                    caption += f" The first {MOST_TASKS} of {len(tasks)} tasks are drawn."
                pictures.append(replace(
                    picture, name=picture.name if number == 1 else f"{picture.name}-{number}",
                    title=picture.title + (f" for {task}" if task else ""), caption=caption,
                ))
    return pictures


def over_epochs(rows: Sequence[Row], looks: Looks) -> Picture | None:
    """Quality per epoch for the rows of one task, a panel for each strategy."""
    field, name = metric_of(rows)
    drawn = [row for row in rows if epochs_of(row, field)[0]]
    if not drawn:
        return None
    labels = list(dict.fromkeys(row.label for row in sorted(drawn, key=lambda row: -row.examples_per_second)))
    panels = sorted(labels[:MOST_PANELS])
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    left_out = 0
    with drawing():
        figure, axes = new_figure(
            11 if columns > 1 else 7, 0.8 + 2.5 * lines, lines, columns, sharex=True, sharey=True
        )
        for place, label in enumerate(panels):
            panel = axes[place // columns][place % columns]
            members = [row for row in drawn if row.label == label]
            shown = fastest(members, MOST_LINES // 2)
            left_out += len(members) - len(shown)
            for row in shown:
                numbers, values, _ = epochs_of(row, field)
                panel.plot(numbers, [median(of_epoch) for of_epoch in values], **looks.line(row),
                           markevery=max(1, len(numbers) // 5))
                looks.name_point(panel, row, numbers, values)
                if row.runs > 1:
                    panel.fill_between(numbers, [min(v) for v in values], [max(v) for v in values],
                                       color=looks.colour[label], alpha=0.12, linewidth=0)
            panel.set_title(label)
        for panel in axes[-1]:
            panel.set_xlabel("epoch")
            panel.xaxis.get_major_locator().set_params(integer=True)
        epochs = {number for row in drawn for number in epochs_of(row, field)[0]}
        if len(epochs) == 1:
            whole_numbers(panel, [*epochs])  # an axis of a single epoch would have fractions as ticks
        for line in axes:
            line[0].set_ylabel(name)
        for place in range(len(panels), lines * columns):
            axes[place // columns][place % columns].set_visible(False)
        legend_below(figure, looks.keys(colours=False))
    caption = f"{name.capitalize()} at the end of each epoch: median of the runs; the band is their range."
    if len(panels) < len(labels) or left_out:
        caption += f" The {len(panels)} fastest of {len(labels)} strategies are drawn, each with its fastest lines."
    return Picture("accuracy-by-epoch", f"{name.capitalize()} per epoch", caption, figure)


def draw_over_time(axes: Axes, rows: Sequence[Row], looks: Looks) -> int:
    """Quality of one task against training time; how many lines were drawn."""
    from matplotlib.ticker import LogLocator

    field, name = metric_of(rows)
    drawn = fastest([row for row in rows if epochs_of(row, field)[0]], MOST_LINES)
    for row in drawn:
        _, values, clocks = epochs_of(row, field)
        rest = looks.rest[row.name]
        axes.plot(clocks, [median(of_epoch) for of_epoch in values], **looks.line(row),
                  markevery=max(1, len(clocks) // 5), label=f"{row.label}, {row.workers} w{', ' if rest else ''}{rest}")
        looks.name_point(axes, row, clocks, values)
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    # Less than a decade would show a single label.
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high / low < 300 else (1.0,)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("")
    axes.set_xlabel("training time (s, logarithmic)")
    axes.set_ylabel(name)
    return len(drawn)


def over_time(rows: Sequence[Row], target: str | None, looks: Looks) -> Picture | None:
    """Quality against training time for the rows of one task, all strategies in one."""
    _, name = metric_of(rows)
    with drawing():
        figure, axes = new_figure(11, 4.6)
        panel = axes[0][0]
        count = draw_over_time(panel, rows, looks)
        if not count:
            return None
        parsed = Target.parse(target) if target else None
        if parsed is not None and name.endswith(parsed.metric):
            panel.axhline(parsed.value, color=INK, linewidth=0.9, linestyle=(0, (2, 2)))
            panel.annotate(f"target {parsed.value:g}", (0, parsed.value), xycoords=("axes fraction", "data"),
                           xytext=(4, 3), textcoords="offset points", ha="left", va="bottom", fontsize=8)
            panel.margins(y=0.08)
        figure.legend(loc="outside right upper", fontsize=7.5)
    caption = (f"{name.capitalize()} over training time, without start-up and evaluation; medians of the runs. "
               "Colour: strategy; line style: workers (w); marker: what else differs, or the strategy."
               + cut(count, len(rows)))
    return Picture("accuracy-over-time", f"{name.capitalize()} against time", caption, figure)


def over_workers(rows: Sequence[Row], looks: Looks) -> Picture:
    """Throughput, speedup and scaling over the number of workers, with the ideal line; a line style for each task."""
    from matplotlib.lines import Line2D

    groups: dict[tuple[str, str, str], list[Row]] = {}
    for task, members in tasks_of(rows).items():
        for row in members:
            groups.setdefault((row.label, task, looks.rest[row.name]), []).append(row)
    kept = sorted(groups, key=lambda key: -max(row.examples_per_second for row in groups[key]))[:MOST_LINES]
    style = styles_of([task for _, task, _ in groups])
    measure = rate_of(rows)
    first = ("throughput", "examples/s", None) if measure is THROUGHPUT else ("time of a whole run", "s", None)
    panels: list[tuple[str, str, Callable[[Row], Ratio | None] | None]] = [first]
    if any(row.speedup is not None and row.workers > 1 for row in rows):
        panels.append(("speedup over the engine's single run", "×", lambda row: row.speedup))
    if any(row.scaling is not None and row.workers > 1 for row in rows):
        panels.append(("scaling over one worker", "×", lambda row: row.scaling))
    counts = sorted({row.workers for row in rows})
    # Two noisy runs give intervals of many powers of ten: the axis follows the estimates and the ideal instead.
    top = {
        title: max(range_of(row, measure)[2] for row in rows) or 1.0 if read is None
        else max(1.25 * max(ratio.estimate for row in rows if (ratio := read(row)) is not None), counts[-1])
        for title, _, read in panels
    }
    with drawing():
        figure, axes = new_figure(11 if len(panels) > 1 else 7, 4.3, 1, len(panels))
        for panel, (title, unit, read) in zip(axes[0], panels, strict=True):
            for place, key in enumerate(kept):
                # Shifted a little, so that bars of equal worker counts do not cover each other.
                shift = 1 + min(0.012, 0.1 / len(kept)) * (place - (len(kept) - 1) / 2)
                members = sorted(groups[key], key=lambda row: (row.workers, row.servers))
                _draw_group(panel, members, read or measure, shift,
                            color=looks.colour[key[0]], linestyle=style[key[1]], marker=looks.marker[key[0], key[2]])
            if read is not None:
                line = [counts[0] + (counts[-1] - counts[0]) * part / 50 for part in range(51)]
                panel.plot(line, line, color=INK, linewidth=0.9, linestyle=(0, (2, 2)))
                panel.annotate("ideal", (counts[-1], counts[-1]), xytext=(-4, 0), textcoords="offset points",
                               ha="right", va="bottom", fontsize=8)
            if counts[-1] > 8 * counts[0]:
                panel.set_xscale("log", base=2)
            panel.minorticks_off()
            whole_numbers(panel, counts)
            panel.set_ylim(0, top[title] * 1.06)
            panel.margins(x=0.1)
            panel.yaxis.set_major_formatter("{x:,.0f}" if read is None else "{x:g}")
            panel.set_title(title)
            panel.set_xlabel("workers")
            panel.set_ylabel(f"{title.split()[0]} ({unit})")
        tasks = [Line2D([], [], color=INK, linestyle=line, label=task) for task, line in style.items()]
        legend_below(figure, [*looks.keys(workers=False), *(tasks if len(tasks) > 1 else [])])
    caption = (f"{first[0].capitalize()}: mean with the range of the runs. Speedup and scaling: ratio with its 95 % "
               "interval, cut at the axis. A single run has neither." + cut(len(kept), len(groups), "lines"))
    heading = "Throughput and speedup over workers" if measure is THROUGHPUT else "Time of whole runs over workers"
    return Picture("workers", heading, caption, figure)


def range_of(row: Row, measure: Measure) -> tuple[float, float, float]:
    """Mean, least and most; zeros where it is not known."""
    spread = row.spreads.get(measure.name)
    return (0.0, 0.0, 0.0) if spread is None else (spread.mean, spread.low, spread.high)


def _draw_group(panel: Axes, members: Sequence[Row], read: Callable[[Row], Ratio | None] | Measure, shift: float,
                **look: Any) -> None:
    places, middles, lows, highs = [], [], [], []
    for row in members:
        if isinstance(read, Measure):
            if not row.mean(read.name):
                continue
            middle, low, high = range_of(row, read)
        else:
            place = read(row)
            if place is None:
                continue
            middle = place.estimate
            low, high = (middle if end is None else end for end in (place.low, place.high))
        places.append(row.workers * shift)
        middles.append(middle)
        lows.append(max(0.0, middle - low))
        highs.append(max(0.0, high - middle))
    if places:
        panel.errorbar(places, middles, yerr=[lows, highs], capsize=2.5, elinewidth=0.9, **look)

