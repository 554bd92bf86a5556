"""What a race could save at the very most: one that claims whatever a single look would allow, at every look.

    .venv/bin/python benchmarks/verdict_floor.py --races 1000 --json floor.json --write-docs

Such a race makes no allowance for looking often, so it breaks its promise: it is a limit, not a rule to use. It is
compared, as races of the product are, with the smallest full grid that is right as often in the same cell. Two minutes
of one core.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from scipy.special import stdtrit
from simulated import World, grid_curve, simulated
from verdict_tables import MOST_SECONDS, SETTLED, percent, repetitions_of, table
from verdicts import GRIDS, LAST, LEADS, NOISES, PAGE, SIZES, write_page

from velodrome.judge.blocks import ERROR_RATE, FIRST_LOOK, Array

Figure = dict[str, Any]


def single_look(freedom: Array, look: int, rivals: Array, _entered: int) -> Array:
    """The margin of a look that is the only one: the whole error rate, for the pairs that are left."""
    if look < FIRST_LOOK:
        return np.full_like(freedom, np.inf)
    level = np.broadcast_to(ERROR_RATE / np.maximum(rivals * (rivals - 1) / 2, 1), freedom.shape)
    distinct, place = np.unique((freedom + 1j * level).ravel(), return_inverse=True)
    found: Array = -stdtrit(distinct.real, distinct.imag / 2)[place].reshape(freedom.shape)
    return found


def measure(world: World, seed: int, races: int) -> Figure:
    """Run-seconds of the product's race and of the limit, as shares of the grid that is right as often."""
    figure: Figure = {"size": world.size, "noise": world.noise, "lead": world.lead}
    limit = simulated(world, seed, races, LAST, until_sure=True, margin_at=single_look)
    figure["false"] = float((limit.false | limit.wrong_level).mean())
    sure = simulated(world, seed, races, LAST, until_sure=True)
    right = float(sure.answered.mean())
    if right >= SETTLED:
        curve, repetition = grid_curve(world, seed + 1, races, GRIDS, right)
        grid = repetitions_of({str(count): share for count, share in curve.items()}, right) * repetition
        figure["product"] = float(sure.seconds.mean()) / grid
        figure["limit"] = float(limit.seconds.mean()) / grid
    return figure


def summary(figures: Sequence[Figure]) -> str:
    """Medians over the cells that are settled, by the number of configurations, and what the limit claims wrongly."""
    settled = [figure for figure in figures if "limit" in figure]
    sizes = sorted({figure["size"] for figure in settled})
    groups = [settled, *([figure for figure in settled if figure["size"] == size] for size in sizes)]
    rows = [["run-seconds", "median of the cells", *(f"{size} configurations" for size in sizes)]]
    for name, words in (("product", "Velodrome's races"), ("limit", "without allowance for looks")):
        rows.append([words, *(percent(median(figure[name] for figure in group), 0) for group in groups)])
    below = [sum(figure["limit"] <= MOST_SECONDS for figure in group) for group in groups]
    rows.append([f"cells in which the latter takes at most {percent(MOST_SECONDS, 0)}",
                 *(f"{count} of {len(group)}" for count, group in zip(below, groups, strict=True))])
    everywhere = [figures, *([figure for figure in figures if figure["size"] == size] for size in sizes)]
    rows.append(["what it claims wrongly, worst cell",
                 *(percent(max(figure["false"] for figure in group), 0) for group in everywhere)])
    return table(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--races", type=int, default=1000, help="races per cell [1000]")
    parser.add_argument("--seed", type=int, default=1, help="seed of all races [1]")
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument("--write-docs", action="store_true", help="write the table of the docs")
    options = parser.parse_args()
    figures = []
    for size in SIZES:
        for noise in NOISES:
            for lead in (0.0, *LEADS):
                figures.append(measure(World(size, noise, lead), options.seed, options.races))
                print(figures[-1], flush=True)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    print(summary(figures))
    if options.write_docs:
        write_page(PAGE, {"floor": summary(figures)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
