"""What the figures of `verdicts.py` amount to: tables for the docs, and the bars that verdicts have to clear."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, median
from typing import Any

Figure = dict[str, Any]

#: What a race may claim wrongly, how much of the time plain 95 % intervals contain the truth, and how often eight
#: configurations are told apart.
MOST_FALSE, COVERED, LEAST_RIGHT = 0.05, (0.93, 0.97), 0.95
#: Run-seconds of races that stop when they are sure, as a share of those of a grid.
MOST_SECONDS = 0.25
#: Cells in which races are sure less often than this are not compared with grids: neither finds the best.
_SETTLED = 0.5


def bars(figures: Sequence[Figure]) -> list[str]:
    """One line for each bar: what was required, what was measured, and whether it holds."""
    found = []
    figures, others = _split(figures)
    if null := [figure for figure in figures if figure["undecided"]]:
        worst = max(null, key=lambda figure: figure["until_sure"]["false"])
        found.append(
            _bar("false claims of races without a best, followed to the end", worst["until_sure"]["false"],
                 worst["until_sure"]["false"] <= MOST_FALSE, f"at most {_percent(MOST_FALSE)}", worst["cell"])
        )  # fmt: skip
        once = max(null, key=lambda figure: _worst_once(figure))
        found.append(
            _bar("false claims of races without a best, looked at once", _worst_once(once),
                 _worst_once(once) <= MOST_FALSE, f"at most {_percent(MOST_FALSE)}", once["cell"])
        )  # fmt: skip
        covered = [(value, figure["cell"]) for figure in null for value in figure.get("coverage", {}).values()]
        for side, choose in (("lowest", min), ("highest", max)) if covered else ():
            value, where = choose(covered)
            needed = f"{_percent(COVERED[0])} to {_percent(COVERED[1])}"
            found.append(
                _bar(f"{side} coverage of 95 % intervals", value, COVERED[0] <= value <= COVERED[1], needed, where)
            )
    if led := [figure for figure in figures if not figure["undecided"]]:
        worst = max(led, key=_wrong)
        found.append(_bar("false claims of races with a best, \"level\" included", _wrong(worst),
                          _wrong(worst) <= MOST_FALSE, f"at most {_percent(MOST_FALSE)}", worst["cell"]))
    for figure in figures:
        if figure["situation"] == "undisturbed" and (capped := figure.get("capped")):
            claim = f"right within {capped['most_runs']} runs"
            needed = f"at least {_percent(LEAST_RIGHT)}"
            found.append(_bar(claim, capped["right"], capped["right"] >= LEAST_RIGHT, needed, figure["cell"]))
            needed = f"at most {_percent(MOST_FALSE)}"
            found.append(_bar("wrong", capped["false"], capped["false"] <= MOST_FALSE, needed, figure["cell"]))
    if ratios := savings(figures)[EQUAL]:
        middle, needed = median(ratios), f"at most {_percent(MOST_SECONDS)}"
        where = f"median of {len(ratios)} cells"
        found.append(_bar(f"run-seconds against {EQUAL}", middle, middle <= MOST_SECONDS, needed, where))
    for kind, claim in (("targets", "false claims of races to a target that is missed now and then"),
                        ("guard", "races in which the guard sets a configuration aside wrongly")):
        rates = {figure["cell"]: _rate(figure[kind]) for figure in others if kind in figure}
        if rates:
            worst = max(rates, key=lambda cell: rates[cell])
            needed = f"at most {_percent(MOST_FALSE)}"
            found.append(_bar(claim, rates[worst], rates[worst] <= MOST_FALSE, needed, worst))
    return found


def _rate(value: float | Figure) -> float:
    return float(value["any"] if isinstance(value, dict) else value)


def _split(figures: Sequence[Figure]) -> tuple[list[Figure], list[Figure]]:
    """Figures of races that are simulated as a whole, and others."""
    races = [figure for figure in figures if "undecided" in figure]
    return races, [figure for figure in figures if "undecided" not in figure]


def _bar(claim: str, value: float, holds: bool, needed: str, where: str) -> str:
    return f"{claim}: {_percent(value)} ({needed}), {where}: {'holds' if holds else 'does not hold'}"


def _wrong(figure: Figure) -> float:
    """How often a race said anything false: races that called someone beaten wrongly may end level, too."""
    return float(figure["until_sure"]["false"] + figure["until_sure"]["wrong_level"])


def _worst_once(figure: Figure) -> float:
    return max(map(float, figure["fixed"].values()))


EQUAL = "the grid of equal error"
AVERAGE = "one grid for all cells, right as often on average"
EVERYWHERE = "one grid for all cells, right as often in each"


def savings(figures: Iterable[Figure]) -> dict[str, list[float]]:
    """Run-seconds of races that stop when they are sure, divided by those of full grids, cell by cell.

    The grid of equal error is the smallest that is right as often in that very cell, judged once by the same analysis
    with the same promised error. One grid for all cells of a size, which whoever does not know noise and lead has to
    plan, is right as often on average, or in each.
    """
    compared = [figure for figure in figures if "grid" in figure]
    found: dict[str, list[float]] = {EQUAL: [], AVERAGE: [], EVERYWHERE: []}
    for size in _sizes(compared):
        group = [figure for figure in compared if figure["size"] == size]
        mean = {count: fmean(figure["grid"]["right"][count] for figure in group) for count in group[0]["grid"]["right"]}
        average = _repetitions(mean, fmean(figure["until_sure"]["right"] for figure in group))
        settled = [figure for figure in group if figure["until_sure"]["right"] >= _SETTLED]
        needed = [_repetitions(figure["grid"]["right"], figure["until_sure"]["right"]) for figure in settled]
        for figure, enough in zip(settled, needed, strict=True):
            share = figure["until_sure"]["seconds"] / figure["grid"]["repetition"]
            found[EQUAL].append(share / enough)
            found[AVERAGE].append(share / average)
            found[EVERYWHERE].append(share / max(needed))
    return found


def _repetitions(curve: dict[str, float], right: float) -> int:
    """The least repetitions after which a grid is right as often, between those that were simulated by proportion; at
    most the last of them."""
    before, reached = 0, 0.0
    for count, share in curve.items():
        if share >= right:
            return before + math.ceil((int(count) - before) * (right - reached) / max(share - reached, 1e-9))
        before, reached = int(count), max(share, reached)
    return before


def pages(figures: Sequence[Figure]) -> dict[str, str]:
    """The tables of the docs, by the name of their place."""
    lines = bars(figures)
    figures, others = _split(figures)
    null = [figure for figure in figures if figure["undecided"]]
    told = [figure for figure in figures if not figure["undecided"] and figure["situation"] == "undisturbed"]
    return {
        "false claims": _false(null),
        "coverage": _coverage(null),
        "right": _right([figure for figure in told if not figure["ladder"]]),
        "disturbed": _disturbed([figure for figure in figures if "capped" in figure]),
        "targets": _targets([figure for figure in others if "targets" in figure]),
        "savings": _savings(figures),
        "bars": "\n".join(f"- {line[0].upper()}{line[1:]}." for line in lines),
    }


def _false(null: Sequence[Figure]) -> str:
    """Situations by sizes; the worst of all noises."""
    sizes = _sizes(null)
    rows = [["followed to the end", *(f"{size} configurations" for size in sizes)]]
    for situation in dict.fromkeys(figure["situation"] for figure in null):
        rows.append([situation, *(
            _percent(max((figure["until_sure"]["false"] for figure in null
                          if (figure["situation"], figure["size"]) == (situation, size)), default=None))
            for size in sizes
        )])  # fmt: skip
    for count in null[0]["fixed"] if null else ():
        rows.append([f"{count} repetitions, worst situation", *(
            _percent(max(figure["fixed"][count] for figure in null if figure["size"] == size))
            for size in sizes
        )])  # fmt: skip
    return _table(rows)


def worst_table(figures: Sequence[Figure]) -> str:
    """Situations by sizes, of those in which false claims are most frequent."""
    found = [figure for figure in figures if "worst" in figure]
    sizes = _sizes(found)
    rows = [["followed to the end, noise 15 %", *(f"{size} configurations" for size in sizes)]]
    for situation in dict.fromkeys(figure["situation"] for figure in found):
        by_size = {figure["size"]: figure["worst"] for figure in found if figure["situation"] == situation}
        rows.append([situation, *(_percent(by_size.get(size)) for size in sizes)])
    return _table(rows)


def _coverage(null: Sequence[Figure]) -> str:
    null = [figure for figure in null if "coverage" in figure]
    counts = list(null[0]["coverage"]) if null else []
    rows = [["95 % interval of a pair", *(f"{count} repetitions" for count in counts)]]
    for situation in dict.fromkeys(figure["situation"] for figure in null):
        group = [figure["coverage"] for figure in null if figure["situation"] == situation]
        spans = [[covered[count] for covered in group] for count in counts]
        rows.append([situation, *(f"{100 * min(span):.1f} to {100 * max(span):.1f} %" for span in spans)])
    return _table(rows)


def _right(told: Sequence[Figure]) -> str:
    sizes = _sizes(told)
    rows = [["lead", "noise", *(f"{size} configurations" for size in sizes)]]
    for lead in sorted({figure["lead"] for figure in told}):
        for noise in sorted({figure["noise"] for figure in told}):
            by_size = {figure["size"]: figure["until_sure"] for figure in told
                       if (figure["lead"], figure["noise"]) == (lead, noise)}  # fmt: skip
            rows.append([_percent(lead, 0), _percent(noise, 0), *(_ending(by_size.get(size)) for size in sizes)])
    return _table(rows)


def _ending(sure: Figure | None) -> str:
    if sure is None:
        return "–"
    level = f", level {_percent(sure['level'], 0)}" if sure["level"] >= 0.005 else ""
    return f"{_percent(sure['right'], 0)}{level}; {sure['runs']:.0f} runs"


def _targets(figures: Sequence[Figure]) -> str:
    rows = [["chances to reach the target; noise", "false claims", "if unseen failures were not allowed for"]]
    for figure in figures:
        rows.append([figure["cell"].removeprefix("chances ").replace(", noise", "; noise"),
                     *(_percent(figure["targets"][name]) for name in ("any", "unguarded"))])
    return _table(rows)


def _savings(figures: Sequence[Figure]) -> str:
    """Shares of the run-seconds of grids, and how little a race can take at all."""
    compared = [figure for figure in figures if "grid" in figure]
    sizes = _sizes(compared)
    groups = [compared, *([figure for figure in compared if figure["size"] == size] for size in sizes)]
    rows = [["share of the run-seconds of", "median of all cells", *(f"{size} configurations" for size in sizes)]]
    for claim in savings(compared):
        rows.append([claim, *(_middle(savings(group)[claim]) for group in groups)])
    for times, words in ((1, "of that, everything just once"), (2, "of that, everything twice")):
        rows.append([words, *(_middle(_least(group, times)) for group in groups)])
    for least, words in ((0, "of that, a test that knows noise and lead beforehand"),
                         (1, "of that, the same if it runs everything twice")):
        rows.append([words, *(_middle(_ideal(group, least)) for group in groups)])
    return _table(rows)


def _middle(ratios: Sequence[float]) -> str:
    return _percent(median(ratios), 0) if ratios else "–"


def _equal(figure: Figure) -> int:
    """Repetitions of the grid of equal error."""
    return _repetitions(figure["grid"]["right"], figure["until_sure"]["right"])


def _least(figures: Sequence[Figure], times: int) -> list[float]:
    """What running everything so often takes of the grids of equal error."""
    return [times / _equal(figure) for figure in figures if figure["until_sure"]["right"] >= _SETTLED]


def _ideal(figures: Sequence[Figure], least: int) -> list[float]:
    """Run-seconds of a test that knows everything, divided by those of the grid of equal error."""
    return [
        figure["ideal"][least] / figure["grid"]["repetition"] / _equal(figure)
        for figure in figures if "ideal" in figure and figure["until_sure"]["right"] >= _SETTLED
    ]


def _disturbed(capped: Sequence[Figure]) -> str:
    rows = [["8 configurations, lead 10 %, noise 5 %", "right", "wrong", "open", "runs"]]
    for figure in capped:
        ends = figure["capped"]
        numbers = [_percent(ends[name]) for name in ("right", "false", "open")]
        rows.append([figure["situation"], *numbers, f"{ends['runs']:.0f}"])
    return _table(rows)


def _sizes(figures: Iterable[Figure]) -> list[int]:
    return sorted({figure["size"] for figure in figures})


def _percent(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{100 * value:.{digits}f} %"


def _table(rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])
