"""Data set objects of PyTorch, TensorFlow and Hugging Face, and transforms: which example is read when, and by whom."""

from __future__ import annotations

import itertools
import sys

import numpy as np
import pytest

from velodrome.data import catalogue
from velodrome.data.own import objects
from velodrome.data.own.functions import rng_of, with_transform
from velodrome.data.pixels import transform_of_arrays
from velodrome.errors import BadRequest, RunFailed, UserCodeError
from velodrome.tasks.schedule import Prefetch, by_data, in_order

RANDOM = np.random.default_rng(2)
pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("own_cache")]


class Squares:
    """Map-style, without any framework: item `i` is (i, i squared), and its class is the last digit."""

    def __init__(self, count=60, label=lambda i: i % 3):
        self.count, self.label, self.asked = count, label, []

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.asked.append(index)
        return np.array([index, index**2], np.float64), self.label(index)


@pytest.fixture
def load(monkeypatch):
    def loaded(returned, bad_data="fail"):
        module = type(sys)("own_objects")
        module.load = lambda: returned
        module.load.__module__ = "own_objects"
        monkeypatch.setitem(sys.modules, "own_objects", module)
        return catalogue.load_examples("own_objects:load", seed=1, validation=0.1, bad_data=bad_data)

    return loaded


def numbers(part, name="x"):
    return [int(row[0]) for row in part.gather(np.arange(len(part)))[0][name]]


def test_a_map_style_data_set_is_read_by_index_when_it_is_needed(load):
    squares = Squares()
    data = load(squares)
    assert [len(part) for part in (data.train, data.validation, data.test)] == [43, 5, 12]
    assert sorted([*numbers(data.train), *numbers(data.validation), *numbers(data.test)]) == list(range(60))
    assert (data.classes, data.inputs[0].dtype, data.train.in_memory) == (3, "float32", False)
    squares.asked.clear()
    inputs, targets = data.train.gather(np.array([4, 0, 7]))
    assert squares.asked == data.train.positions[[4, 0, 7]].tolist()
    np.testing.assert_array_equal(inputs["x"][:, 0] ** 2, inputs["x"][:, 1])
    np.testing.assert_array_equal(targets["y"], inputs["x"][:, 0] % 3)


def test_it_sees_the_schedule_that_arrays_would_have(load):
    data = load((Squares(40), Squares(10)))
    indices = by_data(len(data.train), 8, 2, seed=1, epoch=3).partition(1)
    ahead = Prefetch(data.train)
    ahead.begin(indices.indices, indices.offsets, 3)
    seen = [ahead.rows(low, high)[0]["x"][:, 0] for low, high in itertools.pairwise(indices.offsets)]
    np.testing.assert_array_equal(np.concatenate(seen), data.train.positions[indices.indices])
    assert numbers(data.test) == list(range(10))


def test_targets_that_the_object_knows_are_not_read_for(load):
    squares = Squares()
    squares.targets, squares.classes = [i % 3 for i in range(60)], ["red", "green", "blue"]
    data = load(squares)
    assert squares.asked == [0]
    assert (data.class_names, data.notes) == (("red", "green", "blue"), ())
    assert "was read once to find its class" in load(Squares()).notes[0]


def test_words_are_classes_and_fractions_are_numbers(load):
    assert load(Squares(label=lambda i: ("fig", "kiwi")[i % 2])).class_names == ("fig", "kiwi")
    data = load(Squares(label=lambda i: i / 2))
    assert (data.classes, data.targets[0].dtype) == (None, "float32")


def test_an_item_that_raises_and_a_length_that_changes_are_one_sentence(load):
    class Broken(Squares):
        def __getitem__(self, index):
            if index == 17:
                raise OSError("the photo is gone")
            return super().__getitem__(index)

    with pytest.raises(UserCodeError, match="reading item 17 of 60 failed: OSError: the photo is gone") as no:
        load(Broken())
    assert isinstance(no.value.__cause__, OSError)
    squares = Squares(label=float)
    data = load(squares)
    squares.count = 59
    place = r"\(test_data_objects.py, line \d+\)"
    with pytest.raises(RunFailed, match=f"had 60 examples when training began and has 59 now {place}; its length must"):
        data.train.gather(np.array([0]))


def test_a_length_that_changes_while_items_are_read_is_the_reason_for_one_that_is_missing(load):
    class Shrinking(Squares):
        def __getitem__(self, index):
            self.reads += 1
            if self.training and self.reads > 5:
                self.count = 40
            return super().__getitem__(range(self.count)[index])

    squares = Shrinking(label=float)
    squares.training, squares.reads = False, 0
    data = load(squares)
    squares.training, squares.reads = True, 0
    with pytest.raises(UserCodeError, match="had 60 examples when training began and has 40 now") as no:
        data.train.gather(np.arange(len(data.train)))
    assert isinstance(no.value.__cause__, IndexError)


@pytest.mark.parametrize(
    ("item", "why"),
    [
        ((np.zeros(2),), "item 0 is tuple of 1, but examples are pairs"),
        (("some text", 1), "'x' is str, but examples are numbers; turn text into numbers first"),
        ({"a": 1.0}, "a dictionary of a, without a target"),
        ({"a": 1.0, "label": object()}, "'y' is object, but examples are numbers"),
        (3, "item 0 is int, but examples are pairs"),
    ],
)
def test_items_that_are_no_examples_are_refused(load, item, why):
    class Wrong(Squares):
        def __getitem__(self, index):
            return item

    with pytest.raises(BadRequest, match=why):
        load(Wrong())


def test_items_of_another_shape_are_named(load):
    class Ragged(Squares):
        def __getitem__(self, index):
            return np.zeros(2 + (index == 9)), index / 2

    data = load((Ragged(20), Squares(5, label=float)))
    with pytest.raises(RunFailed, match=r"'x' of item 9 has the shape \(3,\), and that of the first item has \(2,\)"):
        data.train.gather(np.arange(len(data.train)))


def test_pytorch_data_sets_are_recognised(load):
    torch = pytest.importorskip("torch")
    from torch.utils.data import IterableDataset, TensorDataset

    x, y = torch.arange(40.0)[:, None].repeat(1, 3), torch.arange(40) % 2
    parts = {"train": slice(0, 40), "valid": slice(0, 5), "test": slice(5, 9)}
    data = load({part: TensorDataset(x[rows], y[rows]) for part, rows in parts.items()})
    assert [len(part) for part in (data.train, data.validation, data.test)] == [40, 5, 4]
    assert numbers(data.test) == [5, 6, 7, 8]
    assert (data.caveats, data.in_order) == ((), False)

    class Stream(IterableDataset):
        def __iter__(self):
            return ((torch.tensor([float(i)]), i % 2) for i in range(30))

    stream = load(Stream())
    assert stream.in_order
    assert "is a stream, which has no random access" in stream.caveats[0]
    assert sorted([*numbers(stream.train), *numbers(stream.validation), *numbers(stream.test)]) == list(range(30))


def test_a_stream_is_read_in_order_each_worker_its_own(load):
    torch = pytest.importorskip("torch")
    from torch.utils.data import IterableDataset

    class Stream(IterableDataset):
        length = 30

        def __iter__(self):
            return ((torch.tensor([float(i)]), float(i)) for i in range(self.length))

    stream = Stream()
    data = load((stream, stream))
    whole = data.train.positions
    for epoch in (1, 2):
        seen = []
        for rank in (0, 1):
            mine = in_order(len(data.train), 8, 2).partition(rank)
            ahead = Prefetch(data.train)
            ahead.begin(mine.indices, mine.offsets, epoch)
            steps = [(low, high) for low, high in itertools.pairwise(mine.offsets) if high > low]
            seen += [ahead.rows(low, high)[0]["x"][:, 0] for low, high in steps]
        assert sorted(np.concatenate(seen).tolist()) == whole.tolist()
    stream.length = 10
    with pytest.raises(RunFailed, match="the stream had 30 examples when training began and ended after 10 now"):
        data.test.gather(np.arange(30))


def test_hugging_face_data_sets_become_arrays_or_are_read_by_index(load, monkeypatch):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"pixels": datasets.Sequence(datasets.Value("float32"), length=3),
                                  "label": datasets.ClassLabel(names=["no", "yes"])})
    columns = {"pixels": [[i, i / 7, 0] for i in range(40)], "label": [i % 2 for i in range(40)]}
    rows = datasets.Dataset.from_dict(columns, features=features)
    data = load(datasets.DatasetDict({"train": rows, "test": rows.select(range(8))}))
    assert (data.class_names, data.train.in_memory, len(data.test)) == (("no", "yes"), True, 8)
    np.testing.assert_array_equal(data.test.inputs["pixels"][3], np.array([3, 3 / 7, 0], np.float32))

    lazily = load(rows.with_transform(lambda batch: {
        "double": [np.array(row) * 2 for row in batch["pixels"]], "label": batch["label"]}))
    assert (lazily.class_names, lazily.train.in_memory) == (("no", "yes"), False)
    assert sorted(numbers(lazily.train, "double") + numbers(lazily.test, "double")
                  + numbers(lazily.validation, "double")) == [2 * i for i in range(40)]

    monkeypatch.setattr(objects, "memory_budget", lambda share: 1)
    assert not load(rows).train.in_memory
    assert load(rows.to_iterable_dataset()).in_order
    with pytest.raises(BadRequest, match="has the columns pixels, and none is a target"):
        load(rows.remove_columns("label"))


def test_tensorflow_data_sets_become_arrays_or_streams(load, monkeypatch):
    tf = pytest.importorskip("tensorflow")
    x = np.arange(40, dtype=np.float32)[:, None] + 0.25
    dataset = tf.data.Dataset.from_tensor_slices((x, np.arange(40) % 2))
    for one in (dataset, dataset.batch(7), dataset.map(lambda x, y: {"x": x, "label": y}).filter(lambda _: True)):
        data = load(one)
        assert data.train.in_memory
        assert sorted(numbers(data.train) + numbers(data.validation) + numbers(data.test)) == list(range(40))
    with pytest.raises(BadRequest, match="never ends"):
        load(dataset.repeat())
    for last in (7, 8):  # batches of one size are no examples, the last ones less
        cut = load(dataset.batch(last, drop_remainder=True).cache().prefetch(2))
        assert (cut.inputs[0].shape, len(cut.train) + len(cut.validation) + len(cut.test)) == ((1,), 40 - 40 % last)
    rows = load(dataset.batch(4, drop_remainder=True).map(lambda x, y: (x[:, 0], tf.cast(y, tf.float32))))
    assert (rows.inputs[0].shape, rows.targets[0].shape) == ((4,), (4,)), "what map() makes of batches are examples"
    monkeypatch.setattr(objects, "memory_budget", lambda share: 1)
    stream = load(dataset)
    assert stream.in_order
    assert sorted(numbers(stream.train) + numbers(stream.validation) + numbers(stream.test)) == list(range(40))


@pytest.mark.parametrize("small", [True, False])
def test_what_python_raises_in_a_tensorflow_data_set_is_one_sentence(load, monkeypatch, small):
    tf = pytest.importorskip("tensorflow")
    if not small:
        monkeypatch.setattr(objects, "memory_budget", lambda share: 1)

    def generate():
        for place in range(30):
            if place == 17:
                raise OSError("the photo is gone")
            yield [float(place)], place % 2

    signature = (tf.TensorSpec([1], tf.float32), tf.TensorSpec([], tf.int64))
    with pytest.raises(UserCodeError) as no:
        load(tf.data.Dataset.from_generator(generate, output_signature=signature))
    name = "--dataset 'own_objects:load'"
    assert str(no.value) == f"{name}: reading item 17 of the stream failed: OSError: the photo is gone"
    assert "in generate" in str(no.value.__cause__)


@pytest.mark.parametrize("small", [True, False])
def test_names_of_inputs_and_targets_are_those_of_the_tensorflow_data_set(load, monkeypatch, small):
    tf = pytest.importorskip("tensorflow")
    if not small:
        monkeypatch.setattr(objects, "memory_budget", lambda share: 1)
    count = np.arange(40, dtype=np.float32)
    given = {"old": count > 9, "price": count / 7}
    several = load(tf.data.Dataset.from_tensor_slices(({"age": count[:, None]}, given)))
    assert [one.name for one in (*several.inputs, *several.targets)] == ["age", "old", "price"]
    inputs, targets = several.train.gather(np.arange(len(several.train)))
    np.testing.assert_allclose(targets["price"], inputs["age"][:, 0] / 7, rtol=1e-6)
    np.testing.assert_array_equal(targets["old"], inputs["age"][:, 0] > 9)
    named = load(tf.data.Dataset.from_tensor_slices((count, {"kind": np.arange(40) % 3})))
    assert (named.targets[0].name, named.classes) == ("kind", 3)


def test_pixels_that_are_read_one_by_one_have_no_mean_but_transformed_arrays_have(load, transformed):
    class Photos(Squares):
        def __getitem__(self, index):
            return np.full((4, 4, 3), index, np.uint8), index % 2

    with pytest.raises(BadRequest, match="--pixels standardize: 'own_objects:load' is read example by example"):
        transform_of_arrays("standardize", load(Photos()))
    images = RANDOM.integers(0, 256, (40, 4, 4, 1)).astype(np.uint8)
    targets = RANDOM.normal(size=40)
    plain, changed = load((images, targets)), transformed(lambda example, rng: example, (images, targets))
    assert transform_of_arrays("standardize", changed) == transform_of_arrays("standardize", plain)


# -- transforms


@pytest.fixture
def transformed(load, monkeypatch):
    def with_function(function, returned):
        module = type(sys)("own_transform")
        module.change = function
        module.change.__module__ = "own_transform"
        monkeypatch.setitem(sys.modules, "own_transform", module)
        return with_transform("own_transform:change", load(returned), (1,))

    return with_function


def jitter(example, rng):
    example["x"] = example["x"] + rng.normal(size=2)
    return example


def test_a_transform_depends_on_example_and_epoch_and_on_nothing_else(transformed):
    data = transformed(jitter, Squares())
    plain = data.train.part.gather(np.arange(43))[0]["x"]
    together = data.train.gather(np.arange(43), 2)[0]["x"]
    for index in (0, 5, 42):
        alone = data.train.gather(np.array([index]), 2)[0]["x"]
        np.testing.assert_array_equal(alone[0], together[index])
        expected = plain[index] + rng_of((1,), 2, index).normal(size=2)
        np.testing.assert_array_equal(together[index], expected.astype(np.float32))
    assert not np.array_equal(together, data.train.gather(np.arange(43), 3)[0]["x"])


def test_validation_test_and_evaluation_are_untouched(transformed):
    squares = Squares()
    data = transformed(jitter, squares)
    assert sorted(numbers(data.validation) + numbers(data.test) + numbers(data.train)) == list(range(60))


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda example, rng: example["x"], "returned ndarray, but must return the example, a dictionary of x, y"),
        (lambda example, rng: {**example, "x": example["x"][:1]}, r"'x' of shape \(1,\) for example \d+, but it must"),
        (lambda example, rng: {**example, "y": 0.5}, "returned 'y' as float64, but it must stay int64"),
        (lambda example, rng: 1 / 0, r"failed on example \d+ in epoch 1: ZeroDivisionError"),
    ],
)
def test_a_transform_that_does_not_return_the_example_is_refused(transformed, function, why):
    with pytest.raises(RunFailed, match=why):
        transformed(function, Squares()).train.gather(np.arange(4), 1)


def test_a_transform_takes_an_example_and_a_generator(transformed):
    with pytest.raises(BadRequest, match="'change' is called with 2 arguments"):
        transformed(lambda example: example, Squares())
