"""Links in your own data: one rule for folders, tables and texts, and nothing that cannot be read goes unmentioned."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pictures import picture, write_folders

from velodrome.data import catalogue
from velodrome.data.storage.trees import FolderTree
from velodrome.errors import BadRequest

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("own_cache")]


def load(name, bad_data="fail"):
    return catalogue.load(f"path:{name}", seed=1, validation=0.1, bad_data=bad_data)


def examples(splits) -> int:
    return len(splits.train) + len(splits.validation) + len(splits.test)


def test_links_that_lead_nowhere_are_counted_and_named(tmp_path):
    folder = write_folders(tmp_path / "photos")
    for number in range(15):
        (folder / "ant" / f"gone{number:02}.png").symlink_to(tmp_path / "gone" / f"{number}.png")
    with pytest.raises(BadRequest, match=r"links that lead nowhere: 15 \(ant/gone00.png: to .*/gone/0.png.*and 5 more"):
        load(folder)
    splits = load(folder, "skip")
    assert examples(splits) == 30
    assert [note for note in splits.notes if note.startswith("links that lead nowhere: 15") and "left out" in note]


def test_a_link_that_appears_later_is_found_though_the_set_was_prepared(tmp_path):
    folder = write_folders(tmp_path / "photos")
    assert examples(load(folder)) == 30
    (folder / "bee" / "gone.png").symlink_to("nowhere.png")
    with pytest.raises(BadRequest, match=r"links that lead nowhere: 1 \(bee/gone.png: to nowhere.png\)"):
        load(folder)


@pytest.mark.parametrize("where", ["ant/loop.png", "loop"])
def test_a_link_to_itself_is_named_and_left_out(tmp_path, where):
    folder = write_folders(tmp_path / "photos")
    (folder / where).symlink_to(folder / where)
    with pytest.raises(BadRequest, match=rf"links that lead nowhere: 1 \({where}: to itself\)"):
        load(folder)
    assert examples(load(folder, "skip")) == 30


def test_a_class_behind_a_link_that_leads_nowhere_is_named(tmp_path):
    folder = write_folders(tmp_path / "photos")
    (folder / "dog").symlink_to(tmp_path / "unmounted" / "dog")
    with pytest.raises(BadRequest, match=r"links that lead nowhere: 1 \(dog: to "):
        load(folder)
    assert load(folder, "skip").class_names == ("ant", "bee", "cat")


def test_other_files_than_images_do_not_count(tmp_path):
    folder = write_folders(tmp_path / "photos")
    (folder / "ant" / "notes.txt").symlink_to("nowhere.txt")
    assert examples(load(folder)) == 30


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every folder")
def test_a_folder_that_is_closed_to_us_is_named(tmp_path):
    folder = write_folders(tmp_path / "photos")
    (folder / "cat").chmod(0)
    try:
        with pytest.raises(BadRequest, match=r"files and folders that cannot be read: 1 \(cat: Permission denied\)"):
            load(folder)
        assert load(folder, "skip").class_names == ("ant", "bee")
    finally:
        (folder / "cat").chmod(0o755)


def test_a_pipe_and_folders_that_are_nested_too_deep_are_named(tmp_path):
    folder = write_folders(tmp_path / "photos")
    os.mkfifo(folder / "ant" / "pipe.png")
    deep = folder / "bee" / Path(*["a"] * 14)
    deep.mkdir(parents=True)
    picture((1, 2, 3), 1).save(deep / "1.png")
    lost = {one.name: one.reason for one in FolderTree(folder).lost}
    assert lost == {
        "ant/pipe.png": "neither a file nor a folder", "/".join(["bee", *["a"] * 12]): "more than 12 folders deep",
    }
    with pytest.raises(BadRequest, match=r"cannot be read: 1 \(ant/pipe.png: neither a file nor a folder\)"):
        load(folder)


@pytest.fixture
def outside(tmp_path) -> Path:
    """A picture and a class of pictures that do not lie in the data's folder."""
    write_folders(tmp_path / "elsewhere", classes={"owl": (9, 200, 200)})
    picture((200, 30, 30), 77).save(tmp_path / "elsewhere" / "secret.png")
    return tmp_path / "elsewhere"


@pytest.mark.parametrize(("link", "target", "more"), [("owl", "owl", 10), ("ant/secret.png", "secret.png", 1)])
def test_links_out_of_a_folder_are_bad_data_unless_they_are_asked_for(tmp_path, outside, link, target, more):
    folder = write_folders(tmp_path / "photos")
    (folder / link).symlink_to(outside / target)
    with pytest.raises(BadRequest, match=rf"links that lead out of the folder \(add \?links=follow.*: 1 \({link}: to "):
        load(folder)
    assert examples(load(folder, "skip")) == 30
    assert examples(load(f"{folder}?links=follow")) == 30 + more


def test_links_out_of_the_folder_of_a_table_are_bad_data_unless_they_are_asked_for(tmp_path, outside):
    folder = write_folders(tmp_path / "photos")
    (folder / "secret.png").symlink_to(outside / "secret.png")
    rows = [f"{file.relative_to(folder)},{file.parent.name}" for file in sorted(folder.glob("*/*.png"))]
    table = folder / "list.csv"
    table.write_text("\n".join(["image,label", *rows, "secret.png,ant"]))
    with pytest.raises(BadRequest, match=r"line 32: secret.png: outside, by a link \(add \?links=follow"):
        load(table)
    assert examples(load(table, "skip")) == 30
    assert examples(load(f"{table}?links=follow")) == 31
    table.write_text("\n".join(["image,label", *rows, f"../{outside.name}/secret.png,ant"]))
    for options in ("", "?links=follow"):
        with pytest.raises(BadRequest, match=r"line 32: .*secret.png: outside\)"):
            load(f"{table}{options}")


def test_links_out_of_a_folder_of_texts_are_bad_data_unless_they_are_asked_for(tmp_path, outside):
    (outside / "secret.txt").write_text("the secret\n" * 50)
    folder = tmp_path / "books"
    folder.mkdir()
    (folder / "one.txt").write_text("a dull book\n" * 50)
    (folder / "two.txt").symlink_to(outside / "secret.txt")
    with pytest.raises(BadRequest, match=r"links that lead out of the folder .*: 1 \(two.txt: to "):
        catalogue.load_text(f"text:{folder}")
    assert "secret" not in catalogue.load_text(f"text:{folder}", bad_data="skip").vocabulary
    assert "secret" in catalogue.load_text(f"text:{folder}?links=follow").vocabulary
    (folder / "two.txt").unlink()
    (folder / "two.txt").symlink_to("two.txt")
    with pytest.raises(BadRequest, match=r"links that lead nowhere: 1 \(two.txt: to itself\)"):
        catalogue.load_text(f"text:{folder}")


def test_links_within_the_folder_are_followed(tmp_path):
    folder = write_folders(tmp_path / "photos")
    (folder / "dog").symlink_to("cat")
    (folder / "ant" / "10.png").symlink_to("../bee/00.png")
    assert examples(load(folder)) == 41


@pytest.mark.timeout(60)
def test_folders_that_link_to_one_another_are_read_a_few_times_and_not_on_every_path(tmp_path):
    names = [f"class{number}" for number in range(9)]
    folder = write_folders(tmp_path / "photos", classes=dict.fromkeys(names, (9, 200, 200)))
    for name in names:
        for other in names:
            if other != name:
                (folder / name / other).symlink_to(f"../{other}")
    tree = FolderTree(folder)
    assert len(tree.folders) < 9 * 9 * 16
    assert {one.reason for one in tree.lost} == {"links lead to this folder more than 16 times"}
    assert {f"{name}/00.png" for name in names} <= {file.name for file in tree.files}
    assert [file.name for file in tree.files] == [file.name for file in FolderTree(folder).files]


def test_links_that_lead_to_one_folder_many_times_cost_one_look_at_it(tmp_path, monkeypatch):
    for number in range(20):
        (tmp_path / f"c{number}").mkdir()
        (tmp_path / f"c{number}" / "a.png").touch()
        for other in range(20):
            (tmp_path / f"c{number}" / f"to{other}").symlink_to(f"../c{other}")
    looks, targets, scan, resolved = [], [], os.scandir, os.path.realpath
    monkeypatch.setattr(os, "scandir", lambda path: looks.append(path) or scan(path))
    monkeypatch.setattr(os.path, "realpath", lambda path, **how: targets.append(path) or resolved(path, **how))
    tree = FolderTree(tmp_path)
    assert len(tree.files) > 20
    assert len(looks) == 21
    assert len(targets) <= 21 + 20 * 20 + 1


def test_a_text_that_is_one_file_is_read_alone(tmp_path, monkeypatch):
    (tmp_path / "book.txt").write_text("a dull book\n" * 50)
    (tmp_path / "gone.txt").symlink_to("nowhere")
    monkeypatch.setattr(FolderTree, "_walk", None)
    assert len(catalogue.load_text(f"text:{tmp_path / 'book.txt'}").train) == 46 * 4


@pytest.mark.parametrize(("name", "why"), [
    ("path:{}?links=no", "links 'no'; write links=follow, or leave it out"),
    ("text:{}?links=", "links ''; write links=follow"),
    ("text:{}?size=3", "no option 'size'; choose from links"),
])
def test_a_wrong_choice_about_links_is_refused(tmp_path, name, why):
    with pytest.raises(BadRequest, match=why):
        catalogue.describe(name.format(write_folders(tmp_path / "photos")))
