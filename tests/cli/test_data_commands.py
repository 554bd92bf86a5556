"""`velodrome data`: what list, prepare, show and verify say and write."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "data"))
import tiny_idx
from pictures import write_folders, write_products

from velodrome.data import catalogue


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("VELODROME_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("VELODROME_DATA_MIRROR", "")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def tiny(monkeypatch):
    """A small data set of the MNIST kind in the catalogue."""
    monkeypatch.setitem(catalogue._ours().data_sets, "tiny", tiny_idx.data_set())


def test_the_list_says_what_is_on_this_machine(velodrome, tiny, tmp_path):
    def here() -> dict[str, bool]:
        return {about["name"]: about["here"] for about in velodrome("data", "list", "--json").json()}

    assert here()["digits"]
    assert not here()["tiny"]
    assert velodrome("data", "prepare", "tiny", "--mirror", tiny_idx.write_mirror(tmp_path / "mirror")).code == 0
    assert here()["tiny"]
    shown = velodrome("data", "list").out
    for word in ("fruits", "100×100×3", "fashion-products", "ptb", "929,589", "words", "embedded", "CC BY-SA 4.0"):
        assert word in shown


def test_a_damaged_data_set_does_not_end_the_list(velodrome, tmp_path):
    folder = tmp_path / "cache" / "fashion-products"
    (folder / "images").mkdir(parents=True)
    for table, why in (("id,nothing\n1,2\n", "has no column 'articleType'"), ("id,articleType\n", "no test set")):
        (folder / "styles.csv").write_text(table)
        done = velodrome("data", "list")
        assert done.code == 0, done.text
        assert why in done.out
        assert "ptb" in done.out
        rows = {about["name"]: about for about in velodrome("data", "list", "--json").json()}
        assert rows["fashion-products"]["here"] is None
        assert why in rows["fashion-products"]["notes"][0]


def test_of_many_classes_the_largest_are_shown_and_the_others_summed(velodrome, tmp_path):
    x = np.zeros((45 * 10 + 40 * 5, 4, 4), np.uint8)
    y = np.concatenate([np.repeat(np.arange(45), 10), np.repeat(np.arange(40), 5)])
    np.savez(tmp_path / "many.npz", x_train=x, y_train=y, x_test=x[:90], y_test=np.repeat(np.arange(45), 2))
    done = velodrome("data", "show", "path:many.npz", "--validation", "0")
    assert done.code == 0, done.text
    assert "5 more classes, listed by --json │    50 │          0 │   10" in done.out
    assert "45 classes" in done.out
    assert len(velodrome("data", "show", "path:many.npz", "--json").json()["counts"]) == 45


def test_every_command_takes_a_mirror_and_what_it_prepared_needs_none_later(velodrome, tmp_path):
    write_products(tmp_path / "mirror" / "fashion-products", each=40)
    by_hand = ("data", "show", "fashion-products:gender")
    assert "must be downloaded manually" in velodrome(*by_hand).err
    assert velodrome(*by_hand, "--mirror", "mirror").code == 0
    assert velodrome(*by_hand).code == 0
    for words in (("study", "run", "aws-2023", "--dry-run"), ("study", "show", "aws-2023")):
        assert "data prepare fashion-products" in velodrome(*words).text
        assert "data prepare fashion-products" not in velodrome(*words, "--mirror", "mirror").text
    race = ("race", "--dataset", "fashion-products", "--batch-size", "8", "--dry-run", "--naming", "published")
    assert "-0d-" in velodrome(*race).err  # how many there are is not known
    assert "-58d-" in velodrome(*race, "--mirror", "mirror").err
    assert velodrome("data", "prepare", "fashion-products", "--mirror", "mirror").code == 0
    assert "-58d-" in velodrome(*race).err
    assert "data prepare fashion-products" not in velodrome("study", "show", "aws-2023").text


def test_a_web_mirror_may_be_named_too(velodrome, tiny, tmp_path):
    with tiny_idx.serve(tiny_idx.write_mirror(tmp_path / "mirror")) as server:
        done = velodrome("data", "prepare", "tiny", "--mirror", server.address, "--json")
    assert done.json()["ready"]
    assert done.json()["train"] == 36


def test_what_was_altered_is_found_and_fetched_anew(velodrome, tiny, tmp_path):
    mirror = tiny_idx.write_mirror(tmp_path / "mirror")
    assert velodrome("data", "verify", "tiny").code == 1
    velodrome("data", "prepare", "tiny", "--mirror", mirror)
    done = velodrome("data", "verify", "tiny", "--json")
    assert done.code == 0
    assert [file["state"] for file in done.json()["files"]] == ["ok"] * 4
    labels = tmp_path / "cache" / "tiny" / "train-labels-idx1-ubyte"
    labels.write_bytes(labels.read_bytes()[:-1] + b"\x03")
    done = velodrome("data", "verify", "tiny")
    assert done.code == 1
    assert f"damaged {labels}" in done.out
    assert "velodrome data prepare tiny" in done.out
    velodrome("data", "prepare", "tiny", "--mirror", mirror)
    assert velodrome("data", "verify", "tiny").code == 0


def test_show_draws_a_sheet_and_counts(velodrome, tmp_path):
    done = velodrome("data", "show", "digits", "--out", tmp_path / "digits.png", "--json")
    assert (tmp_path / "digits.png").read_bytes().startswith(b"\x89PNG")
    assert done.json()["counts"][0] == {"class": "0", "train": 128, "validation": 14, "test": 36}
    shown = velodrome("data", "show", "digits").out
    assert "1,294" in shown
    assert (tmp_path / "digits.png").exists()


def test_show_names_its_sheet_after_own_data_without_leaving_the_folder(velodrome, tmp_path):
    folder = write_folders(tmp_path / "photos")
    (folder / "ant" / "bad.png").write_bytes(b"")
    refused = velodrome("data", "show", f"path:../{tmp_path.name}/photos")
    assert "cannot be read: 1 (ant/bad.png: empty file)" in refused.err
    done = velodrome("data", "show", f"path:{folder}", "--bad-data", "skip", "--json").json()
    assert Path(done["sheet"]).name == done["sheet"]
    assert "left out" in done["notes"][0]
    assert "left out" in velodrome("data", "show", f"path:{folder}", "--bad-data", "skip").out
    assert "left out" in velodrome("data", "prepare", f"path:{folder}", "--bad-data", "skip").out


def test_show_of_a_text_counts_words(velodrome, tmp_path):
    (tmp_path / "a.txt").write_text("to be or not to be\n" * 40)
    done = velodrome("data", "show", f"text:{tmp_path / 'a.txt'}", "--json").json()
    assert done["most_frequent"][0] == {"word": "be", "count": 72}
    assert "most frequent: be 72, to 72" in velodrome("data", "show", f"text:{tmp_path / 'a.txt'}").out


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["show", "nonsense"], "no data set 'nonsense'"),
        (["show", "digits", "--out", "a.txt"], "ends in .png"),
        (["show", "digits", "--bad-data", "maybe"], "choose skip or fail"),
        (["verify", "nonsense"], "no data set 'nonsense'"),
        (["prepare", "path:absent"], "no file or folder"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(velodrome, words, shown):
    done = velodrome("data", *words)
    assert done.code == 2
    assert shown in done.err


def test_photographs_with_a_broken_one_become_shards_without_it_when_asked_to(velodrome, tmp_path):
    folder = write_folders(tmp_path / "photos")
    (folder / "ant" / "bad.jpg").write_bytes(b"\xff\xd8 no picture")
    words = ["data", "shard", f"path:{folder}", "--shards", 2, "--to", tmp_path / "shards"]
    refused = velodrome(*words)
    assert (refused.code, "give --bad-data skip" in refused.err) == (2, True)
    assert not (tmp_path / "shards" / "index.json").exists()
    assert velodrome(*words, "--bad-data", "maybe").code == 2
    done = velodrome(*words, "--bad-data", "skip", "--json")
    assert done.code == 0, done.err
    assert sum(part["examples"] for part in done.json()["parts"].values()) == 30
    assert "ant/bad.jpg" in done.json()["notes"][0]
    assert "left out" in velodrome(*words, "--bad-data", "skip", "--force").out


BASE = ["--model", "dense-128", "--engine", "torch", "--strategy", "single", "--batch-size", "8"]


def test_jobs_on_own_data_are_checked_before_anything_starts(velodrome, runs, tmp_path):
    folder = write_folders(tmp_path / "photos")
    rows = [
        (["--dataset", f"path:{folder}", "--batch-size", "23"], "has 22 to train on"),
        (["--dataset", f"path:{folder}", "--model", "lenet5"], "at least 16×16, but these are 6×8"),
        (["--dataset", "ptb"], "'ptb' is text"),
        (["--dataset", "nowhere_at_all:load"], "no module named 'nowhere_at_all'"),
        (["--dataset", "nowhere_at_all:load", "--model", "nonsense"], "no model 'nonsense'"),
        (["--model", "x" * 300], f"no model '{'x' * 300}'"),
    ]
    for words, shown in rows:
        done = velodrome("train", *BASE, *words, "--runs", runs)
        assert (done.code, shown in done.err) == (2, True), done.err
    (folder / "ant" / "bad.png").write_bytes(b"")
    done = velodrome("train", *BASE, "--dataset", f"path:{folder}", "--runs", runs)
    assert (done.code, "ant/bad.png: empty file" in done.err) == (2, True)
    assert not runs.exists()


@pytest.mark.e2e
@pytest.mark.timeout(180)
def test_own_data_trains_and_the_run_says_what_was_left_out(velodrome, runs, no_strays, tmp_path):
    folder = write_folders(tmp_path / "photos", each=20)
    (folder / "ant" / "bad.png").write_bytes(b"")
    words = ["--dataset", f"path:{folder}", "--bad-data", "skip", "--epochs", "3", "--json", "--runs", runs]
    done = velodrome("train", *BASE, *words)
    assert done.code == 0, done.err
    assert done.json()["test"]["total"] == 12
    assert done.json()["test"]["accuracy"] == 1.0
    assert "warning: images that cannot be read: 1 (ant/bad.png: empty file): left out" in done.err


@pytest.mark.e2e
@pytest.mark.timeout(180)
def test_a_function_trains_and_its_mistakes_are_told_as_the_users(velodrome, runs, no_strays, tmp_path):
    (tmp_path / "given_data.py").write_text(
        "import numpy as np\n"
        "def load(): return np.repeat(np.arange(60) % 2 * 200, 16).reshape(60, 4, 4), np.arange(60) % 2\n"
        "def broken(): raise RuntimeError('the camera is off')\n"
    )
    good = velodrome("train", *BASE, "--dataset", "given_data:load", "--epochs", "3", "--json", "--runs", runs)
    assert good.json()["test"]["accuracy"] == 1.0
    large = velodrome("train", *BASE, "--dataset", "given_data:load", "--batch-size", "50", "--runs", runs)
    assert (large.code, "has 43 to train on" in large.err) == (2, True)
    bad = velodrome("train", *BASE, "--dataset", "given_data:broken", "--runs", runs)
    assert bad.code == 1
    assert "given_data.py" in bad.err
    assert "the camera is off" in bad.err


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["folder", "table", "npz", "function"])
@pytest.mark.parametrize("engine", ["torch", "tensorflow"])
def test_every_kind_of_own_data_trains_under_every_engine(velodrome, runs, tmp_path, kind, engine):
    folder = write_folders(tmp_path / "photos", each=20)
    images = np.repeat(np.arange(60) % 2 * 200, 16).reshape(60, 4, 4).astype(np.uint8)
    np.savez(tmp_path / "set.npz", x_train=images, y_train=np.arange(60) % 2)
    rows = [f"{file.relative_to(tmp_path)},{file.parent.name}" for file in sorted(folder.rglob("*.png"))]
    (tmp_path / "list.csv").write_text("\n".join(["image,label", *rows]))
    (tmp_path / "more_data.py").write_text(
        "import numpy as np\ndef load(): return iter([(np.full((4, 4), n % 2 * 200), n % 2) for n in range(60)])\n"
    )
    places = {"folder": "path:photos", "table": "path:list.csv", "npz": "path:set.npz", "function": "more_data:load"}
    words = [*BASE, "--engine", engine, "--dataset", places[kind], "--epochs", "8", "--json", "--runs", runs]
    assert velodrome("train", *words).json()["test"]["accuracy"] == 1.0
