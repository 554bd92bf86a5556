"""An objective is one record: verdicts, drops and questions read their words, direction and measure from it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from synthetic_races import beside, repeated
from typed_judge import judge
from velodrome.job.race import Race
from velodrome.judge.criteria import OBJECTIVES, Criteria, Objective, Wording

MEMORY = Objective(
    "memory", Wording("smaller in memory", "larger in memory", "as large in memory", "larger in memory", saves=True),
    "memory_bytes", timed=False,
)


def using(memory: float, **fields: Any) -> list[dict[str, Any]]:
    """Three runs whose process used so many MiB, and a hair more each time."""
    runs = repeated([100, 101, 99], **fields)
    for number, run in enumerate(runs):
        used = (memory + number / 10) * 2**20
        run["nodes"][0]["memory_bytes"] = {"mean": used, "max": int(used)}
        del run["nodes"][1:]
    return runs


@pytest.mark.unit
def test_a_new_objective_is_one_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OBJECTIVES, MEMORY.name, MEMORY)
    runs = [*using(400, strategy="single"), *using(300, workers=2), *using(200, strategy="allreduce", workers=2)]
    task = judge(runs, Criteria("memory")).by_task[0]
    assert task.answer.best == "torch/allreduce with 2 workers"
    assert task.answer.objective == "memory"
    assert task.answer.why.startswith("33 % smaller in memory than torch/ddp with 2 workers")
    assert "200 against 300 MiB" in task.answer.why
    assert {drop.name: drop.why for drop in task.dropped} == {
        "torch/single with 1 worker": "2.00× larger in memory than torch/allreduce with 2 workers (at least 1.98×)",
        "torch/ddp with 2 workers": "1.50× larger in memory than torch/allreduce with 2 workers (at least 1.48×)",
    }
    assert task.by("throughput").objective == "throughput"


@pytest.mark.unit
def test_what_no_load_changes_is_not_widened_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OBJECTIVES, MEMORY.name, MEMORY)
    runs = [beside(run, 1.0) for run in (*using(400, strategy="single"), *using(300, workers=2))]
    assert judge(runs, Criteria("throughput")).by_task[0].question.slowed
    assert not judge(runs, Criteria("memory")).by_task[0].question.slowed


@pytest.mark.unit
def test_an_accuracy_race_is_decided_although_one_worker_is_the_same_training_as_single() -> None:
    def trained(accuracy: float, **fields: Any) -> list[dict[str, Any]]:
        return repeated([100] * 5, [accuracy + number / 1000 for number in range(5)], **fields)

    runs = [*trained(0.95, strategy="single"), *trained(0.95, workers=1), *trained(0.60, workers=2)]
    task = judge(runs, Criteria("accuracy")).by_task[0]
    assert task.survivors == ("torch/single with 1 worker",)
    assert task.outcome == "one"


@pytest.mark.unit
def test_every_help_text_names_every_objective() -> None:
    listed = f"{', '.join([*OBJECTIVES][:-1])} or {[*OBJECTIVES][-1]}"
    source = Path(__file__).parents[2]
    command = (source / "src/velodrome/cli/race.py").read_text()
    assert listed in (Race.model_fields["objective"].description or "")
    assert command.count(listed) == 1, "recommend and report have one option"
    table = (source / "docs/reference/numbers.md").read_text()
    assert [name for name in OBJECTIVES if f"| `{name}` |" not in table] == []


@pytest.mark.integration
def test_what_command_lines_read_is_quick_to_import() -> None:
    program = ("import sys, velodrome.judge.criteria\n"
               "sys.exit(', '.join({'numpy', 'scipy'} & sys.modules.keys()))")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""
