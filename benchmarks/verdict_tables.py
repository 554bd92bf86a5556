"""What the figures of `verdicts.py` amount to: tables for the docs, and the bars that verdicts have to clear."""

from __future__ import annotations

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
        for side, choose in (("lowest", min), ("highest", max)):
            value, where = choose((value, figure["cell"]) for figure in null for value in figure["coverage"].values())
            needed = f"{_percent(COVERED[0])} to {_percent(COVERED[1])}"
            found.append(
                _bar(f"{side} coverage of 95 % intervals", value, COVERED[0] <= value <= COVERED[1], needed, where)
            )
    for figure in figures:
        if figure["situation"] == "undisturbed" and (capped := figure.get("capped")):
            claim = f"right within {capped['most_runs']} runs"
            needed = f"at least {_percent(LEAST_RIGHT)}"
            found.append(_bar(claim, capped["right"], capped["right"] >= LEAST_RIGHT, needed, figure["cell"]))
            needed = f"at most {_percent(MOST_FALSE)}"
            found.append(_bar("wrong", capped["false"], capped["false"] <= MOST_FALSE, needed, figure["cell"]))
    for claim, ratios in savings(figures).items():
        if ratios:
            middle, needed = median(ratios), f"at most {_percent(MOST_SECONDS)}"
            where = f"median of {len(ratios)} cells"
            found.append(_bar(f"run-seconds against {claim}", middle, middle <= MOST_SECONDS, needed, where))
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


def _worst_once(figure: Figure) -> float:
    return max(float(fixed["false"]) for fixed in figure["fixed"].values())


KNOWING = "a grid made for the cell"
AVERAGE = "one grid for all cells, right as often on average"
EVERYWHERE = "one grid for all cells, right as often in each"


def savings(figures: Iterable[Figure]) -> dict[str, list[float]]:
    """Run-seconds of races that stop when they are sure, divided by those of grids of equal error, cell by cell.

    A grid made for the cell has as many repetitions as being right as often takes there: it knows noise and lead before
    its first run. One grid for all cells of a size does not know them; it is right as often on average, or in each.
    """
    compared = [figure for figure in figures if "grid" in figure]
    found: dict[str, list[float]] = {EVERYWHERE: [], AVERAGE: [], KNOWING: []}
    for size in _sizes(compared):
        group = [figure for figure in compared if figure["size"] == size]
        mean = {count: fmean(figure["grid"]["right"][count] for figure in group) for count in group[0]["grid"]["right"]}
        average = _repetitions(mean, fmean(figure["until_sure"]["right"] for figure in group))
        settled = [figure for figure in group if figure["until_sure"]["right"] >= _SETTLED]
        needed = [_repetitions(figure["grid"]["right"], figure["until_sure"]["right"]) for figure in settled]
        for figure, enough in zip(settled, needed, strict=True):
            share = figure["until_sure"]["seconds"] / figure["grid"]["repetition"]
            found[KNOWING].append(share / enough)
            found[AVERAGE].append(share / average)
            found[EVERYWHERE].append(share / max(needed))
    return found


def _repetitions(curve: dict[str, float], right: float) -> float:
    """Repetitions after which a grid is right as often, between those that were simulated; at most the last of them."""
    before, reached = 0.0, 0.0
    for count, share in curve.items():
        if share >= right:
            return before + (float(count) - before) * (right - reached) / max(share - reached, 1e-9)
        before, reached = float(count), max(share, reached)
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
            _percent(max(figure["fixed"][count]["false"] for figure in null if figure["size"] == size))
            for size in sizes
        )])  # fmt: skip
    return _table(rows)


def _coverage(null: Sequence[Figure]) -> str:
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
    rows = [["compared with", "median of all cells", *(f"{size} configurations" for size in _sizes(
        figure for figure in figures if "grid" in figure))]]  # fmt: skip
    whole = savings(figures)
    for claim, ratios in whole.items():
        if ratios:
            parts = [savings([figure for figure in figures if figure["size"] == size])[claim]
                     for size in _sizes(figure for figure in figures if "grid" in figure)]
            rows.append([claim, _percent(median(ratios), 0), *(_percent(median(part), 0) if part else "–"
                                                              for part in parts)])
    for least, words in ((0, "the same, for a test that knows noise and lead beforehand"),
                         (1, "the same, if it runs everything at least twice")):
        ratios, parts = _ideal(figures, least), []
        for size in _sizes(figure for figure in figures if "grid" in figure):
            part = _ideal([figure for figure in figures if figure["size"] == size], least)
            parts.append(_percent(median(part), 0) if part else "–")
        if ratios:
            rows.append([words, _percent(median(ratios), 0), *parts])
    return _table(rows)


def _ideal(figures: Sequence[Figure], least: int) -> list[float]:
    """Run-seconds of a test that knows everything, divided by those of a grid made for the cell."""
    return [
        figure["ideal"][least] / figure["grid"]["repetition"]
        / _repetitions(figure["grid"]["right"], figure["until_sure"]["right"])
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
