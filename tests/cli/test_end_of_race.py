"""What a race prints at its end: table, verdicts, what a reader must know, and where the report is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from synthetic_races import beside, repeated
from typed_judge import judge
from velodrome.api.race import FinishedRace
from velodrome.cli.race_output import _caveats, show_race
from velodrome.job.values import seconds_of
from velodrome.judge.choice import Commands

pytestmark = pytest.mark.unit

#: As `race` prints them for strategies that cannot run here.
REASONS = tuple(f"engine-{number}/single: Python module 'engine{number}' is not installed" for number in range(8))
STRATEGIES = ("ddp", "allreduce", "zero1", "fsdp")


def runs_of(model: str) -> list[dict[str, Any]]:
    """Five configurations of a model on a busy machine, none of them far ahead, of which one ran less often."""
    found = repeated([100.0, 130.0, 90.0], strategy="single")
    for strategy in STRATEGIES:
        found += repeated([101.0, 128.0, 95.0, 99.0][: 3 if strategy == "fsdp" else 4], strategy=strategy, workers=2)
    return [beside(run, 0.3) | {"model": model, "run": f"{model}-{run['run']}"} for run in found]


def ended(runs: list[dict[str, Any]], reasons: tuple[str, ...] = ()) -> FinishedRace:
    judgement = judge(runs, commands=Commands(Path("runs/demo"), 90.0))
    figure = Path("runs/demo/race.png")
    return FinishedRace(Path("runs/demo"), judgement, figure, {}, {}, reasons)


def printed(finished: FinishedRace, capsys: pytest.CaptureFixture[str]) -> list[str]:
    show_race(finished)
    return capsys.readouterr().out.splitlines()


def test_two_models_take_no_more_than_25_lines(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(ended([*runs_of("dense-128"), *runs_of("resnet20")][3:]), capsys)
    assert len(lines) <= 25, "\n".join(lines)
    assert [line.partition(":")[0] for line in lines if line.startswith(("Verdict", "Why", "Next", "Report"))] == [
        "Verdict", "Why", "Next", "Verdict", "Why", "Next", "Report"]
    assert "more caveats)" in lines[-1]


def test_what_was_left_out_gives_way_to_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    runs = runs_of("dense-128")
    for servers in range(1, 8):
        runs += [beside(run, 0.3) for run in repeated([50.0, 60.0, 55.0], strategy="parameter-server", workers=2,
                                                      engine="tensorflow", servers=servers)]
    lines = printed(ended(runs, REASONS), capsys)
    assert len(lines) <= 25, "\n".join(lines)
    assert sum("Left out: " in line for line in lines) >= 1
    assert lines[-2].startswith("Left out: ")
    assert lines[-2].endswith("as listed before the start.")


def test_a_few_reasons_are_all_there(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(ended(runs_of("dense-128"), REASONS[:2]), capsys)
    assert [line for line in lines if line.startswith("Left out: ")] == [f"Left out: {one}" for one in REASONS[:2]]


def test_caveats_of_several_models_say_which_one_they_are_of() -> None:
    other = [run | {"hosts": []} for run in runs_of("resnet20")]
    found = _caveats(ended([*runs_of("dense-128"), *other]))
    assert any(caveat.startswith("dense-128: Other programs used 0.3 of 2 cores") for caveat in found)
    assert any(caveat.startswith("Figures in this answer are from the 3 repetitions") for caveat in found)


def test_a_verdict_names_the_model_once(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(ended([*runs_of("dense-128"), *runs_of("resnet20")]), capsys)
    said = [line for line in lines if line.startswith(("Verdict: ", "Why: "))]
    assert said
    assert not any("model resnet20" in line for line in said)


def test_the_next_command_has_the_time_that_its_repetitions_take(capsys: pytest.CaptureFixture[str]) -> None:
    idle = [run | {"hosts": []} for run in runs_of("dense-128")]
    [answer] = (finished := ended(idle)).judgement.answers.values()
    assert answer.needed is not None
    assert answer.needed.total_seconds is not None
    [line] = [line for line in printed(finished, capsys) if line.startswith("Next: ")]
    found = re.search(r"--budget (\w+)`", line)
    assert found is not None, line
    assert 90.0 + answer.needed.total_seconds <= seconds_of(found[1]) <= 1.2 * (90.0 + answer.needed.total_seconds)
