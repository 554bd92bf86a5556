"""The board of a race: accuracy for images, perplexity for texts, and what a run ended with."""

from __future__ import annotations

import io
import math
from typing import Any

import pytest
from rich.console import Console

from synthetic_races import result, typed
from velodrome.cli.board import Board
from velodrome.events import make_event
from velodrome.events.models import Event
from velodrome.job.names import expand
from velodrome.job.race import Entry, parse_race
from velodrome.job.result import Result
from velodrome.run.state import RunState

pytestmark = pytest.mark.unit

IMAGES, TEXT = {"strategy": "single"}, {"strategy": "single", "dataset": "ptb", "model": "lstm-small"}


def board(*entries: dict[str, Any]) -> tuple[Board, list[Entry], io.StringIO]:
    made = expand(parse_race({"vary": {"entry": list(entries)}}))
    said = io.StringIO()
    expected = {entry.name: 10.0 for entry in made}
    return Board(Console(file=said, width=160), made, expected), made, said


def drawn(shown: Board) -> str:
    stream = io.StringIO()
    Console(file=stream, width=160).print(shown)
    return stream.getvalue()


def epoch(correct: int, loss: float) -> Event:
    counts = {"correct": correct, "total": 1000, "loss_sum": 1000 * loss}
    return make_event("epoch", role="worker", rank=0, epoch=1, seconds=1.0, evaluate_seconds=1.0, steps=1, train=counts,
                      validation=counts)


def take(board: Board, job: Entry, event: Event, state: RunState | None = None) -> None:
    """Show an event of a running job."""
    state = state or RunState()
    state.add(event)
    board.event(job, state, event)


def ended(status: str = "finished", **test: Any) -> Result:
    made = result(rate=1234.0, status=status, model="gone-since")
    return typed(made | {"test": {**test, "total": 1000} if test else None})


def test_a_language_model_is_shown_by_its_perplexity() -> None:
    shown, (job,), said = board(TEXT)
    shown.begin(job)
    take(shown, job, epoch(0, math.log(150.0)))
    assert "perplexity" in drawn(shown)
    assert "150.00" in drawn(shown)
    assert "accuracy" not in drawn(shown)
    shown.end(job, ended(accuracy=None, perplexity=117.2))
    assert "test perplexity 117.20, 1,234 examples/s" in said.getvalue()
    assert "117.20" in drawn(shown)


def test_images_and_texts_stand_in_one_column() -> None:
    shown, (images, text), said = board(IMAGES, TEXT)
    shown.stored(images, ended(accuracy=0.9731))
    shown.stored(text, ended(accuracy=None, perplexity=117.2))
    assert all(word in drawn(shown) for word in ("accuracy / perplexity", "0.9731", "117.20"))
    shown.begin(images)
    take(shown, images, epoch(500, 1.0))
    assert "0.5000" in drawn(shown)
    # What was reached on the way is no test result.
    shown.end(images, ended("failed"))
    assert "test accuracy" not in said.getvalue()


def test_the_same_warning_is_printed_once_in_a_race() -> None:
    shown, jobs, said = board(*({**IMAGES, "epochs": number} for number in (1, 2, 3)))
    for job in jobs:
        shown.begin(job)
        for message in ("the model has batch normalisation", "the model has batch normalisation", f"of {job.name}"):
            take(shown, job, make_event("warning", role="worker", rank=0, message=message))
        shown.end(job, ended(accuracy=0.9))
    assert said.getvalue().count("batch normalisation") == 1
    assert f"{jobs[0].name}: the model has batch normalisation" in said.getvalue()
    assert all(f"of {job.name}" in said.getvalue() for job in jobs)


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), SystemExit(143)])
def test_a_race_that_is_interrupted_reports_how_much_is_done(
    interruption: BaseException, capsys: pytest.CaptureFixture[str]
) -> None:
    shown, (one, two, three, four), _ = board(*({**IMAGES, "epochs": number} for number in (1, 2, 3, 4)))
    shown.stored(one, ended(accuracy=0.9))
    for job, status in ((two, "finished"), (three, "failed")):
        shown.begin(job)
        shown.end(job, ended(status, accuracy=0.9))
    shown.begin(four)
    with pytest.raises(type(interruption)), shown.session():
        raise interruption
    told = capsys.readouterr().err
    assert "velodrome: 2 of 4 jobs are done, 1 failed; the same command runs the other 2" in told


def test_a_job_that_ends_after_some_steps_is_done_then() -> None:
    shown, (job,), _ = board({**IMAGES, "epochs": 10, "steps": 15})
    shown.begin(job)

    state = RunState()

    def said(epoch: int, step: int, steps: int) -> str:
        event = make_event("progress", rank=0, epoch=epoch, step=step, steps=steps, examples=1, seconds=1.0)
        take(shown, job, event, state)
        return drawn(shown)

    assert "running  20%" in said(1, 3, 10)
    # The last epoch is as long as the steps that are left.
    assert "running  80%" in said(2, 2, 5)
    assert "running 100%" in said(2, 5, 5)
