"""Figures in what a script prints: found by patterns, which can neither hang nor break the script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from velodrome.training import script_output
from velodrome.training.script_output import reports_of


def read(text: bytes, *patterns: str) -> tuple[bytes, list[dict[str, Any]]]:
    """What the program copies to the log, and its answers."""
    answers, its_answers = os.pipe()
    program = subprocess.Popen(
        [sys.executable, "-P", str(Path(script_output.__file__)), str(its_answers), *patterns], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, pass_fds=[its_answers],
    )
    os.close(its_answers)
    printed: list[str] = []
    with os.fdopen(answers) as lines:
        thread = threading.Thread(target=lambda: printed.extend(lines))
        thread.start()
        log, _ = program.communicate(text, timeout=280)
        thread.join(10)
    assert program.returncode == 0
    return log, [json.loads(line) for line in printed]


@pytest.mark.integration
def test_figures_are_found_in_lines_with_colours_and_in_progress_bars() -> None:
    text = b"\x1b[1mepoch 1\x1b[0m loss: 0.5 acc 80%\r\x1b[2Kepoch 2 loss: 0.25\nnothing here\nepoch 3 loss: 1e-3"
    log, answers = read(text, r"epoch (?P<epoch>\d+) loss: (?P<loss>\S+)", r"acc (?P<accuracy_percent>\d+)%")
    assert log == text, "the log has everything as it was printed"
    assert answers == [{"figures": {"epoch": 1.0, "loss": 0.5, "accuracy_percent": 80.0}},
                     {"figures": {"epoch": 2.0, "loss": 0.25}}, {"figures": {"epoch": 3.0, "loss": 0.001}}]


@pytest.mark.integration
def test_a_pattern_that_takes_for_ever_is_given_up_and_the_others_are_not() -> None:
    hopeless = r"(?P<x>(a+)+)$"
    line = b"a" * 60 + b"! loss 2\n"
    log, answers = read(line * 5, hopeless, r"loss (?P<loss>\d)")
    assert log == line * 5
    assert [answer["figures"] for answer in answers if "figures" in answer] == [{"loss": 2.0}] * 5
    (warning,) = [answer["warning"] for answer in answers if "warning" in answer]
    assert "is not used any more: it took longer than 0.2 s on 3 lines" in warning


@pytest.mark.integration
def test_what_is_no_number_is_mentioned_once_and_long_lines_are_searched_at_their_beginning() -> None:
    text = b"loss high\nloss high\n" + b"loss 1" + b"x" * 200_000 + b" late 2\n"
    log, answers = read(text, r"loss (?P<loss>[a-z]+|\d)", r"late (?P<late>\d)")
    assert log == text
    assert [answer.get("figures") for answer in answers] == [None, {"loss": 1.0}]
    assert "loss is 'high', which is not a number" in answers[0]["warning"]


@pytest.mark.parametrize(
    ("figures", "reports"),
    [
        pytest.param({"loss": 1.0, "step": 3.0}, [("train", 3, None, None, {"loss": 1.0})], id="training"),
        pytest.param({"epoch": 2.0, "val_loss": 1.0}, [("validation", None, None, 2, {"loss": 1.0})], id="validation"),
        pytest.param({"epoch": 2.0, "loss": 3.0, "validation_accuracy_percent": 50.0},
                     [("train", None, None, 2, {"loss": 3.0}), ("validation", None, None, 2, {"accuracy": 0.5})],
                     id="both"),
        pytest.param({"test_accuracy": 0.9, "test_examples": 10.0}, [("test", None, 10, None, {"accuracy": 0.9})],
                     id="test"),
        pytest.param({"step": 4.0}, [("train", 4, None, None, {})], id="step-alone"),
        pytest.param({"epoch": 0.5, "loss": 1.0}, [("train", None, None, None, {"loss": 1.0})], id="half-an-epoch"),
    ],
)
def test_the_name_of_a_group_states_what_was_measured(figures: dict[str, float], reports: list[Any]) -> None:
    assert list(reports_of(figures)) == reports
