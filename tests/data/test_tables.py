"""Tables of numbers and categories: what becomes of their columns, what is refused, and what is stored."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from velodrome.api import datasets
from velodrome.data import catalogue
from velodrome.data.own.encoding import Encoding, encode_row
from velodrome.errors import BadRequest

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("own_cache")]

CITIES = ("Bonn", "Ulm", "Kiel")


def houses(count=100):
    """Rows as a user would write them: two numbers, a category, a price that follows from them."""
    random = np.random.default_rng(3)
    rows = []
    for number in range(count):
        area, age, city = 50 + 100 * random.random(), int(random.integers(0, 90)), CITIES[number % 3]
        rows.append({"area": f"{area:.3f}", "age": str(age), "city": city, "price": f"{2000 * area - 300 * age:.2f}"})
    return rows


def write(path, rows, mark=","):
    with path.open("w", newline="", encoding="utf-8") as stream:
        out = csv.DictWriter(stream, fieldnames=list(rows[0]), delimiter=mark)
        out.writeheader()
        out.writerows(rows)
    return path


def load(name, bad_data="fail", seed=1):
    return catalogue.load_examples(f"path:{name}", seed=seed, validation=0.1, bad_data=bad_data)


def all_parts(data):
    return data.train, data.validation, data.test


def test_numbers_are_standardised_with_the_training_rows_only(tmp_path):
    data = load(f"{write(tmp_path / 'houses.csv', houses())}?target=price&features=area,age")
    assert [len(part) for part in all_parts(data)] == [72, 8, 20]
    features = data.train.inputs["features"]
    assert features.dtype == np.float32
    np.testing.assert_allclose(features.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(features.std(axis=0), 1, atol=1e-6)
    assert abs(data.test.inputs["features"].mean()) > 1e-4, "the test rows have a mean of their own"
    # An independent computation: undo it and find every row of the file, and no other.
    about = {column["name"]: column for column in data.columns["features"]}
    found = set()
    for part in all_parts(data):
        for row in part.inputs["features"].astype(float):
            area, age = (about[name]["mean"] + value * about[name]["deviation"]
                         for name, value in zip(("area", "age"), row, strict=True))
            found.add((round(area, 3), round(age)))
    assert found == {(float(row["area"]), int(row["age"])) for row in houses()}


def test_a_target_with_fractions_is_regression_and_standardised_unless_not_wanted(tmp_path):
    path = write(tmp_path / "houses.csv", houses())
    scaled, own = load(f"{path}?target=price"), load(f"{path}?target=price&scale-target=no")
    assert catalogue.implied_task(f"path:{path}?target=price") == "regression"
    assert scaled.train.targets["y"].shape == (72,)
    np.testing.assert_allclose(scaled.train.targets["y"].std(), 1, atol=1e-5)
    assert any(note.startswith("target 'price' is standardised: mean") for note in scaled.notes)
    prices = np.array(sorted(float(row["price"]) for row in houses()), np.float32)
    np.testing.assert_array_equal(np.sort(np.concatenate([part.targets["y"] for part in all_parts(own)])), prices)
    assert own.classes is None


def test_categories_become_columns_of_0_and_1_or_indices(tmp_path):
    path = write(tmp_path / "houses.csv", houses())
    hot = load(f"{path}?target=price&features=city,area").train.inputs
    assert hot["features"].shape == (72, 4)
    assert (hot["features"][:, :3].sum(axis=1) == 1).all()
    indexed = load(f"{path}?target=price&features=city,area&categories=index").train
    assert indexed.inputs["features"].shape == (72, 1)
    assert indexed.inputs["categories"].dtype == np.int64
    assert set(indexed.inputs["categories"].ravel()) == {1, 2, 3}
    np.testing.assert_array_equal(hot["features"][:, :3].argmax(axis=1) + 1, indexed.inputs["categories"][:, 0])


@pytest.mark.parametrize(
    ("column", "task", "classes"),
    [
        (lambda row, place: row["city"], "classification", ("Bonn", "Kiel", "Ulm")),
        (lambda row, place: str(place % 4 + 2), "classification", ("2", "3", "4", "5")),
        (lambda row, place: str(place), "regression", ("out",)),
        (lambda row, place: f"{place}.5", "regression", ("out",)),
        (lambda row, place: ("yes", "no")[place % 2], "classification", ("no", "yes")),
    ],
)
def test_the_task_follows_from_the_target(tmp_path, column, task, classes):
    rows = [{**row, "out": column(row, place)} for place, row in enumerate(houses())]
    name = f"{write(tmp_path / 'houses.csv', rows)}?target=out&features=area,age"
    data, about = load(name), catalogue.describe(f"path:{name}")
    assert data.columns["task"] == task == about.task == catalogue.implied_task(f"path:{name}")
    assert data.class_names == classes == about.class_names
    assert (about.inputs, about.targets) == (data.inputs, data.targets)
    assert (about.train, about.validation, about.test) == tuple(map(len, all_parts(data)))


def test_whole_numbers_can_be_predicted_as_numbers_and_many_as_classes(tmp_path):
    rows = [{**row, "stars": str(place % 5), "code": str(place // 4)} for place, row in enumerate(houses(120))]
    path = write(tmp_path / "houses.csv", rows)
    assert load(f"{path}?target=stars&features=area&predict=number").columns["task"] == "regression"
    assert load(f"{path}?target=code&features=area&predict=class").classes == 30
    with pytest.raises(BadRequest, match=r"'price' holds fractions such as .*predict=class"):
        load(f"{path}?target=price&predict=class")
    with pytest.raises(BadRequest, match="'city' holds words"):
        load(f"{path}?target=city&predict=number")


def test_several_targets_are_numbers_or_labels(tmp_path):
    rows = [{**row, "a": str(place % 2), "b": str(place // 2 % 2)} for place, row in enumerate(houses())]
    path = write(tmp_path / "houses.csv", rows)
    numbers = load(f"{path}?target=price,age&features=area")
    assert numbers.columns["task"] == "regression"
    assert numbers.train.targets["y"].shape == (72, 2)
    assert numbers.class_names == ("price", "age")
    labels = load(f"{path}?target=a,b&features=area")
    assert (labels.columns["task"], labels.classes) == ("multi-label", 2)
    assert set(np.unique(labels.train.targets["y"])) == {0, 1}
    assert labels.train.targets["y"].dtype == np.int64
    with pytest.raises(BadRequest, match="several targets must all be numbers"):
        load(f"{path}?target=price,city")


def test_a_column_of_parts_divides_the_rows(tmp_path):
    rows = [{**row, "split": ("train", "test", "Validation")[place % 3]} for place, row in enumerate(houses(90))]
    data = load(f"{write(tmp_path / 'houses.csv', rows)}?target=price")
    assert [len(part) for part in all_parts(data)] == [30, 30, 30]
    assert "column 'split' divides the rows: 30 train, 30 validation, 30 test; &part= ignores it" in data.notes
    assert len(data.inputs) == 1
    rows[5]["split"] = "holdout"
    path = write(tmp_path / "wrong.csv", rows)
    with pytest.raises(BadRequest, match=r"rows of an unknown part: 1 \(line 7: holdout\)"):
        load(f"{path}?target=price")
    with pytest.raises(BadRequest, match="the one of parts, and cannot be a feature"):
        load(f"{path}?target=price&part=split&features=split")


def test_a_column_of_parts_with_another_name_is_noticed(tmp_path):
    rows = [{**row, "Usage": ("train", "test")[place % 2]} for place, row in enumerate(houses(90))]
    data = load(f"{write(tmp_path / 'houses.csv', rows)}?target=price")
    assert ("column 'Usage' seems to divide the rows, and is used as a feature: &part=Usage divides them by it"
            in data.notes)


def test_a_split_depends_on_the_seed_and_keeps_classes_in_proportion(tmp_path):
    path = write(tmp_path / "houses.csv", houses(150))
    one, other = (load(f"{path}?target=city", seed=seed) for seed in (1, 2))
    assert not np.array_equal(one.test.inputs["features"], other.test.inputs["features"])
    assert np.bincount(one.test.targets["y"]).tolist() == [10, 10, 10]


def test_missing_cells_have_one_rule_and_are_counted(tmp_path):
    rows = houses()
    rows[1]["area"], rows[2]["area"], rows[3]["city"], rows[4]["age"] = "", "NA", "null", "?"
    rows = [{**row, "part": "train"} for row in rows[:80]] + [{**row, "part": "test"} for row in rows[80:]]
    data = load(f"{write(tmp_path / 'houses.csv', rows)}?target=price&features=area,age,city", "fail")
    assert data.columns["missing"] == {"area": 2, "age": 1, "city": 1}
    assert any(note.startswith("cells without a value: 'area' 2, 'age' 1, 'city' 1; a missing number counts as the "
                               "mean") for note in data.notes)
    features = np.concatenate([data.train.inputs["features"], data.validation.inputs["features"]])
    assert (features[:, 0] == 0).sum() == 2
    assert (features[:, 2:].sum(axis=1) == 0).sum() == 1


def test_a_row_without_a_target_is_bad_data(tmp_path):
    rows = houses()
    rows[7]["price"] = ""
    path = write(tmp_path / "houses.csv", rows)
    with pytest.raises(BadRequest, match=r"rows without a target: 1 \(line 9\)"):
        load(f"{path}?target=price")
    data = load(f"{path}?target=price", "skip")
    assert sum(map(len, all_parts(data))) == 99
    assert "rows without a target: 1 (line 9): left out" in data.notes


@pytest.mark.parametrize(
    ("cell", "why"),
    [
        ("about 80", r"cells of column 'area' that are not numbers like the others: 1 \(line 4: about 80\)"),
        ("=B2*2", r"cells with a formula instead of its value \(save the table with values\): 1 \(line 4: =B2\*2\)"),
        ("inf", r"infinite numbers in column 'area': 1 \(line 4\)"),
    ],
)
def test_a_bad_cell_is_named_by_its_line(tmp_path, cell, why):
    rows = houses()
    rows[2]["area"] = cell
    path = write(tmp_path / "houses.csv", rows)
    with pytest.raises(BadRequest, match=why):
        load(f"{path}?target=price")
    assert sum(map(len, all_parts(load(f"{path}?target=price", "skip")))) == 99


def test_new_rows_are_encoded_as_training_encoded_them(tmp_path):
    rows = [{**row, "part": ("train", "test")[place >= 80]} for place, row in enumerate(houses())]
    for options in ("", "&categories=index"):
        data = load(f"{write(tmp_path / 'houses.csv', rows)}?target=price{options}")
        stored = json.loads(json.dumps(data.columns))
        for place, row in enumerate(rows[80:]):
            for name, encoded in encode_row(stored, row).items():
                np.testing.assert_array_equal(encoded[0], data.test.inputs[name][place])
        unknown = encode_row(stored, {"area": 100.0, "city": "Rome"})
        assert unknown["features"][0, 1] == 0, "a column that the row lacks counts as missing"
        assert (unknown["categories"][0, 0] if options else unknown["features"][0, 2:].sum()) == 0
        assert Encoding.from_json(stored).as_json() == {part: stored[part] for part in ("features", "targets")}
    with pytest.raises(BadRequest, match="'area' is a number, and 'large' is none"):
        encode_row(stored, {"area": "large"})


def test_precision_is_that_of_float32_after_standardising(tmp_path):
    """Times in seconds differ by less than float32 can tell at their size."""
    rows = [{"when": f"{1_700_000_000 + place}", "y": f"{place}.5"} for place in range(100)]
    data = load(f"{write(tmp_path / 'times.csv', rows)}?target=y")
    assert len(np.unique(data.train.inputs["features"])) == 72


def test_a_constant_column_is_zero_and_mentioned(tmp_path):
    rows = [{**row, "country": "0.1"} for row in houses()]
    data = load(f"{write(tmp_path / 'houses.csv', rows)}?target=price&features=country,area")
    assert (data.train.inputs["features"][:, 0] == 0).all()
    assert "the same in every training row, so that nothing can be learned from it: 'country'" in data.notes


def test_numbers_that_are_names_can_be_categories(tmp_path):
    rows = [{**row, "zip": str(53111 + place % 4)} for place, row in enumerate(houses())]
    path = write(tmp_path / "houses.csv", rows)
    assert load(f"{path}?target=price&features=zip&categorical=zip").inputs[0].shape == (4,)
    assert load(f"{path}?target=price&features=zip").inputs[0].shape == (1,)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("?target=cost", r"has no column 'cost' but area, age, city, price: name the right one as .*\?target=COLUMN"),
        ("?target=price&features=rooms", "has no column 'rooms'"),
        ("?target=price&features=price", "'price' is the one to predict, and cannot be a feature"),
        ("?target=price&ignore=area,age,city", "no column is left as a feature"),
        ("?target=price&ignore=area&features=area", "both in features and in ignore"),
        ("?target=", r"name the column to predict as houses.csv\?target=COLUMN"),
        ("?target=price&categories=hash", "categories 'hash'; choose onehot or index"),
        ("?target=price&predict=yes", "predict 'yes'; choose number or class"),
        ("?target=price&colour=red", "no option 'colour'"),
        ("", "no column 'image'.*or the column to predict as houses.csv.target=COLUMN"),
    ],
)
def test_what_is_asked_for_must_be_there(tmp_path, options, why):
    with pytest.raises(BadRequest, match=why):
        load(f"{write(tmp_path / 'houses.csv', houses())}{options}")


def test_a_column_of_names_is_refused_with_the_way_out(tmp_path):
    rows = [{**row, "owner": f"owner {place}"} for place, row in enumerate(houses(1_200))]
    path = write(tmp_path / "houses.csv", rows)
    with pytest.raises(BadRequest, match=r"'owner' has 1,200 different texts.*&ignore=owner, or .*&categories=index"):
        load(f"{path}?target=price")
    assert load(f"{path}?target=price&ignore=owner").inputs[0].shape == (5,)


@pytest.mark.parametrize("ending", ["parquet", "pq"])
def test_parquet_gives_what_csv_gives(tmp_path, ending):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = houses()
    rows[3]["city"] = rows[4]["age"] = ""
    table = pyarrow.table({
        "area": pyarrow.array([float(row["area"]) for row in rows]),
        "age": pyarrow.array([int(row["age"]) if row["age"] else None for row in rows], pyarrow.int16()),
        "city": pyarrow.array([row["city"] or None for row in rows]).dictionary_encode(),
        "price": pyarrow.array([float(row["price"]) for row in rows]),
    })
    parquet.write_table(table, tmp_path / f"houses.{ending}", row_group_size=30)
    one = load(f"{tmp_path / f'houses.{ending}'}?target=price")
    other = load(f"{write(tmp_path / 'houses.csv', rows)}?target=price")
    assert one.columns == other.columns
    for mine, yours in zip(all_parts(one), all_parts(other), strict=True):
        np.testing.assert_array_equal(mine.inputs["features"], yours.inputs["features"])
        np.testing.assert_array_equal(mine.targets["y"], yours.targets["y"])


def test_a_parquet_file_of_hardly_any_bytes_and_millions_of_rows_is_refused(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    zeros = pyarrow.array(np.zeros(3_000_000))
    parquet.write_table(pyarrow.table({"a": zeros, "b": zeros}), tmp_path / "packed.parquet", compression="zstd")
    with pytest.raises(BadRequest, match=r"has 3,000,000 rows in [\d,]+ bytes, so nearly all of them are equal"):
        load(f"{tmp_path / 'packed.parquet'}?target=b")


def test_parquet_that_cannot_be_used_is_refused_in_a_sentence(tmp_path, monkeypatch):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "t.parquet"
    path.write_bytes(b"PAR1 but nothing else PAR1")
    with pytest.raises(BadRequest, match=r"cannot read .*t.parquet' as Parquet"):
        load(f"{path}?target=a")
    parquet.write_table(pyarrow.table({"a": [1.5, 2.5], "b": [[1], [2]]}), path)
    with pytest.raises(BadRequest, match=r"column 'b' holds list<.*: leave it out with &ignore=b"):
        load(f"{path}?target=a")
    with pytest.raises(BadRequest, match=r"name the column to predict as t.parquet\?target=COLUMN"):
        load(path)
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(BadRequest, match=r"pip install 'velodrome\[tables\]'"):
        load(f"{path}?target=a")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"a,b\n1,2\n3,\x004\n", "NUL"),
        ("a,b\n1,2\n".encode("utf-16"), "not UTF-8"),
        (b"a,b\n1,\xff\n", "not UTF-8"),
        (b"a,b\n1," + b"9" * (2 << 20) + b"\n", "no rows that can be used|not closed"),
        (b",".join(b"c%d" % place for place in range(10_000)) + b"\n", "has 10,000 columns, but at most 4,096"),
        (b"b,b\n1,2\n", "two columns 'b'"),
        (b"", "no column 'b'"),
        (b"a,b\n", "no values|no rows"),
        (b"a,b\n,1.5\n,2.5\n", "column 'a' has no values: leave it out with &ignore=a"),
        (b"a,b\n1,1.5\n", "there are 1 examples to train on"),
        (b"a,b\n1,x\n2,x\n3,x\n", "1 classes that can be used, but training needs two"),
    ],
)
def test_hostile_files_get_one_sentence(tmp_path, content, why):
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(BadRequest, match=why) as no:
        load(f"{path}?target=b")
    assert "\n" not in str(no.value)
    assert len(str(no.value)) < 2_000


def test_a_changed_table_is_read_again(tmp_path):
    path = write(tmp_path / "houses.csv", houses(50))
    assert sum(map(len, all_parts(load(f"{path}?target=price")))) == 50
    write(path, houses(80))
    assert sum(map(len, all_parts(load(f"{path}?target=price")))) == 80


def test_data_show_prints_what_was_done_to_each_column(tmp_path, velodrome):
    rows = houses()
    rows[3]["age"] = ""
    name = f"path:{write(tmp_path / 'houses.csv', rows)}?target=price"
    printed = velodrome("data", "show", name).out
    for words in ("72 examples to train on, 8 for validation, 20 for test; regression", "features 5 float32",
                  "deviation", "3 categories, onehot: Bonn, Kiel", "cells without a value: 'age' 1"):
        assert words in printed
    shown = json.loads(velodrome("data", "show", name, "--json").out)
    assert [column["name"] for column in shown["columns"]["features"]] == ["area", "age", "city"]
    assert shown["columns"]["missing"] == {"age": 1}


def test_a_row_is_encoded_by_what_a_models_folder_stores(tmp_path):
    data = load(f"{write(tmp_path / 'houses.csv', houses())}?target=price")
    (tmp_path / "columns.json").write_text(json.dumps(data.columns))
    row = {"area": "80", "age": 7, "city": "Ulm"}
    by_folder, by_columns = (datasets.encode_row(each, row) for each in (tmp_path, data.columns))
    np.testing.assert_array_equal(by_folder["features"], by_columns["features"])
    with pytest.raises(BadRequest, match="give the folder of a model of a table"):
        datasets.encode_row(tmp_path / "no.json", row)
