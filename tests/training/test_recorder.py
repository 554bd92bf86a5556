"""What becomes of the reports of a script: epochs, times and pace, and nothing that was not reported."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from velodrome.catalog.world import Member, World
from velodrome.events import parse_event
from velodrome.job.job import Job
from velodrome.job.resolve import resolve
from velodrome.training.context import Context, LineEmitter
from velodrome.training.recorder import Recorder


class Scene:
    """A recorder with a clock that only the test moves."""

    def __init__(self, rank: int = 0) -> None:
        self.events: list[dict[str, Any]] = []
        self.now = 100.0
        members = tuple(Member("worker", number, "h", 0) for number in range(2))
        job = resolve(Job(script="train.py", workers=2))
        emitter = LineEmitter(self._take, "worker", rank)
        self.context = Context(job, World(members, members[rank]), Path(), emitter, 1)
        self.recorder = Recorder(self.context, lambda: self.now)
        self.recorder.begin()

    def _take(self, line: str) -> None:
        assert parse_event(line) is not None, line
        self.events.append(json.loads(line.partition(" ")[2]))

    def after(self, seconds: float, split: str = "train", step: int | None = None, examples: int | None = None,
              epoch: int | None = None, **figures: float) -> None:
        self.now += seconds
        self.recorder.log(split, step, examples, epoch, figures)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["kind"] == kind]

    def result(self) -> dict[str, Any]:
        self.recorder.finish()
        (result,) = self.of("result")
        return result


def test_the_time_before_a_report_belongs_to_what_it_reports() -> None:
    scene = Scene()
    scene.after(5.0, step=0)  # start-up
    scene.after(2.0, step=1, epoch=0, loss=4.0)
    scene.after(3.0, step=2, epoch=0, loss=2.0)
    scene.after(1.0, "validation", epoch=0, accuracy=0.5)
    scene.after(4.0, step=3, epoch=1, loss=1.0)
    scene.after(7.0, "test", examples=100, accuracy=0.75)
    result = scene.result()
    assert result["history"] == [
        {"epoch": 1, "train_loss": 3.0, "validation_accuracy": 0.5, "seconds": 5.0, "evaluate_seconds": 1.0},
        {"epoch": 2, "train_loss": 1.0, "seconds": 4.0, "evaluate_seconds": 0.0},
    ]
    assert (result["test_seconds"], result["steps"], result["parameters"]) == (7.0, 3, None)
    assert result["test"] == {"total": 100, "loss_sum": None, "reported": {"accuracy": 0.75}}


def test_the_mean_of_an_epoch_is_weighted_by_examples() -> None:
    scene = Scene()
    scene.after(1.0, examples=30, loss=1.0)
    scene.after(1.0, examples=10, loss=5.0)
    assert scene.result()["history"][0]["train_loss"] == pytest.approx(2.0)


def test_without_epochs_a_row_ends_where_training_continues_after_a_validation() -> None:
    scene = Scene()
    for number in range(2):
        scene.after(1.0, step=number + 1, loss=1.0)
        scene.after(1.0, "validation", loss=2.0 - number)
        scene.after(0.0, "validation", accuracy=number / 2)
    rows = scene.result()["history"]
    assert [(row["validation_loss"], row["validation_accuracy"]) for row in rows] == [(2.0, 0.0), (1.0, 0.5)]


def test_an_epoch_that_is_over_when_it_is_first_reported_began_with_the_script() -> None:
    scene = Scene()
    scene.after(9.0, epoch=1, loss=1.0)
    scene.after(4.0, epoch=2, loss=0.5)
    assert [row["seconds"] for row in scene.result()["history"]] == [9.0, 4.0]
    begin = next(event for event in scene.of("phase") if event["phase"] == "train")
    assert begin["time"] == scene.of("phase")[0]["time"], "start-up ends where the script begins"


def test_a_script_that_reports_validations_alone_has_no_evaluation_time() -> None:
    scene = Scene()
    scene.after(6.0, "validation", epoch=1, accuracy=0.5)
    scene.after(3.0, "validation", epoch=2, accuracy=0.6)
    assert [(row["seconds"], row["evaluate_seconds"]) for row in scene.result()["history"]] == [(6.0, 0), (3.0, 0)]


def test_pace_leaves_out_start_up_evaluation_and_the_first_quarter_of_the_reports() -> None:
    scene = Scene()
    scene.after(50.0, step=0)
    for step in range(1, 9):
        scene.after(2.0 if step <= 2 else 1.0, step=step, examples=10)
        scene.after(30.0, "validation", loss=1.0)
    pace = scene.result()["pace"]
    assert (pace["examples"], pace["seconds"], pace["steps"]) == (80, 10.0, 8)
    assert pace["warmup"] == {"steps": 2, "examples": 20, "seconds": 4.0}


def test_examples_before_anybody_knew_when_training_began_do_not_count() -> None:
    scene = Scene()
    scene.after(50.0, examples=1000)
    assert scene.result()["pace"]["examples"] == 0


def test_progress_is_reported_a_few_times_a_second_however_often_a_script_reports() -> None:
    scene = Scene()
    for step in range(1, 1001):
        scene.after(0.001, step=step, loss=1.0)
    assert 3 <= len(scene.of("progress")) <= 5
    assert scene.context.status.steps == 1000, "the heartbeat knows of every step"


def test_a_figure_that_is_not_finite_is_null() -> None:
    scene = Scene()
    scene.after(1.0, epoch=1, loss=math.nan)
    scene.after(1.0, "test", loss=math.inf)
    result = scene.result()
    assert result["history"][0]["train_loss"] is None
    assert result["test"]["reported"] == {"loss": None}


def test_other_ranks_report_their_pace_and_no_result() -> None:
    scene = Scene(rank=1)
    scene.after(1.0, step=0)
    scene.after(1.0, step=1, examples=5, epoch=1)
    scene.recorder.finish()
    assert not scene.of("epoch")
    assert not scene.of("result")
    assert scene.of("pace")[0]["pace"]["examples"] == 5


def test_a_script_that_reports_nothing_has_no_history() -> None:
    result = Scene().result()
    assert (result["history"], result["steps"], result["test"]["reported"]) == ([], None, {})


def test_what_a_script_imports_is_start_up_also_where_it_reports_epochs_alone() -> None:
    scene = Scene()
    scene.now += 7.0
    scene.recorder.imported()
    scene.after(9.0, epoch=1, loss=1.0)
    assert [row["seconds"] for row in scene.result()["history"]] == [9.0]
    (end,) = [event for event in scene.of("phase") if event["phase"] == "import"]
    assert (end["state"], end["seconds"]) == ("end", 7.0)


@pytest.mark.parametrize(
    ("steps", "total"),
    [
        pytest.param([1, 2, 3, 1, 2, 3], 6, id="from-1"),
        pytest.param([0, 1, 2, 0, 1, 2], 5, id="from-0"),
        pytest.param([10, 20, 30, 10, 20], 50, id="every-tenth"),
    ],
)
def test_steps_that_begin_anew_with_each_epoch_are_added_up_and_stated_once(steps: list[int], total: int) -> None:
    scene = Scene()
    for place, step in enumerate(steps):
        scene.after(1.0, step=step, epoch=place // 3, loss=1.0)
    assert scene.result()["steps"] == total
    assert [event["steps"] for event in scene.of("epoch")] == sorted(event["steps"] for event in scene.of("epoch"))
    (warning,) = scene.of("warning")
    assert warning["message"] == (f"step {steps[3]} came after step {steps[2]}: the script counts the steps of each "
                                  "epoch anew, so they are added up")


def test_a_mark_at_the_beginning_of_each_epoch_is_no_new_count() -> None:
    scene = Scene()
    for epoch in range(2):
        scene.after(1.0, step=0)
        scene.after(1.0, step=epoch + 1, loss=1.0)
    assert scene.result()["steps"] == 2
    assert not scene.of("warning")


@pytest.mark.parametrize(
    ("name", "value", "split", "metric", "kept"),
    [
        pytest.param("val_acc", 0.9, "validation", "accuracy", 0.9, id="val_acc"),
        pytest.param("acc", 91.8, "train", "accuracy", 0.918, id="acc-in-per-cent"),
        pytest.param("valid_loss", 2.5, "validation", "loss", 2.5, id="valid_loss"),
        pytest.param("val_loss", 2.5, "validation", "loss", 2.5, id="val_loss"),
        pytest.param("top1", 76.1, "train", "accuracy", 0.761, id="top1"),
        pytest.param("test_acc", 1.0, "test", "accuracy", 1.0, id="test_acc"),
        pytest.param("Accuracy", 0.5, "train", "accuracy", 0.5, id="Accuracy"),
        pytest.param("eval_accuracy", 0.5, "validation", "accuracy", 0.5, id="eval_accuracy"),
        pytest.param("val/acc1", 50.0, "validation", "accuracy", 0.5, id="slash"),
        pytest.param("test_f1", 0.7, "test", "f1", 0.7, id="f1"),
        pytest.param("val_mAP_percent", 30.0, "validation", "mAP", 0.3, id="own-name"),
    ],
)
def test_figures_are_known_by_the_names_that_people_use(
    name: str, value: float, split: str, metric: str, kept: float
) -> None:
    scene = Scene()
    scene.after(1.0, step=1, epoch=1)
    scene.after(1.0, epoch=1, **{name: value})
    result = scene.result()
    figures = result["test"]["reported"] if split == "test" else result["history"][0]
    assert figures[metric if split == "test" else f"{split}_{metric}"] == pytest.approx(kept)


def test_what_was_read_as_what_is_stated_once_by_the_first_rank() -> None:
    first, second = Scene(), Scene(rank=1)
    for scene in (first, second):
        for epoch in range(3):
            scene.after(1.0, epoch=epoch, val_acc=50.0 + epoch, val_loss=1.0)
    first.recorder.finish()
    messages = [event["message"] for event in first.of("warning")]
    assert messages[0] == "'val_acc' is read as validation accuracy in per cent, and divided by 100"
    assert not second.of("warning")
    assert sum("val_acc" in message for message in messages) == 1


def test_a_first_accuracy_below_one_per_cent_does_not_divide_later_ones_differently() -> None:
    scene = Scene()
    scene.after(1.0, epoch=1, val_acc=2.0)
    scene.after(1.0, epoch=2, val_acc=0.9)
    assert [row["validation_accuracy"] for row in scene.result()["history"]] == pytest.approx([0.02, 0.009])


def test_two_names_of_one_metric_are_both_kept() -> None:
    scene = Scene()
    scene.after(1.0, "test", acc=0.9, top1=0.8)
    assert scene.result()["test"]["reported"] == {"accuracy": 0.9, "top1": 0.8}


def test_a_stated_split_counts_more_than_the_name() -> None:
    scene = Scene()
    scene.after(1.0, "test", eval_accuracy=0.9)
    assert scene.result()["test"]["reported"] == {"accuracy": 0.9}


def test_the_last_validation_stands_for_a_test_that_nobody_reports() -> None:
    scene = Scene()
    for epoch in range(2):
        scene.after(1.0, step=epoch + 1, epoch=epoch, loss=1.0)
        scene.after(1.0, "validation", epoch=epoch, examples=50, accuracy=0.5 + epoch / 10)
    assert scene.result()["test"] == {"total": 50, "loss_sum": None, "reported": {"accuracy": 0.6}}
    assert [event["message"] for event in scene.of("warning")] == [
        "no figures of a test set were reported: those of the last validation stand for them"]


def test_totals_are_progress_and_no_figures() -> None:
    scene = Scene()
    scene.after(3.0, total_epochs=2, total_steps=20)
    scene.after(1.0, step=1, epoch=0, loss=1.0)
    (progress,) = scene.of("progress")
    assert (progress["steps"], progress["total_steps"], progress["total_epochs"]) == (10, 20, 2)
    assert "train_total_epochs" not in scene.result()["history"][0]
