"""What Velodrome promises about its speed, and whether measurements bear it out."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from entries import ENTRIES, Cell
from ratios import Estimate, ratio

#: Examples per second of every repetition; None where a run failed.
Rates = Mapping[tuple[Cell, str], list[float | None]]

DENSE1, DENSE2 = Cell("dense-300-100", 1), Cell("dense-300-100", 2)
LENET1, LENET2 = Cell("lenet5", 1), Cell("lenet5", 2)


@dataclass(frozen=True)
class Verdict:
    claim: str
    bar: float
    #: None where the runs that it compares were not made or failed.
    estimate: Estimate | None
    against: str
    holds: bool | None


def compare(rates: Rates, above: tuple[Cell, str], below: tuple[Cell, str]) -> Estimate | None:
    """The ratio over the repetitions in which both succeeded."""
    both = zip(rates.get(above, []), rates.get(below, []), strict=False)
    pairs = [(a, b) for a, b in both if a is not None and b is not None]
    return ratio([a for a, _ in pairs], [b for _, b in pairs]) if pairs else None


def median(rates: Rates, cell: Cell, name: str) -> float | None:
    found = [rate for rate in rates.get((cell, name), []) if rate is not None]
    return statistics.median(found) if found else None


def best_peer(rates: Rates, cell: Cell, engine: str | None = None) -> str | None:
    """The peer, of one engine or of any, with the highest median."""
    medians = {
        entry.name: middle
        for entry in ENTRIES
        if entry.is_peer and engine in (None, entry.engine) and (middle := median(rates, cell, entry.name)) is not None
    }
    return max(medians, key=lambda name: medians[name]) if medians else None


def reaches(estimate: Estimate, bar: float) -> bool:
    return estimate.value >= bar


def not_behind(estimate: Estimate, bar: float) -> bool:
    """The interval does not lie below the bar."""
    return (estimate.value if estimate.high is None else estimate.high) >= bar


def judge(rates: Rates) -> list[Verdict]:
    """Every claim, in the order in which it is made."""
    found = []

    def claim(
        text: str, bar: float, above: tuple[Cell, str], below: tuple[Cell, str | None],
        holds: Callable[[Estimate, float], bool] = reaches,
    ) -> None:
        cell, name = below
        estimate = None if name is None else compare(rates, above, (cell, name))
        verdict = None if estimate is None else holds(estimate, bar)
        found.append(Verdict(text, bar, estimate, name or "no peer was measured", verdict))

    for cell in (DENSE1, DENSE2, LENET1, LENET2):
        best = (cell, best_peer(rates, cell, "torch"))
        claim(f"ddp is not behind the best PyTorch peer, {cell}", 1.0, (cell, "velodrome torch ddp"), best, not_behind)
    for engine in ("torch", "tensorflow"):
        mine, best = (DENSE2, f"velodrome {engine} allreduce"), (DENSE2, best_peer(rates, DENSE2))
        claim(f"{engine} allreduce against the best peer of all, {DENSE2}", 1.6, mine, best)
    for engine, two, one, bar in (
        ("torch", DENSE2, DENSE1, 1.6), ("torch", LENET2, LENET1, 1.9),
        ("tensorflow", DENSE2, DENSE1, 1.1), ("tensorflow", LENET2, LENET1, 1.75),
    ):  # fmt: skip
        single = (one, f"velodrome {engine} single")
        claim(f"speedup of {engine} allreduce, {two}", bar, (two, f"velodrome {engine} allreduce"), single)
    for cell, bar in ((DENSE2, 2.0), (LENET2, 1.3)):
        for strategy in ("multi-worker-mirrored", "parameter-server"):
            mine = (cell, f"velodrome tensorflow {strategy}")
            claim(f"{strategy} against tf_keras fit, {cell}", bar, mine, (cell, f"tf_keras fit {strategy}"))
    for engine in ("tensorflow", "torch"):
        mine = (DENSE1, f"velodrome {engine} single")
        claim(f"{engine} single against Keras 3 fit, {DENSE1}", 1.5, mine, (DENSE1, "keras fit"))
    return found
