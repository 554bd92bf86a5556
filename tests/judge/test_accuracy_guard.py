"""The accuracy guard: set aside is what is proven worse, and what may be worse is said."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from synthetic_races import repeated, result
from typed_judge import compare
from velodrome.judge.accuracy_guard import Guarded, guard
from velodrome.judge.candidates import ask
from velodrome.judge.criteria import Criteria, Tolerances
from velodrome.tasks.correctness_bits import encode
from velodrome.tasks.supervised import Classification
from velodrome.tasks.text import LanguageModel

pytestmark = pytest.mark.unit
ACCURACY = Classification().metric


def _guarded(*runs: list[dict[str, Any]], margin: float = 0.01) -> Guarded:
    return guard(compare([run for each in runs for run in each]), replace(ACCURACY, margin=margin))


def _answered(rights: list[np.ndarray], **fields: Any) -> list[dict[str, Any]]:
    """Runs that recorded their answers, on one test set."""
    made = []
    for seed, right in enumerate(rights, start=1):
        found = result(seed=seed, **fields)
        found["test"] = {"accuracy": float(right.mean()), "loss": 0.2, "correct": int(right.sum()),
                         "total": len(right), "answers": encode(right), "fingerprint": "same"}
        made.append(found)
    return made


def _of(accuracies: list[float], total: int = 10_000, **fields: Any) -> list[dict[str, Any]]:
    made = repeated([1_000.0] * len(accuracies), accuracies, **fields)
    for found, accuracy in zip(made, accuracies, strict=True):
        found["test"] |= {"correct": round(total * accuracy), "total": total}
    return made


def _names(found: Guarded) -> list[str]:
    return [row.name for row in found.eligible]


def test_a_configuration_that_is_proven_worse_is_set_aside_with_its_numbers() -> None:
    found = _guarded(_of([0.97, 0.972, 0.971], strategy="single"), _of([0.92, 0.921, 0.919], workers=2))
    assert _names(found) == ["torch/single with 1 worker"]
    assert re.fullmatch(
        r"1 of 2 configurations set aside: torch/ddp with 2 workers, accuracy 5\.1 points lower than torch/single with "
        r"1 worker \(4\.\d–5\.\d\)", "; ".join(found.notes)
    ), "; ".join(found.notes)


def test_one_example_of_359_sets_nobody_aside_and_is_not_settled() -> None:
    found = _guarded(_of([353 / 359] * 3, 359, strategy="single"), _of([352 / 359] * 3, 359, workers=2))
    assert len(found.eligible) == 2
    assert found.aside == {}
    assert re.fullmatch(
        r"accuracy not settled: torch/ddp with 2 workers may be up to \d\.\d points lower than torch/single with 1 "
        r"worker \(0\.3 so far\)", "; ".join(found.notes)
    ), "; ".join(found.notes)


def test_one_lucky_run_does_not_save_a_configuration_and_one_unlucky_run_does_not_exclude_one() -> None:
    good = _of([0.97] * 6, strategy="single")
    lucky = _of([0.91, 0.90, 0.92, 0.91, 0.90, 0.965], workers=2)
    unlucky = _of([0.97, 0.97, 0.80, 0.97, 0.97, 0.97], workers=4)
    found = _guarded(good, lucky, unlucky)
    assert list(found.aside) == ["torch/ddp with 2 workers"]
    assert list(found.unsettled) == ["torch/ddp with 4 workers"]


def test_one_run_proves_nothing_and_the_seeds_are_mentioned() -> None:
    found = _guarded(_of([0.97], strategy="single"), _of([0.80], workers=2))
    assert len(found.eligible) == 2
    (note,) = found.notes
    assert re.search(r"may be up to \d+\.\d points lower than .* \(17\.0 so far; other seeds not tried\)", note)


def test_equal_answers_settle_the_accuracy() -> None:
    right = np.random.default_rng(1).random(10_000) < 0.97
    found = _guarded(_answered([right] * 3, strategy="single"), _answered([right] * 3, workers=2))
    assert len(found.eligible) == 2
    assert "; ".join(found.notes) == ""


def test_what_counts_as_worse_can_be_chosen() -> None:
    runs = _of([0.97, 0.971, 0.972], strategy="single"), _of([0.92, 0.921, 0.922], workers=2)
    assert len(_guarded(*runs, margin=0.10).eligible) == 2
    assert _guarded(*runs, margin=0.10).notes == ()
    assert len(_guarded(*runs, margin=0.0).eligible) == 1


def _confused(made: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With a confusion matrix of ten classes, the first with 1,135 of 10,000 examples."""
    sizes = [1_135, *[985] * 9]
    return [{**found, "confusion": [[size, *[0] * 9] for size in sizes]} for found in made]


def test_a_configuration_that_only_guesses_is_set_aside_even_after_one_run() -> None:
    found = _guarded(_confused(_of([0.97], strategy="single")), _confused(_of([0.1135], workers=2)))
    assert _names(found) == ["torch/single with 1 worker"]
    assert "; ".join(found.notes) == (
        "1 of 2 configurations set aside: torch/ddp with 2 workers, no better than chance (0.1135; guessing the most "
        "common class gives 0.1135)"
    )


def test_where_nobody_learned_anything_nobody_is_set_aside() -> None:
    found = _guarded(_confused(_of([0.10, 0.11], strategy="single")), _confused(_of([0.1135, 0.09], workers=2)))
    assert len(found.eligible) == 2
    assert found.notes == ("no configuration is better than chance in accuracy, so they are compared without it",)


def test_several_are_counted_and_the_worst_is_named() -> None:
    found = _guarded(_of([0.97] * 3, strategy="single"), _of([0.90] * 3, workers=2), _of([0.80] * 3, workers=4))
    assert "; ".join(found.notes).startswith(
        "2 of 3 configurations set aside: torch/ddp with 4 workers, accuracy 17.0 points lower than "
    )
    assert "; ".join(found.notes).endswith(", and 1 more")


def _perplexed(values: list[float], **fields: Any) -> list[dict[str, Any]]:
    made = []
    for seed, value in enumerate(values, start=1):
        found = result(seed=seed, model="lstm-small", **fields)
        found["test"] = {"perplexity": value, "accuracy": None, "correct": None, "loss": 4.0, "total": 80_000}
        made.append(found)
    return made


def test_a_perplexity_is_judged_by_its_seeds() -> None:
    metric = LanguageModel().metric
    runs = _perplexed([100.0, 101.0, 102.0], strategy="single") + _perplexed([120.0, 121.5, 122.0], workers=2)
    found = guard(compare(runs), metric)
    assert _names(found) == ["torch/single with 1 worker"]
    assert "perplexity 20.17 higher than torch/single with 1 worker (" in "; ".join(found.notes)
    once = guard(compare(_perplexed([100.0], strategy="single") + _perplexed([120.0], workers=2)), metric)
    assert len(once.eligible) == 2
    assert "; ".join(once.notes) == (
        "perplexity not settled: torch/ddp with 2 workers may be higher than torch/single with 1 worker, which one "
        "seed cannot tell"
    )


def test_equal_configurations_are_set_aside_in_at_most_5_of_100_races() -> None:
    """Without any margin, the hardest case: eight equal configurations, three runs each."""
    generator = np.random.default_rng(5)
    strategies = ["single", *["ddp"] * 7]
    wrong = 0
    for _ in range(200):
        runs = [
            run for place, strategy in enumerate(strategies)
            for run in _of(list(0.9 + generator.normal(0, 0.01, 3)), strategy=strategy, workers=place or 1)
        ]
        wrong += bool(guard(compare(runs), replace(ACCURACY, margin=0.0)).aside)
    assert wrong <= 0.05 * 200


@pytest.mark.parametrize("objective", ["throughput", "cost"])
def test_speed_and_cost_are_compared_among_those_that_may_win(objective: str) -> None:
    rows = compare([*_of([0.97, 0.972, 0.971], strategy="single"), *_of([0.92, 0.921, 0.919], workers=2)])
    question = ask(rows, Criteria(objective))
    assert [candidate.name for candidate in question.candidates] == ["torch/single with 1 worker"]
    assert "5.1 points lower" in question.notes[0]
    assert len(ask(rows, Criteria(objective, tolerances=Tolerances(accuracy=0.1))).candidates) == 2
