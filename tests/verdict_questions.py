"""Questions about made-up races, as the tests of the words of verdicts ask them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from synthetic_races import repeated, result
from typed_judge import judge
from velodrome.judge.criteria import Criteria, Price
from velodrome.judge.judge import Failure
from velodrome.judge.verdict import Recommendation

Runs = list[dict[str, Any]]
Form = Callable[[], Recommendation]


def single(*rates: float, **fields: Any) -> Runs:
    return repeated(list(rates), strategy="single", **fields)


def ddp(*rates: float, workers: int = 2, **fields: Any) -> Runs:
    return repeated(list(rates), workers=workers, **fields)


def script(workers: int, *rates: float | None, batch: int = 64, one_seed: bool = False, **fields: Any) -> Runs:
    """Runs of a user's script whose steps take so many examples; without a rate, it reported none of them. With one
    seed it trains the same in all of them."""
    found = []
    for seed, rate in enumerate(rates, start=1):
        made = result("script", workers, rate or 100.0 * workers, seed=seed, script="train.py",
                      not_reported=[] if rate else ["examples: throughput is unknown"], **fields)
        if not one_seed:
            made["test"]["loss"] += seed / 100
        steps = rate and rate / batch
        speed = {"examples_per_second": rate, "batches_per_second": steps, "warmup_steps": 0}
        found.append({name: value for name, value in made.items() if not name.startswith("batch")}
                     | {"throughput": speed})
    return found


def with_right(correct: int, total: int, runs: Runs) -> Runs:
    """The same runs with so many right answers of a test set."""
    return [run | {"test": run["test"] | {"accuracy": correct / total, "correct": correct, "total": total}}
            for run in runs]


def answer(
    runs: Runs, objective: str = "throughput", target: str | None = None, price: Price | None = None, failed: int = 0,
) -> Recommendation:
    """The answer for the only task of these runs; `failed` counts those that gave no result."""
    failures = [Failure("a-run", "failed", "it broke")] * failed
    [found] = judge(runs, Criteria(objective, target, price=price or Price()), failures).answers.values()
    return found


def words_that_say_nothing(text: str) -> list[str]:
    """Numbers that are rounded to nothing or have too many digits, and slips of punctuation."""
    numbers = re.findall(r"\b0\.00\b|\b1\.00×|\bnan\b|\binf\b|\d\.\d{5}|\d{2,}\.\d+ (?:%|times)|(?<!\w)-\d", text)
    return numbers + re.findall(r"  |\.\.|,,| \.", text)
