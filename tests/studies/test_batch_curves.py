"""Curves over batches: what a study asks for is drawn from the progress that its runs stored."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from synthetic_races import BEGAN, result, write_race
from velodrome.errors import BadRequest
from velodrome.events.models import ProgressEvent
from velodrome.reporting.document import make_pictures, make_report
from velodrome.reporting.load import load_race
from velodrome.reporting.write import to_html
from velodrome.studies.batches import line_of
from velodrome.studies.format import BatchCurves
from velodrome.studies.load import parse_study, study_named
from velodrome.studies.plan import Choice, plan_study
from velodrome.studies.record import StudyRecord
from velodrome.studies.report import with_study

pytestmark = pytest.mark.unit

STUDY = """\
name: own
title: A study
source: Somebody 2026
machines: two machines
races:
  - job: {dataset: digits, model: dense-128, engine: torch, strategy: allreduce, epochs: 4, batch_size: 64}
    vary: {workers: [1, 2]}
batches:
  - {where: {workers: [1]}, place: figure 7}
  - {where: {workers: [2]}, mean: epoch}
  - {metric: perplexity}
"""

#: Epoch, steps that were done, and accuracy since the previous report.
Point = tuple[int, int, float | None]


def _events(points: Sequence[Point], role: str = "worker", rank: int = 0) -> list[dict[str, Any]]:
    return [
        {"time": BEGAN + 3 + number, "role": role, "rank": rank, "kind": "progress", "epoch": epoch, "step": step,
         "steps": 4, "examples": 64 * step, "seconds": 1.0, "metrics": {"accuracy": accuracy}}
        for number, (epoch, step, accuracy) in enumerate(points)
    ]


def _line(points: Sequence[Point], asked: BatchCurves, **who: Any) -> Any:
    return line_of([ProgressEvent.model_validate(each) for each in _events(points, **who)], asked)


def test_a_point_is_the_mean_of_its_report_or_of_its_epoch() -> None:
    points: list[Point] = [(1, 1, 0.1), (1, 4, 0.5), (2, 2, 0.6), (2, 4, 0.8)]
    line = _line(points, BatchCurves())
    assert (line.batches, line.values, line.longest) == ([1, 4, 6, 8], [0.1, 0.5, 0.6, 0.8], 3)
    assert _line(points, BatchCurves(mean="epoch")).values == pytest.approx([0.1, 0.4, 0.6, 0.7])


def test_steps_without_a_value_belong_to_the_next_report_and_repeated_steps_count_once() -> None:
    line = _line([(1, 1, None), (1, 2, 0.2), (1, 4, 0.9), (1, 4, 0.4), (2, 1, 0.5)], BatchCurves(mean="epoch"))
    assert (line.batches, line.values) == ([2, 4, 5], pytest.approx([0.2, 0.3, 0.5]))
    assert _line([(1, 1, None), (1, 2, None)], BatchCurves()) is None


def test_one_process_is_drawn_the_first_that_reports_a_value() -> None:
    events = [*_events([(1, 1, None), (1, 2, None)], "chief"), *_events([(1, 2, 0.7)], rank=1),
              *_events([(1, 1, 0.3)], rank=0)]
    line = line_of(map(ProgressEvent.model_validate, events), BatchCurves())
    assert line is not None
    assert line.values == [0.3]


def test_the_report_has_a_figure_for_each_that_some_run_has_values_for(tmp_path: Path) -> None:
    write_race(tmp_path, [result("allreduce", workers, seed=1) for workers in (1, 2)], "own-full")
    for run in (tmp_path / "own-full").glob("*/events.jsonl"):
        lines = [json.dumps(each) for each in _events([(1, 1, 0.1), (1, 4, 0.5), (2, 4, 0.8)])]
        run.write_text(run.read_text(encoding="utf-8") + "\n".join(lines) + "\n", encoding="utf-8")
    plan = plan_study(parse_study(STUDY, "own.yaml"), "full", Choice(), look=lambda name: None)
    StudyRecord.of(plan).write(tmp_path / "own-full")
    report = with_study(make_report(load_race(tmp_path, "own-full")))
    pictures = {picture.name: picture for picture in make_pictures(report)}
    assert pictures["batches-1"].title == "Train accuracy over batches, as in figure 7"
    assert "mean over the steps of that report: here 4 at most." in pictures["batches-1"].caption
    assert "The document has no such figure." in pictures["batches-2"].caption
    assert "batches-3" not in pictures  # no run reports a perplexity
    [line] = pictures["batches-2"].figure.axes[0].lines
    assert [*line.get_xdata()] == [1, 4, 8]
    assert [*line.get_ydata()] == pytest.approx([0.1, 0.4, 0.8])
    assert line.get_label() == "digits, torch/allreduce 2, batch 64, 4 epochs"
    assert 'id="figure-batches-1"' in to_html(report, [*pictures.values()])


def test_a_job_that_stands_for_several_published_ones_has_one_line(tmp_path: Path) -> None:
    write_race(tmp_path, [result("allreduce", 1, epochs=1)], "own-smoke")
    [events] = (tmp_path / "own-smoke").glob("*/events.jsonl")
    events.write_text("\n".join(json.dumps(each) for each in _events([(1, 1, 0.1), (1, 2, 0.2)])) + "\n")
    text = STUDY + "scales: {smoke: {job: {epochs: 1}, most: {workers: 1}}}\n"
    plan = plan_study(parse_study(text, "own.yaml"), "smoke", Choice(), look=lambda name: None)
    StudyRecord.of(plan).write(tmp_path / "own-smoke")
    pictures = make_pictures(with_study(make_report(load_race(tmp_path, "own-smoke"))))
    [line] = next(picture for picture in pictures if picture.name == "batches-1").figure.axes[0].lines
    assert line.get_label() == "digits, torch/allreduce 1, batch 64, 1 epochs"
    [line] = next(picture for picture in pictures if picture.name == "batches-2").figure.axes[0].lines
    assert line.get_label() == "digits, torch/allreduce 1, batch 64, 1 epochs"


def test_mistakes_are_named_with_their_line() -> None:
    for line, sentence in (
        ("{where: {workers: [9]}}", "batches.0.where: no configuration of the study has these values"),
        ("{metric: speed}", "batches.0.metric: "),
        ("{metric: perplexity, mean: epoch}", "batches.0: perplexities have no mean"),
    ):
        text = STUDY[:STUDY.index("  - {where: {workers: [1]}")] + f"  - {line}\n"
        with pytest.raises(BadRequest, match=f"line 9: {sentence}"):
            parse_study(text, "own.yaml")


def test_jaeger_has_the_figures_of_its_learning_curves() -> None:
    asked = study_named("jaeger-2018").batches
    assert [(each.mean, each.place) for each in asked] == [
        ("report", "section 6.1.1, figure 6.1"), ("epoch", "section 6.1.2, figure 6.2"), ("report", "")]
    assert asked[1].where["batch_size"] == [5]
