"""Draws a simulated race that stops when it is sure: ranges narrow with every repetition, and rivals drop out."""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from simulated import TOLERANCE

from velodrome.judge.blocks import FIRST_LOOK, Array
from velodrome.judge.decide import ContestState, Range, contest_of, decide

#: Made-up configurations, and their true speeds as shares of the best one's.
CONFIGURATIONS = {
    "torch/allreduce, 2 workers": 1.0,
    "tensorflow/allreduce, 2 workers": 0.935,
    "torch/ddp, 2 workers": 0.9,
    "tensorflow/single": 0.86,
    "torch/single": 0.84,
    "tensorflow/mirrored, 2 workers": 0.74,
    "tensorflow/mirrored, 1 worker": 0.72,
    "parameter server, 2 workers": 0.6,
}
NOISE, MOST, SEED = 0.05, 30, 2
IN, OUT, FAINT, INK = "#2a6f97", "#c1440e", "#e8ecef", "#22303a"


def race() -> tuple[Array, list[ContestState]]:
    """The values of a race until it is decided, and how it stood after each repetition."""
    draw, names = np.random.default_rng(SEED), list(CONFIGURATIONS)
    speeds = np.log(list(CONFIGURATIONS.values()))
    values, standings, left = np.empty((len(names), 0)), [], list(range(len(names)))
    while values.shape[1] < MOST:
        block = speeds + draw.normal(size=len(names)) * NOISE + draw.normal() * 0.05
        block[[one for one in range(len(names)) if one not in left]] = np.nan
        values = np.column_stack([values, block])
        standings.append(decide(contest_of(values, TOLERANCE)))
        left = list(standings[-1].survivors)
        if standings[-1].outcome != "open":
            break
    return values, standings


def draw_picture(file: Path) -> None:
    """Write the picture as SVG; the same one each time."""
    values, standings = race()
    best, names = standings[-1].leader, list(CONFIGURATIONS)
    rivals = [one for one in range(len(names)) if one != best]
    plt.rcParams.update({
        "svg.hashsalt": "verdicts", "font.family": "DejaVu Sans", "font.size": 9, "text.color": INK,
        "axes.edgecolor": "#9aa5ad", "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK,
    })  # fmt: skip
    figure, axes = plt.subplots(2, 4, figsize=(11, 5.4), sharex=True, layout="constrained")
    for axis, rival in zip(axes.flat, rivals, strict=False):
        _draw_rival(axis, names[rival], [standing.lead(best, rival) for standing in standings], standings[-1], rival)
    for axis in axes[:, 0]:
        axis.set_ylabel(f"{names[best].split(',')[0]}\nis faster by")
    _draw_runs(axes.flat[-1], values)
    for axis in axes[1]:
        axis.set_xlabel("repetition")
    figure.savefig(file, format="svg", metadata={"Date": None})
    plt.close(figure)


def _draw_rival(axis: plt.Axes, name: str, leads: list[Range], last: ContestState, rival: int) -> None:
    drop = last.beaten(rival)
    until = drop.look if drop else last.looks
    looks = np.arange(FIRST_LOOK, until + 1)
    seen = [leads[look - 1] for look in looks]
    low, middle, high = ([math.expm1(value) * 100 for value in column] for column in zip(
        *((lead.low, lead.estimate, lead.high) for lead in seen), strict=True))  # fmt: skip
    axis.axhline(0, color=INK, linewidth=0.8)
    for look, bottom, centre, upper in zip(looks, low, middle, high, strict=True):
        colour = OUT if drop and look == drop.look else IN
        axis.plot([look, look], [bottom, upper], color=colour, linewidth=3.2, solid_capstyle="butt")
        axis.plot(look, centre, "o", color=colour, markersize=4, markeredgecolor="white", markeredgewidth=0.8, zorder=3)
    if drop and drop.look < last.looks:
        axis.axvspan(drop.look + 0.5, last.looks + 0.7, color=FAINT, linewidth=0)
    words = f"out after {drop.look}" if drop else "left"
    axis.text(0.97, 0.06, words, transform=axis.transAxes, ha="right", color=OUT, fontweight="bold")
    axis.set_title(name, fontsize=9.5, loc="left")
    axis.set_ylim(-32, 92)
    axis.set_yticks([-25, 0, 25, 50, 75], ["−25 %", "0", "25 %", "50 %", "75 %"])
    axis.set_xlim(0.3, last.looks + 0.7)
    axis.spines[["top", "right"]].set_visible(False)


def _draw_runs(axis: plt.Axes, values: Array) -> None:
    size, looks = values.shape
    made = (~np.isnan(values)).sum(0)
    axis.bar(np.arange(1, looks + 1), np.full(looks, size), color=FAINT, width=0.8)
    axis.set_ylim(0, size + 2)
    axis.bar(np.arange(1, looks + 1), made, color=IN, width=0.8)
    axis.set_title("runs of each repetition", fontsize=9.5, loc="left")
    saved = f"{made.sum()} runs instead of {size * looks}"
    axis.text(looks + 0.4, size + 1.7, saved, ha="right", va="top", fontweight="bold")
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_yticks(range(0, size + 1, 2))
    axis.set_xticks(range(FIRST_LOOK, looks + 1, 3))


if __name__ == "__main__":
    draw_picture(Path(__file__).resolve().parents[1] / "docs" / "images" / "race-until-sure.svg")
