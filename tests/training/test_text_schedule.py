"""Reading a text in rows: workers together read what one alone would, and evaluation predicts every word once."""

from __future__ import annotations

import numpy as np
import pytest

from velodrome.tasks.schedule import TextSchedule, evaluation_rows

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_workers_read_together_what_one_reads_alone(workers: int) -> None:
    text = np.arange(1003, dtype=np.int32)
    alone = TextSchedule(len(text), batch=10, unroll=7).rows(text, 0)
    schedule = TextSchedule(len(text), batch=10, unroll=7, workers=workers)
    together = np.concatenate([schedule.rows(text, rank) for rank in range(workers)])
    assert sorted(map(tuple, together)) == sorted(map(tuple, alone))
    assert schedule.examples(0, schedule.steps) == alone.shape[0] * (alone.shape[1] - 1)


@pytest.mark.parametrize("groups", [2, 3])
def test_groups_take_all_the_steps_that_are_counted_and_each_word_once(groups: int) -> None:
    text = np.arange(1003, dtype=np.int32)
    schedule = TextSchedule(len(text), batch=10, unroll=7, groups=groups)
    rows = [schedule.rows(text, group) for group in range(groups)]
    assert [len(each) for each in rows] == [10] * groups
    assert schedule.steps == sum((each.shape[1] - 1) // 7 for each in rows)
    predicted = np.concatenate([each[:, 1:].ravel() for each in rows])
    assert len(set(predicted)) == len(predicted) == schedule.examples(0, schedule.steps)


def test_a_row_goes_on_where_its_last_step_ended() -> None:
    schedule = TextSchedule(100, batch=2, unroll=5)
    rows = schedule.rows(np.arange(100, dtype=np.int32), 0)
    assert schedule.steps == 9
    assert rows.shape == (2, 46)
    assert rows[0].tolist() == list(range(46))
    assert rows[1][0] == 50


@pytest.mark.parametrize("length", [2, 19, 20, 21, 22, 401, 1000])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_evaluation_predicts_every_word_but_the_first_exactly_once(length: int, workers: int) -> None:
    text = np.arange(length, dtype=np.int32)
    parts = [evaluation_rows(text, rank, workers) for rank in range(workers)]
    predicted = np.concatenate([part.targets[part.real > 0] for part in parts])
    assert sorted(predicted) == list(range(1, length))
    for part in parts:
        assert np.array_equal(part.inputs[part.real > 0] + 1, part.targets[part.real > 0])


def test_workers_that_read_the_whole_text_have_the_rows_of_one_alone() -> None:
    text = np.arange(1000, dtype=np.int32)
    alone = TextSchedule(len(text), batch=10, unroll=7)
    schedule = TextSchedule(len(text), batch=10, unroll=7, copies=3)
    assert schedule.steps == 3 * alone.steps
    assert schedule.examples(0, schedule.steps) == 3 * alone.examples(0, alone.steps)
    for rank in range(3):
        assert (schedule.rows(text, rank) == alone.rows(text, 0)).all()
