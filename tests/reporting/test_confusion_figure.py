"""The figure of confusions: of the most accurate run, with the classes' names, and never of what was not counted."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from synthetic_races import result
from typed_judge import as_result, compare
from velodrome.reporting.usage import MOST_CLASSES, confusion

pytestmark = pytest.mark.unit

GOOD, BAD = [[50, 1], [2, 47]], [[30, 21], [20, 29]]


def texts(picture: Any) -> set[str]:
    panel = picture.figure.axes[0]
    ticks = [label.get_text() for axis in (panel.xaxis, panel.yaxis) for label in axis.get_ticklabels()]
    return {*(text.get_text() for text in panel.texts), *ticks, panel.get_title(loc="left"), panel.get_title()}


def test_the_most_accurate_configuration_is_shown_with_the_names_of_its_classes() -> None:
    picture = confusion(compare([
        result("ddp", accuracy=0.6, confusion=BAD, class_names=["cat", "dog"]),
        result("allreduce", accuracy=0.97, confusion=GOOD, class_names=["cat", "dog"]),
    ]))
    assert picture is not None
    shown = texts(picture)
    assert {"cat", "dog", "50", "47"} <= shown
    assert "30" not in shown
    assert any("allreduce" in text for text in shown)


def test_classes_without_names_are_numbered() -> None:
    picture = confusion(compare([result(confusion=GOOD)]))
    assert picture is not None
    assert {"0", "1", "50"} <= texts(picture)


@pytest.mark.parametrize("table", [
    None, [], [[1]], [[1, 2], [3]], [[1] * (MOST_CLASSES + 1)] * (MOST_CLASSES + 1),
])
def test_what_cannot_be_drawn_is_left_out(table: Any) -> None:
    assert confusion(compare([as_result(result()).model_copy(update={"confusion": table})])) is None


@pytest.mark.parametrize("table", [[["a", "b"], ["c", "d"]], {"a": 1}])
def test_what_counts_nothing_is_no_result(table: Any) -> None:
    with pytest.raises(ValidationError):
        as_result(result(confusion=table))


def test_the_caption_says_what_is_not_drawn() -> None:
    large = [[1] * (MOST_CLASSES + 1)] * (MOST_CLASSES + 1)
    small = [result(dataset=name, confusion=GOOD) for name in ("a", "b", "c")]
    whole = confusion(compare(small))
    assert whole is not None
    assert "drawn" not in whole.caption
    one_more = confusion(compare([*small, result(dataset="d", confusion=BAD)]))
    assert one_more is not None
    assert one_more.caption.endswith("3 of 4 tasks are drawn.")
    too_large = confusion(compare([*small[:2], result(dataset="d", confusion=large)]))
    assert too_large is not None
    assert too_large.caption.endswith(f"2 of 3 tasks are drawn; 1 of them has more than {MOST_CLASSES} classes.")
