"""What the figures of `verdicts.py` amount to: tables for the docs, and the bars that verdicts have to clear."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

Figure = dict[str, Any]

#: What a race may claim wrongly, how much of the time plain 95 % intervals contain the truth, and how often eight
#: configurations are told apart.
MOST_FALSE, COVERED, LEAST_RIGHT = 0.05, (0.93, 0.97), 0.95
#: Run-seconds of races that stop when they are sure, as a share of those of a grid.
MOST_SECONDS = 0.25
#: Cells in which races are right less often than this are not compared with grids: most races are open in them.
SETTLED = 0.5


def bars(figures: Sequence[Figure]) -> list[str]:
    """One line for each bar: what was required, what was measured, and whether it holds."""
    found = []
    figures, others = _split(figures)
    if null := [figure for figure in figures if figure["undecided"]]:
        worst = max(null, key=lambda figure: figure["until_sure"]["false"])
        found.append(
            _bar("false claims of races without a best, followed to the end", worst["until_sure"]["false"],
                 worst["until_sure"]["false"] <= MOST_FALSE, f"at most {percent(MOST_FALSE)}", worst["cell"])
        )  # fmt: skip
        once = max(null, key=lambda figure: _worst_once(figure))
        found.append(
            _bar("false claims of races without a best, looked at once", _worst_once(once),
                 _worst_once(once) <= MOST_FALSE, f"at most {percent(MOST_FALSE)}", once["cell"])
        )  # fmt: skip
        covered = [(value, figure["cell"]) for figure in null for value in figure.get("coverage", {}).values()]
        for side, choose in (("lowest", min), ("highest", max)) if covered else ():
            value, where = choose(covered)
            needed = f"{percent(COVERED[0])} to {percent(COVERED[1])}"
            found.append(
                _bar(f"{side} coverage of 95 % intervals", value, COVERED[0] <= value <= COVERED[1], needed, where)
            )
    if led := [figure for figure in figures if not figure["undecided"]]:
        worst = max(led, key=_wrong)
        found.append(_bar("false claims of races with a best, \"tie\" included", _wrong(worst),
                          _wrong(worst) <= MOST_FALSE, f"at most {percent(MOST_FALSE)}", worst["cell"]))
    for figure in figures:
        if figure["situation"] == "undisturbed" and (capped := figure.get("capped")):
            claim = f"right within {capped['most_runs']} runs"
            needed = f"at least {percent(LEAST_RIGHT)}"
            found.append(_bar(claim, capped["right"], capped["right"] >= LEAST_RIGHT, needed, figure["cell"]))
            needed = f"at most {percent(MOST_FALSE)}"
            found.append(_bar("wrong", capped["false"], capped["false"] <= MOST_FALSE, needed, figure["cell"]))
    for grid, ratios in savings(figures).items():
        if ratios:
            middle, where = median(ratios), f"median of {len(ratios)} cells"
            found.append(_bar(f"run-seconds against {grid}", middle, middle <= MOST_SECONDS,
                              f"at most {percent(MOST_SECONDS)}", where))
    for kind, claim in (("targets", "false claims of races to a target that is missed now and then"),
                        ("guard", "races in which the guard sets a configuration aside wrongly")):
        rates = {figure["cell"]: _rate(figure[kind]) for figure in others if kind in figure}
        if rates:
            worst = max(rates, key=lambda cell: rates[cell])
            needed = f"at most {percent(MOST_FALSE)}"
            found.append(_bar(claim, rates[worst], rates[worst] <= MOST_FALSE, needed, worst))
    return found


def _rate(value: float | Figure) -> float:
    return float(value["any"] if isinstance(value, dict) else value)


def _split(figures: Sequence[Figure]) -> tuple[list[Figure], list[Figure]]:
    """Figures of races that are simulated as a whole, and others."""
    races = [figure for figure in figures if "undecided" in figure]
    return races, [figure for figure in figures if "undecided" not in figure]


def _bar(claim: str, value: float, holds: bool, needed: str, where: str) -> str:
    return f"{claim}: {percent(value)} ({needed}), {where}: {'holds' if holds else 'does not hold'}"


def _wrong(figure: Figure) -> float:
    """How often a race said anything false: races that called someone beaten wrongly may end level, too."""
    return float(figure["until_sure"]["false"] + figure["until_sure"]["wrong_level"])


def _worst_once(figure: Figure) -> float:
    return max(map(float, figure.get("fixed", {"": 0.0}).values()))


ONE = "one grid for all cells"
BY_SIZE = "one grid for all cells of that many configurations"
UNDISTURBED = "the same, for undisturbed cells only"
EQUAL = "a grid for each undisturbed cell, made by someone who knows its noise and lead"


def savings(figures: Iterable[Figure], most: int | None = None) -> dict[str, list[float]]:
    """Run-seconds of races that stop when they are sure, divided by those of full grids, cell by cell.

    A grid is judged once, by the same analysis with the same promised error. It is the smallest that is right as often
    as the race in each of its cells; `most` are the repetitions of one for all cells, if these are some of them.
    """
    compared = _settled(figure for figure in figures if "grid" in figure)
    most = most or max(map(equal, compared), default=1)
    found = {ONE: [_share(figure, most) for figure in compared], BY_SIZE: [], UNDISTURBED: [], EQUAL: []}
    for size in _sizes(compared):
        group = [figure for figure in compared if figure["size"] == size]
        plain = [figure for figure in group if figure["situation"] == "undisturbed"]
        found[BY_SIZE] += [_share(figure, max(map(equal, group))) for figure in group]
        found[UNDISTURBED] += [_share(figure, max(map(equal, plain))) for figure in plain]
        found[EQUAL] += [_share(figure, equal(figure)) for figure in plain]
    return found


def _share(figure: Figure, repetitions: int) -> float:
    return float(figure["until_sure"]["seconds"] / figure["grid"]["repetition"] / repetitions)


def _settled(figures: Iterable[Figure]) -> list[Figure]:
    return [figure for figure in figures if figure["until_sure"]["answered"] >= SETTLED]


def equal(figure: Figure) -> int:
    """Repetitions of the smallest grid that is right as often as the race in this very cell."""
    return repetitions_of(figure["grid"]["right"], figure["until_sure"]["answered"])


def repetitions_of(curve: dict[str, float], right: float) -> int:
    """The least repetitions after which a grid is right as often, between those that were simulated by proportion; at
    most the last of them."""
    before, reached = 0, 0.0
    for count, share in curve.items():
        if share >= right:
            return before + math.ceil((int(count) - before) * (right - reached) / max(share - reached, 1e-9) - 1e-9)
        before, reached = int(count), max(share, reached)
    return before


def pages(figures: Sequence[Figure]) -> dict[str, str]:
    """The tables of the docs, by the name of their place."""
    lines = bars(figures)
    figures, others = _split(figures)
    null = [figure for figure in figures if figure["undecided"]]
    led = [figure for figure in figures if not figure["undecided"]]
    return {
        "false claims": _false(null),
        "false claims with a best": _false_with_best(led),
        "coverage": _coverage(null),
        "right": _right([figure for figure in figures
                         if figure["situation"] == "undisturbed" and ("fixed" in figure or not figure["undecided"])]),
        "disturbed": _disturbed([figure for figure in figures if "capped" in figure]),
        "targets": _targets([figure for figure in others if "targets" in figure]),
        "savings": _savings(figures),
        "grids": _grids([figure for figure in figures if "grid" in figure and figure["situation"] == "undisturbed"]),
        "bars": "\n".join(f"- {line[0].upper()}{line[1:]}." for line in lines),
    }


def _false(null: Sequence[Figure]) -> str:
    """Situations by sizes; the worst of all noises."""
    sizes = _sizes(null)
    rows = [["followed to the end", *(f"{size} configurations" for size in sizes)]]
    for situation in dict.fromkeys(figure["situation"] for figure in null):
        rows.append([situation, *(
            percent(max((figure["until_sure"]["false"] for figure in null
                          if (figure["situation"], figure["size"]) == (situation, size)), default=None))
            for size in sizes
        )])  # fmt: skip
    once = [figure for figure in null if "fixed" in figure]
    for count in once[0]["fixed"] if once else ():
        rows.append([f"{count} repetitions, worst situation", *(
            percent(max((figure["fixed"][count] for figure in once if figure["size"] == size), default=None))
            for size in sizes
        )])  # fmt: skip
    return table(rows)


def _false_with_best(led: Sequence[Figure]) -> str:
    """Situations by sizes; the worst of all noises and leads."""
    sizes = _sizes(led)
    rows = [["followed to the end", *(f"{size} configurations" for size in sizes)]]
    for situation in dict.fromkeys(figure["situation"] for figure in led):
        rows.append([situation, *(
            percent(max((_wrong(figure) for figure in led
                          if (figure["situation"], figure["size"]) == (situation, size)), default=None))
            for size in sizes
        )])  # fmt: skip
    return table(rows)


def _coverage(null: Sequence[Figure]) -> str:
    null = [figure for figure in null if "coverage" in figure]
    counts = list(null[0]["coverage"]) if null else []
    rows = [["95 % interval of a pair", *(f"{count} repetitions" for count in counts)]]
    for situation in dict.fromkeys(figure["situation"] for figure in null):
        group = [figure["coverage"] for figure in null if figure["situation"] == situation]
        spans = [[covered[count] for covered in group] for count in counts]
        rows.append([situation, *(f"{100 * min(span):.1f} to {100 * max(span):.1f} %" for span in spans)])
    return table(rows)


def _right(told: Sequence[Figure]) -> str:
    sizes = _sizes(told)
    rows = [["lead", "noise", *(f"{size} configurations" for size in sizes)]]
    for lead in sorted({figure["lead"] for figure in told}):
        for noise in sorted({figure["noise"] for figure in told}):
            by_size = {figure["size"]: figure["until_sure"] for figure in told
                       if (figure["lead"], figure["noise"]) == (lead, noise)}  # fmt: skip
            rows.append([percent(lead, 0), percent(noise, 0), *(_ending(by_size.get(size), lead) for size in sizes)])
    return table(rows)


def _ending(sure: Figure | None, lead: float) -> str:
    if sure is None:
        return "–"
    if lead == 0:
        return f"tie {percent(sure['level'], 0)}; {sure['runs']:.0f} runs"
    level = f", tie {percent(sure['level'], 0)}" if sure["level"] >= 0.005 else ""
    return f"{percent(sure['right'], 0)}{level}; {sure['runs']:.0f} runs"


def _targets(figures: Sequence[Figure]) -> str:
    rows = [["chances to reach the target; noise", "false claims", "if unseen failures were not allowed for"]]
    for figure in figures:
        rows.append([figure["cell"].removeprefix("chances ").replace(", noise", "; noise"),
                     *(percent(figure["targets"][name]) for name in ("any", "unguarded"))])
    return table(rows)


def _savings(figures: Sequence[Figure]) -> str:
    """Shares of the run-seconds of grids, and how much running everything three times takes of them."""
    compared = [figure for figure in figures if "grid" in figure]
    sizes = _sizes(compared)
    groups = [compared, *([figure for figure in compared if figure["size"] == size] for size in sizes)]
    most = max(map(equal, _settled(compared)), default=1)
    rows = [["compared with", "median of all cells", *(f"{size} configurations" for size in sizes)]]
    for claim in savings(compared):
        rows.append([claim, *(_middle(savings(group, most)[claim]) for group in groups)])
    three = [[3 / equal(figure) for figure in _settled(group) if figure["situation"] == "undisturbed"]
             for group in groups]
    return table([*rows, ["of that one, only running everything three times", *map(_middle, three)]])


def _grids(compared: Sequence[Figure]) -> str:
    """Cell by cell: full repetitions that the race took the time of, and those of the smallest grid that is as good."""
    sizes = _sizes(compared)
    rows = [["lead", "noise", *(f"{size} configurations" for size in sizes)]]
    for lead in sorted({figure["lead"] for figure in compared}):
        for noise in sorted({figure["noise"] for figure in compared}):
            group = _settled(figure for figure in compared if (figure["lead"], figure["noise"]) == (lead, noise))
            by_size = {figure["size"]: figure for figure in group}
            if by_size:
                rows.append([percent(lead, 0), percent(noise, 0), *(_both(by_size.get(size)) for size in sizes)])
    return table(rows)


def _both(figure: Figure | None) -> str:
    if figure is None:
        return "–"
    return f"{figure['until_sure']['seconds'] / figure['grid']['repetition']:.1f} against {equal(figure)}"


def _middle(ratios: Sequence[float]) -> str:
    return percent(median(ratios), 0) if ratios else "–"


def _disturbed(capped: Sequence[Figure]) -> str:
    rows = [["8 configurations, lead 10 %, noise 5 %", "right", "wrong", "open", "runs"]]
    for figure in capped:
        ends = figure["capped"]
        numbers = [percent(ends[name]) for name in ("right", "false", "open")]
        rows.append([figure["situation"], *numbers, f"{ends['runs']:.0f}"])
    return table(rows)


def _sizes(figures: Iterable[Figure]) -> list[int]:
    return sorted({figure["size"] for figure in figures})


def percent(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{100 * value:.{digits}f} %"


def table(rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])
