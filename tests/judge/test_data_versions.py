"""Runs on different data are told apart, whenever the data changed, and never compared with each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from synthetic_races import BEGAN, repeated, result, write_race
from typed_judge import as_result, compare
from velodrome.events.fields import DataRecord
from velodrome.job.job import Job
from velodrome.job.result import Result
from velodrome.judge.compare import tasks_of
from velodrome.judge.conditions import change_note, data_note, differences, labelled, newest
from velodrome.reporting.document import make_report
from velodrome.reporting.load import load_race

pytestmark = pytest.mark.unit


def data(train: int = 1000, test: int = 300, fingerprint: str = "aa", **more: Any) -> dict[str, Any]:
    return {"train": train, "validation": 200, "test": test, "fingerprint": fingerprint, "seeded": False, **more}


def runs_on(about: dict[str, Any] | None, hour: int = 0, **fields: Any) -> list[dict[str, Any]]:
    more = {} if about is None else {"data": about}
    return [{**made, **more, "started": BEGAN + 3600 * hour + place}
            for place, made in enumerate(repeated([1000.0, 1010.0, 990.0], **fields))]


def run_on(about: dict[str, Any], **fields: Any) -> Result:
    return as_result(result() | {"data": about, **fields})


CHANGES = [
    pytest.param(data(train=1300), "training examples 1,200 → 1,500", id="more-training"),
    pytest.param(data(test=200), "test examples 300 → 200", id="fewer-test"),
    pytest.param(data(fingerprint="bb"), "other examples, as many as before (fingerprint aa → bb)", id="content"),
]


@pytest.mark.parametrize(("after", "words"), CHANGES)
def test_a_race_whose_data_changed_is_judged_for_each_of_them(runs: Path, after: dict[str, Any], words: str) -> None:
    first, second = runs_on(data(), strategy="single"), runs_on(after, 30, strategy="ddp", workers=2)
    record = load_race(runs, write_race(runs, [*first, *second], "first").path.name)
    rows = compare(record.results)
    assert [len(members) for members in tasks_of(rows).values()] == [1, 1]
    assert all(row.speedup is None or row.single for row in rows), "no speedup over a baseline on other data"
    answers = record.judged().answers
    assert len(answers) == 2
    note = f"The data changed during the race ({words}): runs on different data are not compared with each other."
    assert all(note in answer.caveats for answer in answers.values())
    report = make_report(record)
    assert any(words in note for note in report.notes)
    assert all(note in answer.recommendation.caveats for answer in report.answers)


def test_the_same_data_and_those_of_earlier_versions_are_compared(runs: Path) -> None:
    old, new = runs_on(None, strategy="single"), runs_on(data(), 1, strategy="ddp", workers=2)
    more = runs_on(data(), 2, strategy="allreduce", workers=2)
    record = load_race(runs, write_race(runs, [*old, *new, *more]).path.name)
    rows = compare(record.results)
    assert list(tasks_of(rows)) == [""]
    assert all(row.speedup is not None for row in rows)
    assert data_note(record.results) == ""
    assert not any("data changed" in caveat for answer in record.judged().answers.values() for caveat in answer.caveats)


def test_a_larger_validation_share_is_no_other_data() -> None:
    one, other = run_on(data()), run_on({**data(), "train": 800, "validation": 400})
    assert differences(one, other) == []


def test_a_function_may_make_other_data_for_each_seed_but_not_for_one() -> None:
    mine = {"dataset": "my:data"}
    first = run_on(data(seeded=True), seed=1, started=1.0, **mine)
    second = run_on(data(fingerprint="bb", seeded=True), seed=2, started=2.0, **mine)
    changed = run_on(data(fingerprint="cc", seeded=True), seed=2, started=3.0, **mine)
    assert differences(first, second) == []
    assert changed.data is not None
    assert change_note([first, second], Job(dataset="my:data", seed=2), changed.data) != ""
    assert change_note([first], Job(dataset="my:data", seed=2), changed.data) == ""
    assert newest([first, second, changed]) == [changed]
    names = [made.data_version for made in labelled([first, second, changed])]
    assert names[0] == names[1] != names[2]


def test_data_that_change_back_are_the_first_ones_again() -> None:
    runs = [run_on(about, started=float(place))
            for place, about in enumerate([data(), data(train=1300), data()], start=1)]
    assert newest(runs) == [runs[0], runs[2]]
    about = DataRecord.model_validate(data())
    assert change_note(runs[:2], Job(dataset="digits"), about) == "training examples 1,500 → 1,200"
    assert change_note(runs, Job(dataset="digits"), about) == ""
    assert change_note(runs[:2], Job(dataset="mnist"), about) == ""
