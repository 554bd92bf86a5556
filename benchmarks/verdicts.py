"""How often verdicts are wrong, right and open, in simulated races with known answers, and how many runs they take.

    .venv/bin/python benchmarks/verdicts.py --races 6000 --others 300 --seed 3 --json verdicts.json --write-docs

Every race is judged by the product's own rule, after every repetition (`simulated.py`). Nothing is trained: a thousand
races of eight configurations take a few seconds, all of the above a good half hour of one core. Figures of earlier
calls are used with `--figures FILE…`; they must be of the same rule.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from simulated import BATCH, STRAGGLER_SHARE, Ends, World, coverage, grid_curve, joined, simulated
from simulated_guard import Guards, set_aside_wrongly
from simulated_targets import false_claims, target_worlds
from verdict_picture import draw_picture
from verdict_tables import SETTLED, bars, pages

from velodrome.judge.blocks import ERROR_RATE

SIZES = (2, 4, 8, 16)
#: Sizes at which only false claims are simulated, in the worst situations and at the noise at which nothing is called
#: level before: the rule's constants lie between those of the others, or are those of the largest.
BETWEEN, WORST_NOISE = (3, 6, 12, 24), 0.15
WORST = ("undisturbed", "stragglers", "one with 2× the noise", "one with 3× the noise", "half with 2× the noise",
         "missing runs")
NOISES = (0.02, 0.05, 0.15)
LEADS = (0.03, 0.1, 0.3)
#: Repetitions after which a race is looked at once, and after which one that is not sure is given up.
FIXED, LAST = (3, 5, 10), 30
#: Repetitions of the grids that are compared.
GRIDS = (*range(2, 17), 18, 20, 22, 25, 28, 31, 35, 40, 46, 53, 60)
#: Of the races asked for, the share that is enough where false claims are not near the promised rate, where races are
#: compared with grids, and in disturbed races that have a best.
CLEAR, COMPARED, LED = 1 / 3, 1 / 4, 1 / 16
#: Where false claims are more frequent than this, all races are simulated.
NEAR = 0.8 * ERROR_RATE
#: The plain interval of a pair rests on its own runs: how many others there are hardly matters.
COVERED_SIZES, COVERED_RACES = (2,), 16_000
#: Runs within which eight configurations have to be told apart at a lead of 10 % and noise of 5 %.
MOST_RUNS = 110
PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "verdicts.md"
PICTURE = PAGE.parents[1] / "images" / "race-until-sure.svg"

#: What disturbs races, by name.
SITUATIONS: dict[str, Callable[[World], World]] = {
    "undisturbed": lambda world: world,
    "drift 5 %": lambda world: replace(world, drift=0.05),
    "drift 20 %": lambda world: replace(world, drift=0.2),
    "stragglers": lambda world: replace(world, stragglers=STRAGGLER_SHARE),
    "drift 20 % and stragglers": lambda world: replace(world, drift=0.2, stragglers=STRAGGLER_SHARE),
    "one with 2× the noise": lambda world: replace(world, noisy=1, times=2.0),
    "one with 3× the noise": lambda world: replace(world, noisy=1, times=3.0),
    "half with 2× the noise": lambda world: replace(world, noisy=world.size // 2, times=2.0),
    "missing runs": lambda world: replace(world, missing=0.1),
    "shared by repetition": lambda world: replace(world, shared=0.1),
}
TIED = "two equal, the others 30 % behind"
#: Other programs use so many cores, which costs half of the configurations all of that time, and the others none.
LOADED, FOREIGN = "beside other programs", 0.3
LOADED_LEADS = (0.0, 0.3, 1.0)


@dataclass(frozen=True)
class Cell:
    situation: str
    world: World

    @property
    def name(self) -> str:
        world = self.world
        return f"K={world.size} noise={100 * world.noise:.0f} lead={100 * world.lead:.0f} {self.situation}"


def cells() -> Iterator[Cell]:
    """Races without a single best and races with one, in all situations; then those of sizes between."""
    for size in SIZES:
        for situation, disturb in SITUATIONS.items():
            for noise in NOISES:
                for lead in (0.0, *LEADS):
                    yield Cell(situation, disturb(World(size, noise, lead)))
        for noise in NOISES if size > 2 else ():
            yield Cell(TIED, World(size, noise, 0.3, best=2))
        for noise in NOISES:
            for lead in LOADED_LEADS:
                yield Cell(LOADED, World(size, noise, lead, foreign=FOREIGN, slowed=size // 2))
    for size in BETWEEN:
        for situation in WORST:
            yield Cell(situation, SITUATIONS[situation](World(size, WORST_NOISE)))
        yield Cell(TIED, World(size, WORST_NOISE, 0.3, best=2))


def shares(ends: Ends) -> dict[str, float]:
    """The figures of races that ended in these ways."""
    return {
        "false": float(ends.false.mean()), "right": float(ends.right.mean()), "level": float(ends.level.mean()),
        "wrong_level": float(ends.wrong_level.mean()), "open": float(ends.open.mean()),
        "answered": float(ends.answered.mean()),
        "repetitions": float(ends.repetitions.mean()), "runs": float(ends.runs.mean()),
        "seconds": float(ends.seconds.mean()),
    }  # fmt: skip


def measure(cell: Cell, races: int, seed: int) -> dict[str, Any]:
    """All figures of a cell. Where false claims are not near the promised rate, fewer races are enough."""
    world = cell.world
    few, mixed = _few(cell, races), _mixed(cell, seed)
    ends, count = simulated(world, mixed, few, LAST, until_sure=True), few
    if few < races and ends.false.mean() > NEAR:
        ends = joined([ends, simulated(world, mixed + 3, races - few, LAST, until_sure=True)])
        count = races
    found: dict[str, Any] = {
        "cell": cell.name, "situation": cell.situation, **asdict(world), "undecided": world.undecided,
        "races": count, "until_sure": shares(ends),
    }  # fmt: skip
    if world.undecided and world.size in SIZES:
        since = simulated(world, mixed + 4, few, FIXED[-1], until_sure=False).false_since
        found["fixed"] = {str(number): float(((since > 0) & (since <= number)).mean()) for number in FIXED}
    if (world.size, world.noise, world.lead) == (8, 0.05, 0.1):
        count = races if cell.situation == "undisturbed" else few
        ends = simulated(world, mixed, count, 2 * LAST, until_sure=True, most_runs=MOST_RUNS)
        found["capped"] = {"most_runs": MOST_RUNS, "races": count, **shares(ends)}
    return found


def complete(found: dict[str, Any], cell: Cell, races: int, seed: int) -> None:
    """Add how often plain intervals contain the truth, and how large the grid that is right as often is."""
    world, mixed, sure = cell.world, _mixed(cell, seed), found["until_sure"]
    if cell.situation == LOADED:
        return
    if world.undecided and world.size in COVERED_SIZES and found.get("covered") != COVERED_RACES:
        found["covered"] = COVERED_RACES
        found["coverage"] = {str(number): coverage(world, mixed, COVERED_RACES, number) for number in FIXED}
    if world.size in SIZES and cell.situation != TIED and sure["answered"] >= SETTLED and "grid" not in found:
        plain = cell.situation == "undisturbed"
        few = _few(cell, races) if plain else min(_few(cell, races), BATCH)
        curve, repetition = grid_curve(world, mixed + 1, few, GRIDS if plain else GRIDS[::2], sure["answered"])
        found["grid"] = {"right": {str(number): right for number, right in curve.items()}, "repetition": repetition}


def _few(cell: Cell, races: int) -> int:
    share = CLEAR if cell.world.undecided else COMPARED if cell.situation == "undisturbed" else LED
    return max(int(races * share), min(races, 100))


def _mixed(cell: Cell, seed: int) -> int:
    return zlib.crc32(f"{seed} {cell.name}".encode())


def measure_others(races: int, seed: int) -> list[dict[str, Any]]:
    """False claims of races to a target that runs may miss, and of the accuracy guard."""
    found = []
    for world in target_worlds():
        claims = false_claims(world, seed, races, FIXED[-1])
        found.append({"cell": world.name, "targets": {name: value / races for name, value in asdict(claims).items()}})
        print(found[-1], flush=True)
    for size, seeds in ((2, 0.003), (8, 0.003), (8, 0.01)):
        guards = Guards(size, seeds)
        found.append({"cell": guards.name, "guard": set_aside_wrongly(guards, seed, races, FIXED[-1]) / races})
        print(found[-1], flush=True)
    return [{**figure, "races": races} for figure in found]


def write_page(page: Path, tables: dict[str, str]) -> None:
    """Replace what stands between the markers of the page."""
    text = page.read_text(encoding="utf-8")
    for name, lines in tables.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise SystemExit(f"{page} has no place for {name!r}")
        text = before + begin + "\n" + lines + "\n\n" + end + after
    page.write_text(text, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--races", type=int, default=2000, help="races per cell, fewer where it is clear [2000]")
    parser.add_argument("--cells", default="", help="only cells with all of these words, such as 'K=8 lead=0'")
    parser.add_argument("--seed", type=int, default=1, help="seed of all races [1]")
    parser.add_argument("--others", type=int, default=0, metavar="RACES",
                        help="also simulate so many races to a target, and of accuracies, per cell")
    parser.add_argument("--figures", type=Path, nargs="+", default=[], help="files of earlier calls")
    parser.add_argument("--json", type=Path, help="file for all figures, rewritten after every cell")
    parser.add_argument("--write-docs", action="store_true", help="write the tables and the picture of the docs")
    options = parser.parse_args()
    figures = [figure for file in options.figures for figure in json.loads(file.read_text())]
    known = {figure["cell"]: figure for figure in figures}
    chosen = [cell for cell in cells() if all(word in cell.name.split() for word in options.cells.split())]
    began = time.perf_counter()
    for cell in chosen:
        if cell.name not in known:
            figures.append(known.setdefault(cell.name, measure(cell, options.races, options.seed)))
        found = known[cell.name]
        complete(found, cell, options.races, options.seed)
        sure = found["until_sure"]
        words = [f"{name} {100 * sure[name]:.1f} %" for name in ("false", "right", "level", "open")]
        print(f"{cell.name:58} {', '.join(words)}, {sure['runs']:.0f} runs", flush=True)
        if options.json:
            options.json.write_text(json.dumps(figures, indent=1) + "\n")
    if options.others:
        figures += measure_others(options.others, options.seed)
        if options.json:
            options.json.write_text(json.dumps(figures, indent=1) + "\n")
    print(f"{time.perf_counter() - began:.0f} s")
    print(*bars(figures), sep="\n")
    if options.write_docs:
        write_page(PAGE, pages(figures))
        draw_picture(PICTURE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
