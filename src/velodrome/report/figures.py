"""Figures of a race, drawn with matplotlib: colours readable by the colour-blind, axes with units."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from velodrome.analysis.compare import Row

#: Okabe and Ito's palette, made for colour-blind readers; the yellow, faint as a line, comes last.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000", "#F0E442")
STYLES = ("-", "--", ":", "-.")


def race_figure(rows: Sequence[Row], results: Sequence[dict[str, Any]], path: Path, title: str) -> Path:
    """Throughput by strategy and workers, and accuracy over training time, in one picture."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    labels = sorted({row.label for row in rows})
    workers = sorted({row.workers for row in rows})
    colour = {label: COLOURS[i % len(COLOURS)] for i, label in enumerate(labels)}
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(13, max(4.6, 1.4 + 0.36 * len(rows))), layout="constrained", width_ratios=(1.1, 1)
    )
    figure.suptitle(title, fontsize=13)
    _bars(left, rows, labels, workers, colour)
    _curves(right, results, workers, colour)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path


def _bars(axes: Any, rows: Sequence[Row], labels: list[str], workers: list[int], colour: dict[str, str]) -> None:
    """A group of bars for each strategy, one for each configuration of workers, servers and batch."""
    from matplotlib.ticker import StrMethodFormatter

    groups = {label: [row for row in rows if row.label == label] for label in labels}
    height = 0.8 / max(len(group) for group in groups.values())
    several_batches = len({row.batch_size for row in rows}) > 1
    for number, group in enumerate(groups.values()):
        for slot, row in enumerate(sorted(group, key=lambda row: (row.workers, row.servers, row.batch_size))):
            place = number + (slot - (len(group) - 1) / 2) * height
            strength = 1.0 if len(workers) == 1 else 0.45 + 0.55 * workers.index(row.workers) / (len(workers) - 1)
            bar = axes.barh(place, row.examples_per_second, height * 0.92, color=colour[row.label], alpha=strength)
            who = _counted(row.workers, "worker") + (f", {_counted(row.servers, 'server')}" if row.servers else "")
            batch = f", batch {row.batch_size}" if several_batches else ""
            axes.bar_label(bar, [f" {row.examples_per_second:,.0f}  ({who}{batch})"], fontsize=8)
    axes.set_yticks(range(len(labels)), [label.replace("/", "\n") for label in labels])
    for tick, label in zip(axes.get_yticklabels(), labels, strict=True):
        tick.set_color(colour[label])
        tick.set_fontweight("bold")
    axes.invert_yaxis()
    axes.margins(x=0.3)
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.set_xlabel("training throughput (examples/s)")
    axes.spines[["top", "right"]].set_visible(False)


def _curves(axes: Any, results: Sequence[dict[str, Any]], workers: list[int], colour: dict[str, str]) -> None:
    """A line for each run: colours as those of the bars, strokes by the number of workers."""
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    style = {count: STYLES[i % len(STYLES)] for i, count in enumerate(workers)}
    for result in results:
        label = f"{result['engine']}/{result['strategy']}"
        if result["status"] != "finished" or label not in colour:
            continue
        seconds, curve, clock = [], [], 0.0
        for entry in result["history"]:
            clock += entry["seconds"]
            if entry["validation_accuracy"] is not None:
                seconds.append(clock)
                curve.append(entry["validation_accuracy"])
        stroke = style[result["workers"]]
        axes.plot(seconds, curve, stroke, color=colour[label], linewidth=1.6, marker="o", markersize=2.5)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("training time (s, logarithmic)")
    axes.set_ylabel("validation accuracy after each epoch")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    strokes = [
        Line2D([], [], color="0.3", linestyle=style[count], label=_counted(count, "worker"))  # type: ignore[arg-type]
        for count in workers
    ]
    axes.legend(handles=strokes, title="colours as on the left", title_fontsize=8, fontsize=9, loc="lower right")


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
