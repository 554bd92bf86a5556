"""Figures of a race, drawn with matplotlib: colours readable by the colour-blind, axes with units."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from velodrome.analysis.compare import Row

#: Okabe and Ito's palette, made for colour-blind readers.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442", "#000000")


def race_figure(rows: Sequence[Row], results: Sequence[dict[str, Any]], path: Path, title: str) -> Path:
    """Throughput by strategy and workers, and accuracy over training time, in one picture."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    labels = list(dict.fromkeys(row.label for row in rows))
    workers = sorted({row.workers for row in rows})
    colour = {label: COLOURS[i % len(COLOURS)] for i, label in enumerate(labels)}
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 4.6), layout="constrained")
    figure.suptitle(title, fontsize=12)

    height = 0.8 / len(workers)
    for row in rows:
        place = labels.index(row.label) + (workers.index(row.workers) - (len(workers) - 1) / 2) * height
        faded = 1.0 if len(workers) == 1 else 0.45 + 0.55 * workers.index(row.workers) / (len(workers) - 1)
        bar = left.barh(place, row.examples_per_second, height * 0.92, color=colour[row.label], alpha=faded)
        left.bar_label(bar, [f" {row.workers} w: {row.examples_per_second:,.0f}"], fontsize=8)
    left.set_yticks(range(len(labels)), labels)
    left.invert_yaxis()
    left.margins(x=0.22)
    left.set_xlabel("training throughput (examples/s), w = workers")
    left.spines[["top", "right"]].set_visible(False)

    styles = ("-", "--", ":", "-.")
    for result in results:
        if result["status"] != "finished":
            continue
        label = f"{result['engine']}/{result['strategy']}"
        seconds, curve, clock = [], [], 0.0
        for entry in result["history"]:
            clock += entry["seconds"]
            if entry["validation_accuracy"] is not None:
                seconds.append(clock)
                curve.append(entry["validation_accuracy"])
        style = styles[workers.index(result["workers"]) % len(styles)]
        right.plot(seconds, curve, style, color=colour[label], label=f"{label}, {result['workers']} w", linewidth=1.6)
    right.set_xscale("log")
    right.set_xlabel("training time (s, logarithmic)")
    right.set_ylabel("validation accuracy")
    right.grid(alpha=0.25)
    right.spines[["top", "right"]].set_visible(False)
    handles, names = right.get_legend_handles_labels()
    unique = dict(zip(names, handles, strict=True))
    right.legend(unique.values(), unique.keys(), fontsize=7, loc="lower right")

    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path
