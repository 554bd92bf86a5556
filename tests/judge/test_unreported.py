"""What scripts did not report is stated, and whose it is; without examples, whole runs are compared by their time."""

from __future__ import annotations

import io
from typing import Any

import pytest

from synthetic_races import result
from typed_judge import compare
from velodrome.cli.output import SafeConsole
from velodrome.cli.race_output import print_comparison
from velodrome.events.models import Pace, Warmup
from velodrome.judge.candidates import ask
from velodrome.judge.caveats import unreported_note
from velodrome.judge.compare import Row
from velodrome.judge.criteria import Criteria
from velodrome.run.samples import pace_of_all

LACKING = ["examples: throughput is unknown"]


def of_script(workers: int, total: float, *, seed: int = 1, rate: float | None = None) -> dict[str, Any]:
    """A finished run of a script that reported no examples, or some at a rate."""
    made = result("script", workers, seed=seed, script="train.py", not_reported=[] if rate else LACKING)
    made = {name: value for name, value in made.items() if not name.startswith("batch")}
    return {**made, "test": None, "seconds": {**made["seconds"], "total": total},
            "throughput": {"examples_per_second": rate, "batches_per_second": None, "warmup_steps": 0}}


def test_without_examples_the_time_of_whole_runs_decides_and_the_answer_states_it() -> None:
    sizes = ((1, 40), (2, 25))
    rows = compare([of_script(workers, total, seed=seed) for seed in (1, 2, 3) for workers, total in sizes])
    question = ask(rows, Criteria())
    assert question.better == "less"
    assert [candidate.value for candidate in question.candidates] == pytest.approx([40, 25])
    assert "no run reported examples" in " ".join(question.notes)
    assert unreported_note(rows) == (
        "not reported by the script: examples (throughput is unknown, and so is whether the global batch grows with "
        "the workers, which would not be the same training)")
    assert unreported_note(rows[:1]) == "not reported by the script: examples (throughput is unknown)"


def test_where_some_report_examples_throughput_decides_and_the_others_are_named() -> None:
    rows = compare([of_script(1, 40, rate=900.0), of_script(2, 25)])
    question = ask(rows, Criteria())
    assert [candidate.value for candidate in question.candidates] == pytest.approx([900.0])
    assert unreported_note(rows) == \
        ("not reported by the script: examples by torch/script with 2 workers (throughput is unknown, and so is "
         "whether the global batch grows with the workers, which would not be the same training)")


@pytest.mark.parametrize("stored", [
    "figures of a test set: the quality of the model is unknown",
    "figures of a test set: how good the model is is unknown",  # as earlier versions stored it
])
def test_after_a_validation_accuracy_the_quality_of_the_model_is_not_unknown(stored: str) -> None:
    made = of_script(1, 40, rate=900.0) | {"not_reported": [stored], "history": [{"epoch": 1, "seconds": 1.0}]}
    assert "the quality of the model is unknown" in unreported_note(compare([made]))
    made["history"] = [{"epoch": 1, "seconds": 1.0, "validation_loss": None, "validation_accuracy": 0.9}]
    assert unreported_note(compare([made])) == (
        "not reported by the script: figures of a test set (the quality of the model is known on validation data only)"
    )


def test_the_examples_of_all_processes_add_up_over_the_time_of_the_slowest() -> None:
    paces = [Pace(seconds=seconds, examples=examples, steps=8, warmup=Warmup(steps=2, examples=10, seconds=1.0))
             for seconds, examples in ((9.0, 100), (10.0, 200), (50.0, 0))]
    whole = pace_of_all(paces)
    assert whole is not None
    assert (whole.seconds, whole.examples, whole.steps) == (10.0, 300, 8), "a process that reports none does not count"
    assert (whole.warmup.examples, whole.warmup.seconds) == (20, 1.0)
    assert pace_of_all([]) is None


def test_which_option_reads_a_figure_of_what_was_printed_is_said_of_a_race_too() -> None:
    stored = ("figures of a test set: the quality of the model is unknown; of what it printed, --read "
              "'top1 (?P<test_accuracy>[0-9.]+)' reads one")
    made = of_script(1, 40, rate=900.0) | {"not_reported": [stored], "history": []}
    assert unreported_note(compare([made])) == (
        "not reported by the script: figures of a test set (the quality of the model is unknown): "
        "--read 'top1 (?P<test_accuracy>[0-9.]+)' reads one of what it printed")


def test_the_table_shows_the_time_of_whole_runs_where_it_decides() -> None:
    def shown(rows: list[Row]) -> str:
        console = SafeConsole(width=200, record=True, file=io.StringIO())
        print_comparison(console, rows, "velodrome report made")
        return console.export_text()

    decides = shown(compare([of_script(1, 40), of_script(2, 25)]))
    assert "total" in decides
    assert "40.0" in decides
    assert "total" not in shown(compare([of_script(1, 40, rate=900.0), of_script(2, 25, rate=990.0)]))
