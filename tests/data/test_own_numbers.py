"""Arrays that are no images of bytes: floats without rounding, sequences, several inputs and targets."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from velodrome.data import catalogue
from velodrome.errors import BadRequest

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("own_cache")]

RANDOM = np.random.default_rng(5)


def from_npz(tmp_path, given):
    flat = {}
    for key, value in given.items():
        named = isinstance(value, dict)
        flat.update({f"{key}.{one}": array for one, array in value.items()} if named else {key: value})
    np.savez(tmp_path / "set.npz", **flat)
    return f"path:{tmp_path / 'set.npz'}"


@pytest.fixture
def from_function(tmp_path, monkeypatch):
    """Writes nothing: the module that the function is in exists only here."""

    def name_of(_, given):
        module = type(sys)("own_numbers")
        module.load = lambda: given
        module.load.__module__ = "own_numbers"
        monkeypatch.setitem(sys.modules, "own_numbers", module)
        return "own_numbers:load"

    return name_of


@pytest.fixture(params=["npz", "function"])
def named(request, from_function):
    return from_npz if request.param == "npz" else from_function


def load(name, bad_data="fail"):
    return catalogue.load_examples(name, seed=1, validation=0.25, bad_data=bad_data)


def rows_of(data, side, name):
    arrays = [getattr(part, side)[name] for part in (data.train, data.validation, data.test)]
    return sorted(np.asarray(row).tobytes() for array in arrays for row in array)


@pytest.mark.parametrize("shape", [(7,), (5, 3), (6, 6), (4, 4, 3), (3, 8, 8)])
def test_floats_of_any_shape_arrive_bit_by_bit(tmp_path, named, shape):
    x = RANDOM.normal(size=(40, *shape)).astype(np.float32)
    data = load(named(tmp_path, {"x_train": x, "y_train": np.arange(40) % 2}))
    assert data.kind == "arrays"
    assert rows_of(data, "inputs", "x") == sorted(row.tobytes() for row in x)
    assert (data.classes, data.class_names) == (2, ("0", "1"))
    assert data.images == (frozenset({"x"}) if shape == (4, 4, 3) else frozenset())
    assert [len(part) for part in (data.train, data.validation, data.test)] == [24, 8, 8]


def test_float_images_between_0_and_1_are_bytes_only_if_nothing_is_lost(tmp_path, named):
    bytes_ = RANDOM.integers(0, 256, (40, 6, 6)).astype(np.uint8)
    labels = np.arange(40) % 2
    exact = load(named(tmp_path, {"x_train": (bytes_ / 255).astype(np.float32), "y_train": labels}))
    assert exact.kind == "images"
    assert sorted(image.tobytes() for part in (exact.train, exact.validation, exact.test) for image in part.images) == (
        sorted(image.tobytes() for image in bytes_))
    between = ((bytes_ + 0.25) / 256).astype(np.float32)
    data = load(named(tmp_path, {"x_train": between, "y_train": labels}))
    assert rows_of(data, "inputs", "x") == sorted(row.tobytes() for row in between)


def test_a_float_target_is_regression_also_of_images(tmp_path, named):
    given = {"x_train": RANDOM.integers(0, 256, (40, 4, 4, 1)).astype(np.uint8),
             "y_train": RANDOM.normal(size=(40, 2)).astype(np.float32)}
    name = named(tmp_path, given)
    data = load(name)
    assert (data.images, data.inputs[0].dtype, data.targets[0].shape) == (frozenset({"x"}), "uint8", (2,))
    assert rows_of(data, "targets", "y") == sorted(row.tobytes() for row in given["y_train"])
    if name.startswith("path:"):
        assert catalogue.implied_task(name) == "regression"
        assert catalogue.describe(name, validation=0.25).targets == data.targets


def test_sequences_of_integers_stay_integers(tmp_path, named):
    x = RANDOM.integers(0, 10_000, (40, 12)).astype(np.int32)
    data = load(named(tmp_path, {"x_train": x, "y_train": np.array(["no", "yes"])[np.arange(40) % 2]}))
    assert data.inputs[0].dtype == "int64"
    assert rows_of(data, "inputs", "x") == sorted(row.tobytes() for row in x.astype(np.int64))
    assert data.class_names == ("no", "yes")


def test_yes_and_no_stay_so_and_engines_make_numbers_of_them(tmp_path, named):
    x = RANDOM.random((40, 6)) < 0.5
    data = load(named(tmp_path, {"x_train": x, "y_train": np.arange(40) % 2}))
    (field,) = data.inputs
    assert (field.dtype, rows_of(data, "inputs", "x")) == ("bool", sorted(row.tobytes() for row in x))


def test_several_inputs_and_targets_have_names(tmp_path, named):
    number = np.arange(40)
    given = {
        f"{letter}_{part}": arrays for part, rows in (("train", slice(0, 30)), ("test", slice(30, 40)))
        for letter, arrays in (
            ("x", {"age": number[rows].astype(np.float32), "words": np.stack([number[rows]] * 3, 1)}),
            ("y", {"price": number[rows] * 2.0, "kind": number[rows] % 3}),
        )
    }
    data = load(named(tmp_path, given))
    assert data.input_shape == {"age": (), "words": (3,)}
    assert {one.name: one.dtype for one in data.targets} == {"price": "float32", "kind": "int64"}
    for part in (data.train, data.validation, data.test):
        inputs, targets = part.gather(np.arange(len(part)))
        np.testing.assert_array_equal(inputs["age"], inputs["words"][:, 1])
        np.testing.assert_array_equal(inputs["age"] * 2, targets["price"])
        np.testing.assert_array_equal(inputs["words"][:, 0] % 3, targets["kind"])
    np.testing.assert_array_equal(data.test.inputs["age"], number[30:])


def test_a_matrix_of_0_and_1_is_labels_and_one_hot_rows_are_refused(tmp_path, named):
    x = RANDOM.normal(size=(40, 3))
    data = load(named(tmp_path, {"x_train": x, "y_train": RANDOM.integers(0, 2, (40, 4))}))
    assert data.classes == 4
    with pytest.raises(BadRequest, match=r"every row of y_train has a single 1.*argmax"):
        load(named(tmp_path, {"x_train": x, "y_train": np.eye(4, dtype=int)[np.arange(40) % 4]}))


def test_examples_with_nan_are_bad_data(tmp_path, named):
    x, y = RANDOM.normal(size=(40, 3)), RANDOM.normal(size=40)
    x[3, 1], x[5, 0], y[7] = np.nan, 1e300, np.inf
    name = named(tmp_path, {"x_train": x, "y_train": y})
    with pytest.raises(BadRequest, match=r"examples with NaN or infinity: 2 \(x_train\[3\], x_train\[5\]\); targets "
                       r"that are NaN or infinite: 1 \(y_train\[7\]\)"):
        load(name)
    data = load(name, "skip")
    assert sum(map(len, (data.train, data.validation, data.test))) == 37
    assert len(data.notes) == 2


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"x_train": {"a": np.zeros((4, 2))}, "y_train": np.zeros(3)}, "x_train.a holds 4 examples and y_train 3"),
        ({"x_train": {"y": np.zeros((4, 2))}, "y_train": np.zeros(4)}, "'y' names both an input and a target"),
        ({"x_train": np.zeros((4, 0)), "y_train": np.zeros(4)}, "which holds no numbers"),
        ({"x_train": np.zeros((9, 2)), "y_train": {"a": np.array(["b"] * 9), "b": np.zeros(9)}},
         "in a single target only"),
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(tmp_path, named, given, why):
    with pytest.raises(BadRequest, match=why):
        load(named(tmp_path, given))
