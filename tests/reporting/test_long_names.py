"""Figures of races whose data sets and configurations have long names: panels keep their room, legends stay inside."""

from __future__ import annotations

import warnings
from itertools import pairwise

import pytest

from synthetic_races import result
from typed_judge import compare
from velodrome.judge.compare import Row
from velodrome.reporting.curves import over_workers
from velodrome.reporting.figures import Looks, Picture, to_svg
from velodrome.reporting.usage import confusion

pytestmark = pytest.mark.unit

PLACES = [f"shards:hdfs://name-node.of.a.large.cluster:9000/users/somebody/data/{name}" for name in "abc"]


@pytest.fixture
def rows() -> list[Row]:
    return compare([
        result(workers=workers, dataset=place, batch_size=batch, confusion=[[5, 1], [2, 6]])
        for place in PLACES for workers in (6, 9) for batch in (128, 256)
    ])


def drawn(picture: Picture | None) -> Picture:
    """The picture after it was laid out, without a warning."""
    assert picture is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        to_svg(picture)
    return picture


def test_a_legend_is_as_wide_as_its_figure_and_takes_no_room_from_the_panels(rows: list[Row]) -> None:
    figure = drawn(over_workers(rows, Looks.of(rows))).figure
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.width
    assert all(panel.get_window_extent().height >= 0.3 * figure.bbox.height for panel in figure.axes)


def test_titles_of_matrices_beside_each_other_do_not_meet(rows: list[Row]) -> None:
    figure = drawn(confusion(rows)).figure
    boxes = [panel._left_title.get_window_extent() for panel in figure.axes]
    assert len(boxes) == 3
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))
    assert all(panel.get_window_extent().width > 0.2 * figure.bbox.width for panel in figure.axes)
