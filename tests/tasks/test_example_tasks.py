"""Metrics of regression, binary and multi-label follow from counts; targets that do not fit are refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from sklearn import metrics as sk

from velodrome.data.examples import (
    ArrayField,
    ComputedPart,
    ExamplePart,
    ExampleSet,
    image_part,
    image_set,
    implied_task,
)
from velodrome.errors import BadRequest
from velodrome.job.job import Job
from velodrome.job.values import Target
from velodrome.tasks.examples import check_stream
from velodrome.tasks.schedule import in_order
from velodrome.tasks.supervised import Binary, Classification, MultiLabel, Regression, roc_auc

pytestmark = pytest.mark.unit

JOB = Job(dataset="mine:rows", model="mine:net")
RANDOM = np.random.default_rng(11)


def arrays(targets: dict[str, Any], count: int = 6, **more: Any) -> ExampleSet:
    rows = {name: np.asarray(array) for name, array in targets.items()}
    part = ExamplePart({"x": np.zeros((count, 3), np.float32)}, rows)
    return ExampleSet("mine:rows", part, part, part, **more)


# -- metrics


@pytest.mark.parametrize("shift", [0.0, 1e8])
@pytest.mark.parametrize("shape", [(200,), (200, 3)])
def test_a_regression_is_measured_as_scikit_learn_does_however_far_from_zero_its_targets_are(shape, shift) -> None:
    true = RANDOM.normal(size=shape) + shift
    predicted = true + 0.3 * RANDOM.normal(size=shape)
    data = arrays({"y": true}, 200)
    centre = Regression().centre(data, "test")
    each = tuple(range(1, true.ndim))
    counts = {
        "absolute_errors": np.abs(true - predicted).mean(each).sum(),
        "deviations": ((true - centre) ** 2).mean(each).sum(),
        "squared_errors": ((true - predicted) ** 2).mean(each).sum(), "total": 200, "loss_sum": 1.0,
    }
    found = Regression().measure(counts)
    assert found["mae"] == pytest.approx(sk.mean_absolute_error(true, predicted))
    assert found["rmse"] == pytest.approx(math.sqrt(sk.mean_squared_error(true, predicted)))
    assert found["r2"] == pytest.approx(sk.r2_score(true, predicted, multioutput="variance_weighted"), abs=1e-9)


def test_targets_that_are_all_the_same_have_no_r2_and_a_loss_that_overflowed_no_errors() -> None:
    counts = {"absolute_errors": 1.0, "squared_errors": 1.0, "deviations": 0.0, "total": 2, "loss_sum": 1.0}
    assert Regression().measure(counts) == {"mae": 0.5, "rmse": math.sqrt(0.5), "r2": None, "loss": 0.5}
    infinite = {**counts, "absolute_errors": math.inf, "squared_errors": math.inf, "loss_sum": None}
    assert set(Regression().measure(infinite).values()) == {None}


@pytest.mark.parametrize("scores", [
    RANDOM.normal(size=500), RANDOM.integers(0, 4, 500).astype(float), np.zeros(500), np.linspace(-1e300, 1e300, 500),
])
def test_the_area_under_the_curve_is_that_of_scikit_learn_ties_included(scores) -> None:
    labels = (RANDOM.random(500) < 0.2).astype(np.uint8)
    assert roc_auc(labels, scores) == pytest.approx(sk.roc_auc_score(labels, scores), abs=1e-15)


@pytest.mark.parametrize(("labels", "scores"), [([1, 1], [0.1, 0.2]), ([0, 0], [0.1, 0.2]), ([0, 1], [0.1, np.nan])])
def test_there_is_no_area_without_both_answers_or_with_a_score_that_is_no_number(labels, scores) -> None:
    assert roc_auc(np.array(labels), np.array(scores)) is None


def test_labels_that_have_one_answer_only_are_left_out_of_the_mean_area() -> None:
    labels = np.array([[1, 1, 0], [0, 1, 1], [1, 1, 0], [0, 1, 0]], np.uint8)
    scores = RANDOM.normal(size=labels.shape)
    counts = MultiLabel().count_scores(arrays({"y": labels}, 4), "test", scores.ravel())
    areas = [sk.roc_auc_score(labels[:, place], scores[:, place]) for place in (0, 2)]
    assert counts == {"auc_sum": pytest.approx(sum(areas)), "auc_labels": 2}


def test_precision_recall_and_f1_are_zero_where_nothing_is_found() -> None:
    counts = dict.fromkeys(Binary().counted, 0) | {"false_negatives": 3, "correct": 7, "total": 10, "loss_sum": 1.0}
    assert Binary().measure(counts) == {
        "accuracy": 0.7, "precision": 0.0, "recall": 0.0, "f1": 0.0, "roc_auc": None, "loss": 0.1,
    }


def test_each_task_names_the_metric_that_decides_and_its_direction() -> None:
    assert [(task.metric.name, task.metric.better) for task in (Regression(), Binary(), MultiLabel())] == [
        ("mae", "less"), ("accuracy", "more"), ("f1", "more"),
    ]
    Regression().check_target(Target.parse("mae<=0.2"))
    with pytest.raises(BadRequest, match="regression has no metric 'accuracy'; choose mae or rmse or r2 or loss"):
        Regression().check_target(Target.parse("accuracy>=0.9"))


# -- targets


@pytest.mark.parametrize(("fields", "task"), [
    ([("y", (), "float32")], "regression"), ([("y", (4,), "float64")], "regression"),
    ([("y", (), "int64")], "classification"), ([("y", (), "bool")], "classification"),
    ([("y", (5,), "uint8")], "multi-label"), ([("a", (), "int64"), ("b", (), "int64")], "multi-label"),
    ([("a", (), "float32"), ("b", (), "int64")], "regression"),
])
def test_targets_imply_a_task(fields, task) -> None:
    assert implied_task([ArrayField(*field) for field in fields]) == task


def test_classes_are_counted_where_the_data_does_not_name_them() -> None:
    fitted = Classification().fit(JOB, arrays({"y": [0, 2, 1, 0, 2, 1]}))
    assert (fitted.classes, Classification().outputs(fitted)) == (3, 3)
    assert fitted.train.targets["y"].dtype == np.int64


def test_several_targets_become_the_columns_of_one() -> None:
    fitted = Regression().fit(JOB, arrays({"price": [1.0] * 6, "rent": np.arange(6)}))
    assert (fitted.class_names, Regression().outputs(fitted)) == (("price", "rent"), 2)
    assert fitted.train.targets["y"].tolist() == [[1.0, place] for place in range(6)]
    labels = MultiLabel().fit(JOB, arrays({"wet": [0, 1] * 3, "warm": [1, 1, 0] * 2}))
    assert (labels.class_names, labels.targets[0].shape) == (("wet", "warm"), (2,))


def test_float64_targets_stay_as_they_are() -> None:
    values = np.array([1 + 2**-40] * 6)
    assert Regression().fit(JOB, arrays({"y": values})).train.targets["y"] is values


@pytest.mark.parametrize(("task", "targets", "words"), [
    (Classification(), {"y": [0.5] * 6}, "its target 'y' has fractions, which are not classes: add --task regression"),
    (Classification(), {"y": np.zeros((6, 2), int)}, "add --task multi-label"),
    (Classification(), {"y": [0, 1, -1, 0, 1, 1]}, "its train targets are from -1 to 1"),
    (Classification(), {"y": [0] * 6}, "it has 1 classes, but training needs two"),
    (Classification(), {"a": [0, 1] * 3, "b": [0, 1] * 3}, "classification takes one target, and it has 'a', 'b'"),
    (Regression(), {"y": [1.0, np.nan, 2, np.inf, 1, 1]}, "2 of its train targets are not finite numbers"),
    (Binary(), {"y": [0, 1, 2, 0, 1, 1]}, "1 of its train targets are not 0 or 1, such as 2, and binary takes no"),
    (Binary(), {"y": np.zeros((6, 2), int)}, "use --task multi-label"),
    (MultiLabel(), {"y": np.full((6, 2), 3)}, "12 of its train targets are not 0 or 1"),
    (MultiLabel(), {"y": [0, 1] * 3}, "it has one label: use --task binary"),
])
def test_targets_that_do_not_fit_are_refused_with_the_way_out(task, targets, words) -> None:
    with pytest.raises(BadRequest) as refused:
        task.fit(JOB, arrays(targets))
    assert str(refused.value).startswith("--dataset 'mine:rows': ")
    assert words in str(refused.value)


def test_labelled_images_serve_other_tasks_without_a_copy() -> None:
    part = image_part(np.zeros((4, 8, 8, 1), np.uint8), np.array([0, 1, 1, 0]))
    images = image_set("digits", part, part, part, classes=2, scale=1 / 16)
    data = Regression().fit(JOB, images)
    assert (images.kind, data.kind) == ("images", "arrays")
    assert data.train.inputs["x"] is part.images
    assert (data.images, data.scale, data.input_shape) == (frozenset({"x"}), 1 / 16, (8, 8, 1))
    assert Binary().outputs(Binary().fit(JOB, images)) == 1


class Late(ComputedPart):
    """Rows that are computed when they are asked for."""

    def __len__(self) -> int:
        return 40

    @property
    def input_fields(self) -> tuple[ArrayField, ...]:
        return (ArrayField("x", (), "float32"),)

    @property
    def target_fields(self) -> tuple[ArrayField, ...]:
        return (ArrayField("y", (), "int64"),)

    def gather(self, indices: Any, epoch: int = 0) -> Any:
        return {"x": indices.astype(np.float32) + epoch}, {"y": indices % 2}


def test_rows_that_are_computed_later_are_converted_then() -> None:
    late = Late({}, {})
    fitted = Regression().fit(JOB, ExampleSet("mine:rows", late, late, late))
    assert fitted.targets == (ArrayField("y", (), "float32"),)
    inputs, targets = fitted.train.gather(np.array([3, 4]), epoch=2)
    assert (inputs["x"].tolist(), targets["y"].dtype, targets["y"].tolist()) == ([5.0, 6.0], np.float32, [1.0, 0.0])
    assert len(fitted.train) == 40


# -- streams


def test_a_stream_is_refused_where_its_own_order_cannot_be_the_schedule() -> None:
    stream = arrays({"y": np.zeros(6)}, in_order=True)
    waiting = Job(dataset="mine:rows", model="mine:net", engine="tensorflow", strategy="parameter-server", servers=1)
    with pytest.raises(BadRequest, match="asynchronous workers take examples by index: choose a synchronous strategy"):
        check_stream(waiting, stream)
    with pytest.raises(BadRequest, match="--sharding off: 'mine:rows' is a stream, which has one order"):
        check_stream(JOB.model_copy(update={"sharding": "off"}), stream)
    check_stream(JOB, stream)
    check_stream(waiting, arrays({"y": np.zeros(6)}))


def test_an_epoch_of_a_stream_is_its_own_order_dealt_in_turn() -> None:
    schedule = in_order(10, 4, 2)
    assert [schedule.partition(rank).indices.tolist() for rank in (0, 1)] == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]
    assert schedule.steps == 3


class Computed(ComputedPart):
    """Rows that exist only when they are asked for."""

    def __init__(self, targets: np.ndarray) -> None:
        super().__init__({}, {})
        object.__setattr__(self, "_all", targets)

    def __len__(self) -> int:
        return len(self._all)

    @property
    def target_fields(self) -> tuple[ArrayField, ...]:
        return (ArrayField("y", self._all.shape[1:], "float32"),)

    def gather(self, indices: np.ndarray, epoch: int = 0) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        return {}, {"y": self._all[indices]}


def test_r2_of_computed_rows_is_counted_from_the_mean_of_all_of_them() -> None:
    """Also where the first rows are not like the others; training rows would take an epoch to read."""
    targets = np.concatenate([np.zeros((2000, 2)), np.ones((1000, 2))]).astype(np.float32)
    part = Computed(targets)
    data = ExampleSet("own", part, part, part)
    np.testing.assert_allclose(Regression().centre(data, "test"), [1 / 3, 1 / 3])
    assert np.isnan(Regression().centre(data, "train")).all()
