"""Photographs that cannot be used, archives that mean harm and wrong options: refused in a sentence, or left out."""

from __future__ import annotations

import shutil
import stat
import struct
import zipfile
import zlib
from pathlib import Path

import pytest
from pictures import COLOURS, everything, load_photos, picture, truncated, write_folders

from velodrome.errors import BadRequest

pytestmark = pytest.mark.usefixtures("own_cache")


def test_classes_beside_parts_are_ambiguous(tmp_path):
    write_folders(tmp_path / "set" / "train")
    write_folders(tmp_path / "set" / "test")
    (tmp_path / "set" / "cat").mkdir()
    with pytest.raises(BadRequest, match=r"others beside them \(cat\)"):
        load_photos(tmp_path / "set")


def nul_info():
    info = zipfile.ZipInfo("ant/x.png")
    info.filename = "ant/x\0y.png"
    return info


def link_info():
    info = zipfile.ZipInfo("ant/link.png")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info


@pytest.mark.parametrize(
    ("entry", "content", "why"),
    [
        ("../../evil.png", b"x", "leads out of the archive"),
        ("/etc/evil.png", b"x", "leads out of the archive"),
        ("ant/../../evil.png", b"x", "leads out of the archive"),
        ("ant\\..\\evil.png", b"x", r"'ant\\..\\evil.png' in it has a backslash in its name"),
        (nul_info(), b"x", r"'ant/x\\x00y.png' in it has a NUL character in its name"),
        (link_info(), b"/etc/passwd", "is a link"),
        ("ant/bomb.png", bytes(30 << 20), "expands from"),
    ],
)
def test_an_archive_that_means_harm_is_not_read(tmp_path, entry, content, why):
    with zipfile.ZipFile(tmp_path / "evil.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(entry, content)
    with pytest.raises(BadRequest, match=why):
        load_photos(tmp_path / "evil.zip")
    assert not list(tmp_path.rglob("evil.png"))


def test_what_is_no_archive_is_refused(tmp_path):
    (tmp_path / "a.zip").write_bytes(b"PK but no more")
    with pytest.raises(BadRequest, match="not a readable zip archive"):
        load_photos(tmp_path / "a.zip")


@pytest.mark.parametrize(("change", "why"), [({"compress_type": 9}, "compression"), ({"header_offset": 3}, "magic")])
def test_an_entry_that_cannot_be_unpacked_is_an_image_that_cannot_be_read(tmp_path, change, why):
    folder = write_folders(tmp_path / "photos")
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        for file in sorted(folder.rglob("*.png")):
            archive.write(file, str(file.relative_to(folder)))
        for field, value in change.items():  # written into the archive's directory when it is closed
            setattr(archive.getinfo("bee/04.png"), field, value)
    for options in ("", "?size=6x8&channels=3"):
        with pytest.raises(BadRequest, match=rf"cannot be read: 1 \(bee/04.png: .*{why}"):
            load_photos(f"{tmp_path / 'photos.zip'}{options}")
    assert len(everything(load_photos(tmp_path / "photos.zip", "skip"))) == 29


def spoil(folder: Path) -> None:
    truncated(folder / "ant" / "98.png")
    (folder / "bee" / "97.png").write_bytes(b"")
    (folder / "cat" / "96.png").write_text("I am no picture")


def test_unreadable_images_are_counted_named_and_refused_or_left_out(tmp_path):
    folder = write_folders(tmp_path / "photos")
    spoil(folder)
    with pytest.raises(BadRequest, match=r"cannot be read: 3 \(bee/97.png: empty file, cat/96.png: no image") as no:
        load_photos(folder)
    assert "--bad-data skip" in str(no.value)
    splits = load_photos(folder, "skip")
    assert everything(splits) == [(name, number) for name in COLOURS for number in range(10)]
    assert any("cannot be read: 3" in note and note.endswith("left out") for note in splits.notes)


def test_ten_are_named_and_the_rest_counted_and_no_name_reaches_the_terminal_raw(tmp_path):
    folder = write_folders(tmp_path / "photos")
    for number in range(25):
        (folder / "ant" / f"a{number:02}\x1b[2J\n.png").write_bytes(b"")
    with pytest.raises(BadRequest, match="and 15 more") as no:
        load_photos(folder)
    assert "\x1b" not in str(no.value)
    assert "\n" not in str(no.value)


def test_other_sizes_and_grey_are_refused_or_made_alike_or_asked_for(tmp_path):
    folder = write_folders(tmp_path / "photos")
    picture((200, 30, 30), 90, height=12, width=16).save(folder / "ant" / "large.png")
    picture((200, 30, 30), 91).convert("L").save(folder / "ant" / "grey.png")
    with pytest.raises(BadRequest, match=r"grey images among colour.*another size than most \(6×8; add \?size=6x8"):
        load_photos(folder)
    splits = load_photos(folder, "skip")
    assert splits.input_shape == (6, 8, 3)
    assert len(everything(splits)) == 32
    assert any("large.png: 12×16): resized" in note for note in splits.notes)
    assert load_photos(f"{folder}?size=3x4&channels=3").input_shape == (3, 4, 3)
    assert load_photos(f"{folder}?size=5&channels=1").input_shape == (5, 5, 1)


def test_an_empty_class_is_refused_or_left_out(tmp_path):
    folder = write_folders(tmp_path / "photos")
    (folder / "dodo").mkdir()
    with pytest.raises(BadRequest, match=r"classes without images: 1 \(dodo\)"):
        load_photos(folder)
    assert load_photos(folder, "skip").class_names == ("ant", "bee", "cat")


def test_one_refusal_names_everything_that_is_wrong(tmp_path):
    write_folders(tmp_path / "set")
    (tmp_path / "set" / "nothing").mkdir()
    (tmp_path / "set" / "ant" / "text.png").write_text("no image")  # known by its header
    for number in range(3):
        truncated(tmp_path / "set" / "bee" / f"cut-{number}.png")  # known when it is decoded
    with pytest.raises(BadRequest) as caught:
        load_photos(tmp_path / "set")
    assert "images that cannot be read: 4 (ant/text.png" in str(caught.value)
    assert "classes without images: 1 (nothing)" in str(caught.value)
    notes = load_photos(tmp_path / "set", "skip").notes
    assert all(str(fault) in str(caught.value) for fault in (note.removesuffix(": left out") for note in notes))


def test_a_class_whose_pictures_are_all_bad_is_left_out_with_them(tmp_path):
    folder = write_folders(tmp_path / "photos")
    (folder / "aardvark").mkdir()
    (folder / "aardvark" / "0.png").write_bytes(b"")
    splits = load_photos(folder, "skip")
    assert splits.class_names == ("ant", "bee", "cat")
    assert set(splits.train.labels) == {0, 1, 2}


def test_one_class_is_too_few(tmp_path):
    with pytest.raises(BadRequest, match="training needs two"):
        load_photos(write_folders(tmp_path / "set", classes={"ant": (1, 2, 3)}))


def bomb(width: int, height: int) -> bytes:
    """A PNG whose head claims a size, by the format's definition."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(bytes(10**6))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [10_000, 60_000])
def test_a_decompression_bomb_is_not_even_decoded(tmp_path, side):
    folder = write_folders(tmp_path / "photos")
    (folder / "ant" / "bomb.png").write_bytes(bomb(side, side))
    for options in ("", "?size=6x8&channels=3"):
        with pytest.raises(BadRequest, match=r"bomb.png: .*more than 89,478,485 pixels"):
            load_photos(f"{folder}{options}")
    assert len(everything(load_photos(folder, "skip"))) == 30


@pytest.mark.parametrize(("size", "images", "taken", "way_out"), [
    ("", "6×8", r"4\.2 KiB", "free some space"),
    ("?size=100x100", "100×100", r"878\.9 KiB", r"choose a smaller size, for example \?size=64x64 after the name"),
])
def test_more_pixels_than_the_disk_holds_are_refused_before_decoding(
    tmp_path, monkeypatch, size, images, taken, way_out
):
    folder = write_folders(tmp_path / "photos")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    told = rf"30 images of {images} take {taken} decoded, and .*cache has 1000 bytes left: {way_out}$"
    with pytest.raises(BadRequest, match=told):
        load_photos(f"{folder}{size}")


@pytest.mark.parametrize(
    ("options", "why"),
    [("size=0x3", "write height and width"), ("size=a", "write height and width"), ("channels=4", "1 is grey"),
     ("color=3", "no option 'color'"), ("size", "write options as")],
)
def test_a_wrong_option_is_answered_with_the_right_ones(tmp_path, options, why):
    write_folders(tmp_path / "photos")
    with pytest.raises(BadRequest, match=why):
        load_photos(f"{tmp_path / 'photos'}?{options}")


def test_what_is_not_there_or_unknown_is_refused(tmp_path):
    (tmp_path / "a.exe").write_bytes(b"x")
    (tmp_path / "empty").mkdir()
    for rest, why in (("absent", "no file or folder"), ("a.exe", "give a folder"), ("empty", "has no folders")):
        with pytest.raises(BadRequest, match=why):
            load_photos(tmp_path / rest)
