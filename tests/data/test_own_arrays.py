"""Arrays in an npz file or from the user's function: what is taken as it is, what is made fit, what is refused."""

from __future__ import annotations

import struct
import sys
import zipfile

import numpy as np
import pytest

from velodrome import machine
from velodrome.data import catalogue
from velodrome.errors import BadRequest

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("own_cache")]


def arrays(count=60, test=20, classes=3, shape=(4, 5)):
    random = np.random.default_rng(0)
    return {
        "x_train": random.integers(0, 256, (count, *shape)).astype(np.uint8), "y_train": np.arange(count) % classes,
        "x_test": random.integers(0, 256, (test, *shape)).astype(np.uint8), "y_test": np.arange(test) % classes,
    }


def load(tmp_path, given, bad_data="fail"):
    path = tmp_path / "set.npz"
    np.savez(path, **given)
    return catalogue.load(f"path:{path}", seed=1, validation=0.1, bad_data=bad_data)


def test_bytes_stay_as_they_are_and_the_test_set_too(tmp_path):
    given = arrays()
    splits = load(tmp_path, given)
    assert np.array_equal(splits.test.images[..., 0], given["x_test"])
    assert np.array_equal(splits.test.labels, given["y_test"])
    both = [*splits.train.images[..., 0], *splits.validation.images[..., 0]]
    assert sorted(image.tobytes() for image in both) == sorted(image.tobytes() for image in given["x_train"])
    assert (len(splits.train), len(splits.validation)) == (54, 6)
    about = catalogue.describe(f"path:{tmp_path / 'set.npz'}", validation=0.1)
    assert (about.train, about.test, about.input_shape, about.classes) == (54, 20, (4, 5, 1), 3)


def test_the_heads_of_the_arrays_tell_sizes_before_anything_is_read(tmp_path):
    np.savez(tmp_path / "set.npz", **arrays(shape=(4, 5, 3)))
    about = catalogue.describe(f"path:{tmp_path / 'set.npz'}", validation=0.1)
    assert (about.train, about.validation, about.test) == (54, 6, 20)
    assert (about.input_shape, about.classes) == ((4, 5, 3), 3)


@pytest.mark.parametrize(
    ("turn", "noted"),
    [
        (lambda x: x / 255.0, True),
        (lambda x: (x / 255.0).astype(np.float32), True),
        (lambda x: x.astype(np.float64), True),
        (lambda x: x.astype(np.int64), False),
    ],
)
def test_fractions_and_other_numbers_become_the_same_bytes(tmp_path, turn, noted):
    given = arrays()
    splits = load(tmp_path, {key: turn(array) if key[0] == "x" else array for key, array in given.items()})
    assert np.array_equal(splits.test.images[..., 0], given["x_test"])
    assert bool(splits.notes) == noted


def test_truth_values_and_zeros_and_ones_are_black_and_white(tmp_path):
    given = arrays()
    for kind in (np.bool_, np.uint8):
        black = {key: (array > 127).astype(kind) if key[0] == "x" else array for key, array in given.items()}
        assert set(np.unique(load(tmp_path, black).test.images)) == {0, 255}


def test_single_bad_examples_are_named_and_left_out(tmp_path):
    given = arrays()
    given["x_train"] = given["x_train"] / 255.0
    given["x_train"][3, 0, 0] = np.nan
    given["x_train"][7, 1, 1] = np.inf
    given["y_train"] = given["y_train"].astype(float)
    given["y_train"][11] = 1.5
    given["y_train"][12] = -1
    given["y_test"][4] = 9
    with pytest.raises(BadRequest) as no:
        load(tmp_path, given)
    for named in ("x_train[3]", "x_train[7]", "y_train[11]: 1.5", "y_train[12]: -1", "y_test[4]: 9"):
        assert named in str(no.value)
    splits = load(tmp_path, given, "skip")
    assert len(splits.train) + len(splits.validation) == 56
    assert len(splits.test) == 19
    assert len(splits.notes) == 4


def test_a_huge_label_costs_no_memory(tmp_path):
    given = arrays()
    given["y_train"] = given["y_train"].astype(np.int64)
    given["y_train"][0] = 2**60
    assert load(tmp_path, given, "skip").classes == 3


def test_a_class_that_no_example_has_is_left_out(tmp_path):
    given = arrays()
    given["y_train"], given["y_test"] = given["y_train"] * 2, given["y_test"] * 2
    with pytest.raises(BadRequest, match=r"classes without training images: 2 \(1, 3\)"):
        load(tmp_path, given)
    splits = load(tmp_path, given, "skip")
    assert splits.class_names == ("0", "2", "4")
    assert set(splits.test.labels) == {0, 1, 2}


def test_labels_may_be_words(tmp_path):
    given = arrays()
    for key in ("y_train", "y_test"):
        given[key] = np.array(["pear", "fig", "kiwi"])[given[key]]
    splits = load(tmp_path, given)
    assert splits.class_names == ("fig", "kiwi", "pear")
    assert [splits.class_names[label] for label in splits.test.labels[:3]] == ["pear", "fig", "kiwi"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"y_train": np.zeros(3, int)}, "x_train holds 60 examples and y_train 3 labels"),
        ({"x_train": None}, "no array 'x_train'"),
        ({"y_test": None}, "no array 'y_test'"),
        ({"x_train": np.zeros((60, 20))}, r"x_train have the shape \(20,\), of x_test \(4, 5\); make them alike"),
        ({"x_train": np.zeros((60, 3, 32, 32))}, r"x_train have the shape \(3, 32, 32\), of x_test"),
        ({"x_test": np.zeros((20, 4, 6))}, "make them alike"),
        ({"y_train": np.eye(3)[np.arange(60) % 3]}, "argmax"),
        ({"x_train": np.array(["a"] * 60)}, "inputs are numbers"),
        ({"y_train": np.zeros(60, int)}, "training needs two"),
        ({"x_train": np.array(3.0)}, "x_train is the single value '3.0'"),
        ({"y_test": np.array(1)}, "y_test is the single value '1'"),
        ({"y_test": np.array(["0", "1"] * 10)}, "y_train holds numbers, y_test holds words; give the labels"),
        ({"y_train": np.array(["0", "1"] * 30)}, "y_train holds words, y_test holds numbers"),
    ],
)
def test_arrays_that_cannot_be_understood_are_refused_whatever_the_policy(tmp_path, change, why):
    given = {key: array for key, array in {**arrays(), **change}.items() if array is not None}
    with pytest.raises(BadRequest, match=why):
        load(tmp_path, given, "skip")


def test_a_pickle_is_never_loaded(tmp_path):
    given = {**arrays(), "y_train": np.array([{"a": 1}] * 60, dtype=object)}
    np.savez(tmp_path / "set.npz", **given)
    with pytest.raises(BadRequest, match="Python objects, which are never loaded"):
        catalogue.load(f"path:{tmp_path / 'set.npz'}", seed=1, validation=0.1)


@pytest.mark.parametrize("payload", [b"", b"PK\x03\x04 broken", b"no archive at all"])
def test_what_is_no_npz_file_is_refused(tmp_path, payload):
    (tmp_path / "set.npz").write_bytes(payload)
    with pytest.raises(BadRequest, match="cannot be read"):
        catalogue.describe(f"path:{tmp_path / 'set.npz'}")


def spoil(path, change):
    """Change an npz file so that one of its arrays cannot be unpacked."""
    with zipfile.ZipFile(path, "a") as archive:
        info = archive.getinfo("x_train.npy")
        archive.writestr("more", b"")  # so that the directory is written anew when it is closed
        for field, value in change.items():
            setattr(info, field, value)
        info.extra = b""


@pytest.mark.parametrize(
    ("change", "why"),
    [({"compress_type": 9}, "compression"), ({"flag_bits": 1}, "encrypted"), ({"header_offset": 1}, "magic")],
)
def test_an_npz_file_that_cannot_be_unpacked_is_refused_in_one_sentence(tmp_path, change, why):
    np.savez(tmp_path / "set.npz", **arrays())
    spoil(tmp_path / "set.npz", change)
    with pytest.raises(BadRequest, match=rf"set.npz' cannot be read: .*{why}.*; write it with"):
        catalogue.load(f"path:{tmp_path / 'set.npz'}", seed=1, validation=0.1)
    with pytest.raises(BadRequest, match="cannot be read"):
        catalogue.describe(f"path:{tmp_path / 'set.npz'}")


def test_an_npz_file_whose_packed_bytes_are_damaged_is_refused_in_one_sentence(tmp_path):
    path = tmp_path / "set.npz"
    np.savez_compressed(path, **arrays())
    with zipfile.ZipFile(path) as archive:
        begin = archive.getinfo("x_train.npy").header_offset
    data = bytearray(path.read_bytes())
    names = struct.unpack("<HH", data[begin + 26 : begin + 30])
    data[begin + 30 + sum(names)] = 0x07  # a block of a kind that deflate does not have
    path.write_bytes(bytes(data))
    with pytest.raises(BadRequest, match=r"cannot be read: .*invalid block type; write it with"):
        catalogue.load(f"path:{path}", seed=1, validation=0.1)


def test_an_npz_file_with_a_single_value_is_refused_when_it_is_described(tmp_path):
    np.savez(tmp_path / "set.npz", x_train=np.array(1.0), y_train=np.arange(3))
    with pytest.raises(BadRequest, match=r"x_train is the single value '1\.0'"):
        catalogue.describe(f"path:{tmp_path / 'set.npz'}")


MODULE = '''
import numpy as np
x = np.arange(60 * 16).reshape(60, 4, 4) % 256
y = np.arange(60) % 3
def four(): return x[:45], y[:45], x[45:], y[45:]
def pairs(): return (x[:45], y[:45]), (x[45:], y[45:])
def mapping(): return {"x_train": x[:45], "y_train": y[:45], "x_test": x[45:], "y_test": y[45:]}
def two(): return x, y
def each():
    for image, label in zip(x, y): yield image, label
def random(): return np.random.randint(0, 256, (60, 4, 4)), y
def mixed(): return [(np.zeros((4, 4)), 0)] * 9 + [(np.full((4, 4), 9.0), 1)] * 9 + [(np.zeros((2, 2)), 1)]
def ragged(): return [*[(np.full((4, 4), n % 2), n % 2) for n in range(60)], ([[1, 2], [3]], 0), (x[0], [0, [1]])]
def words(): return [*[(np.full((4, 4), n % 2), n % 2) for n in range(60)], (x[0], "one"), (x[0], [1, 0])]
def all_ragged(): return [([[1, 2], [3]], 0)] * 3
def uneven(): return [[1, 2], [3]], [0, 1]
def endless():
    while True: yield x[0], 0
def nothing(): return iter(())
def number(): return 42
def triples(): return [(1, 2, 3)]
not_callable = 3
'''


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "my_own_data.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield "my_own_data"
    sys.modules.pop("my_own_data", None)


def call(name, bad_data="fail", seed=1):
    return catalogue.load(name, seed=seed, validation=0.2, bad_data=bad_data)


@pytest.mark.parametrize("function", ["four", "pairs", "mapping"])
def test_a_function_returns_a_training_and_a_test_set(module, function):
    splits = call(f"{module}:{function}")
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (36, 9, 15)
    assert splits.input_shape == (4, 4, 1)
    assert splits.test.images[0, 0, 0, 0] == 45 * 16 % 256


@pytest.mark.parametrize("function", ["two", "each"])
def test_a_function_without_a_test_set_gives_a_fifth_of_it(module, function):
    splits = call(f"{module}:{function}")
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (38, 10, 12)


def test_chance_in_a_function_is_the_same_for_every_worker(module):
    first, again, other = (call(f"{module}:random", seed=seed).test.images for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_nothing_is_imported_to_describe_or_prepare(module):
    about = catalogue.describe(f"{module}:four")
    catalogue.prepare(f"{module}:four")
    assert (about.train, about.input_shape, about.classes) == (None, None, None)
    assert module not in sys.modules


def test_examples_of_another_shape_are_bad_data(module):
    with pytest.raises(BadRequest, match=r"another shape than most \(\(4, 4\)\): 1 \(item 18: \(2, 2\)\)"):
        call(f"{module}:mixed")
    assert call(f"{module}:mixed", "skip").classes == 2


@pytest.mark.parametrize(
    ("function", "why"),
    [("nothing", "returned no examples"), ("all_ragged", "no examples that can be used: .*of one length: 3"),
     ("uneven", "the rows of x_train are not of one shape"), ("number", "returned int"),
     ("triples", "not a pair of image and label"),
     ("absent", "has no 'absent'"), ("not_callable", "is not a function")],
)
def test_what_a_function_may_not_be_or_return(module, function, why):
    with pytest.raises(BadRequest, match=why):
        call(f"{module}:{function}")


@pytest.mark.parametrize(
    ("function", "why"),
    [("ragged", r"rows are not of one length: 2 \(item 60, item 61\)"),
     ("words", r"labels of another shape .*item 61: \(2,\).*"
               r"labels of another kind than most \(numbers\): 1 \(item 60")],
)
def test_single_examples_that_are_no_arrays_are_bad_data(module, function, why):
    with pytest.raises(BadRequest, match=why):
        call(f"{module}:{function}")
    splits = call(f"{module}:{function}", "skip")
    assert len(splits.train) + len(splits.validation) + len(splits.test) == 60


def test_an_iterable_that_does_not_end_is_ended(module, monkeypatch):
    monkeypatch.setattr(machine, "available_memory", lambda: 3 << 20)
    with pytest.raises(BadRequest, match=r"the first 2,\d\d\d examples .* take 1\.0 MiB, .* and more follow: end it"):
        call(f"{module}:endless")


def test_a_module_that_is_not_there_is_refused_before_anything_starts(module):
    with pytest.raises(BadRequest, match="no module named 'nowhere_to_be_found'"):
        catalogue.prepare("nowhere_to_be_found:load")
    with pytest.raises(BadRequest, match="no module named 'nowhere_to_be_found'"):
        call("nowhere_to_be_found:load")
