"""Photographs in folders and archives: what is read, what is refused, and what is kept."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import stat
import struct
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from pictures import COLOURS, picture, truncated, write_folders
from PIL import Image

from velodrome.data import catalogue
from velodrome.data.cache import decoded
from velodrome.data.images import decode
from velodrome.errors import BadRequest

pytestmark = pytest.mark.usefixtures("own_cache")


def load(path, bad_data="fail", seed=1, validation=0.1):
    return catalogue.load(f"path:{path}", seed=seed, validation=validation, bad_data=bad_data)


def everything(splits):
    """Every example as class name and number, which its first pixel holds."""
    return sorted(
        (splits.class_names[label], int(image[0, 0, 2]))
        for part in (splits.train, splits.validation, splits.test)
        for image, label in zip(part.images, part.labels, strict=True)
    )


def test_each_folder_is_a_class_and_each_picture_is_in_one_part(tmp_path):
    splits = load(write_folders(tmp_path / "photos"))
    assert splits.class_names == ("ant", "bee", "cat")
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (22, 2, 6)
    assert everything(splits) == [(name, number) for name in COLOURS for number in range(10)]
    for image, label in zip(splits.train.images, splits.train.labels, strict=True):
        assert tuple(image[3, 3]) == COLOURS[splits.class_names[label]]
    assert splits.train.images.dtype == np.uint8
    assert splits.input_shape == (6, 8, 3)
    assert splits.scale == 1 / 255
    assert splits.notes == ()


def test_a_description_is_true_before_and_after_decoding(tmp_path):
    name = f"path:{write_folders(tmp_path / 'photos')}"
    before = catalogue.describe(name, validation=0.2)
    catalogue.prepare(name)
    after = catalogue.describe(name, validation=0.2)
    splits = catalogue.load(name, seed=3, validation=0.2)
    for about in (before, after):
        assert (about.train, about.validation, about.test) == tuple(
            map(len, (splits.train, splits.validation, splits.test))
        )
        assert (about.input_shape, about.classes) == ((6, 8, 3), 3)
    assert not catalogue.is_here("path:" + str(write_folders(tmp_path / "others")))
    assert catalogue.is_here(name)


def test_parts_that_are_read_once_are_copied_slice_by_slice(tmp_path):
    name = f"path:{write_folders(tmp_path / 'photos')}"
    whole = catalogue.load(name, seed=1, validation=0.1)
    mapped = catalogue.load_mapped(name, seed=1, validation=0.1)
    assert mapped.input_shape == whole.input_shape
    for part, same in ((mapped.train, whole.train), (mapped.validation, whole.validation), (mapped.test, whole.test)):
        assert not isinstance(part.images, np.ndarray)
        assert (part.images.shape, part.images.nbytes) == (same.images.shape, same.images.nbytes)
        assert np.array_equal(part.labels, same.labels)
        for first in range(0, len(part), 5):
            assert np.array_equal(part.images[first : first + 5], same.images[first : first + 5])


def test_parts_that_were_made_stay_apart(tmp_path):
    for part, numbers in (("train", range(8)), ("val", range(8, 10)), ("Test", range(10, 13))):
        for name, colour in COLOURS.items():
            (tmp_path / "set" / part / name).mkdir(parents=True)
            for number in numbers:
                picture(colour, number).save(tmp_path / "set" / part / name / f"{number}.png")
    splits = load(tmp_path / "set", validation=0.3)
    for part, numbers in ((splits.train, range(8)), (splits.validation, range(8, 10)), (splits.test, range(10, 13))):
        assert {int(image[0, 0, 2]) for image in part.images} == set(numbers)
    assert "--validation 0.3 is not used" in splits.notes[0]


def test_classes_beside_parts_are_ambiguous(tmp_path):
    write_folders(tmp_path / "set" / "train")
    write_folders(tmp_path / "set" / "test")
    (tmp_path / "set" / "cat").mkdir()
    with pytest.raises(BadRequest, match=r"others beside them \(cat\)"):
        load(tmp_path / "set")


def test_folders_of_images_named_like_parts_can_be_classes(tmp_path):
    splits = load(write_folders(tmp_path / "set", classes={"train": (1, 2, 3), "tram": (200, 2, 3)}))
    assert splits.class_names == ("train", "tram")


@pytest.mark.parametrize("wrapped", ["", "photos/"])
def test_an_archive_is_read_like_the_folder_it_holds(tmp_path, wrapped):
    folder = write_folders(tmp_path / "photos")
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        for file in sorted(folder.rglob("*.png")):
            archive.write(file, wrapped + str(file.relative_to(folder)))
        archive.writestr("__MACOSX/photos/._junk.png", b"junk")
    packed, plain = load(tmp_path / "photos.zip"), load(folder)
    assert np.array_equal(packed.train.images, plain.train.images)
    assert packed.class_names == plain.class_names


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
        ("ant/bomb.png", bytes(30 << 20), "swells from"),
    ],
)
def test_an_archive_that_means_harm_is_not_read(tmp_path, entry, content, why):
    with zipfile.ZipFile(tmp_path / "evil.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(entry, content)
    with pytest.raises(BadRequest, match=why):
        load(tmp_path / "evil.zip")
    assert not list(tmp_path.rglob("evil.png"))


def test_what_is_no_archive_is_refused(tmp_path):
    (tmp_path / "a.zip").write_bytes(b"PK but no more")
    with pytest.raises(BadRequest, match="no zip archive"):
        load(tmp_path / "a.zip")


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
            load(f"{tmp_path / 'photos.zip'}{options}")
    assert len(everything(load(tmp_path / "photos.zip", "skip"))) == 29


def spoil(folder: Path) -> None:
    truncated(folder / "ant" / "98.png")
    (folder / "bee" / "97.png").write_bytes(b"")
    (folder / "cat" / "96.png").write_text("I am no picture")


def test_unreadable_images_are_counted_named_and_refused_or_left_out(tmp_path):
    folder = write_folders(tmp_path / "photos")
    spoil(folder)
    with pytest.raises(BadRequest, match=r"cannot be read: 3 \(bee/97.png: empty file, cat/96.png: no image") as no:
        load(folder)
    assert "--bad-data skip" in str(no.value)
    splits = load(folder, "skip")
    assert everything(splits) == [(name, number) for name in COLOURS for number in range(10)]
    assert any("cannot be read: 3" in note and note.endswith("left out") for note in splits.notes)


def test_ten_are_named_and_the_rest_counted_and_no_name_reaches_the_terminal_raw(tmp_path):
    folder = write_folders(tmp_path / "photos")
    for number in range(25):
        (folder / "ant" / f"a{number:02}\x1b[2J\n.png").write_bytes(b"")
    with pytest.raises(BadRequest, match="and 15 more") as no:
        load(folder)
    assert "\x1b" not in str(no.value)
    assert "\n" not in str(no.value)


def test_other_sizes_and_grey_are_refused_or_made_alike_or_asked_for(tmp_path):
    folder = write_folders(tmp_path / "photos")
    picture((200, 30, 30), 90, height=12, width=16).save(folder / "ant" / "large.png")
    picture((200, 30, 30), 91).convert("L").save(folder / "ant" / "grey.png")
    with pytest.raises(BadRequest, match=r"grey images among colour.*another size than most \(6×8; add \?size=6x8"):
        load(folder)
    splits = load(folder, "skip")
    assert splits.input_shape == (6, 8, 3)
    assert len(everything(splits)) == 32
    assert any("large.png: 12×16): resized" in note for note in splits.notes)
    assert load(f"{folder}?size=3x4&channels=3").input_shape == (3, 4, 3)
    assert load(f"{folder}?size=5&channels=1").input_shape == (5, 5, 1)


def test_an_image_is_resized_as_pillow_does_it(tmp_path):
    folder = write_folders(tmp_path / "photos", each=6)
    splits = load(f"{folder}?size=3x4&channels=3")
    expected = {
        np.asarray(Image.open(file).resize((4, 3), Image.Resampling.BILINEAR)).tobytes()
        for file in folder.rglob("*.png")
    }
    assert {image.tobytes() for image in splits.train.images} <= expected


def test_an_empty_class_is_refused_or_left_out(tmp_path):
    folder = write_folders(tmp_path / "photos")
    (folder / "dodo").mkdir()
    with pytest.raises(BadRequest, match=r"classes without images: 1 \(dodo\)"):
        load(folder)
    assert load(folder, "skip").class_names == ("ant", "bee", "cat")


def test_one_refusal_names_everything_that_is_wrong(tmp_path):
    write_folders(tmp_path / "set")
    (tmp_path / "set" / "nothing").mkdir()
    (tmp_path / "set" / "ant" / "text.png").write_text("no image")  # known by its header
    for number in range(3):
        truncated(tmp_path / "set" / "bee" / f"cut-{number}.png")  # known when it is decoded
    with pytest.raises(BadRequest) as caught:
        load(tmp_path / "set")
    assert "images that cannot be read: 4 (ant/text.png" in str(caught.value)
    assert "classes without images: 1 (nothing)" in str(caught.value)
    notes = load(tmp_path / "set", "skip").notes
    assert all(str(fault) in str(caught.value) for fault in (note.removesuffix(": left out") for note in notes))


def test_a_file_that_may_be_read_at_last_is_read(tmp_path, monkeypatch):
    write_folders(tmp_path / "set")
    closed = str(tmp_path / "set" / "ant" / "00.png")
    before = catalogue.data_set(f"path:{tmp_path / 'set'}").key()
    with monkeypatch.context() as patch:  # root may read everything
        patch.setattr(os, "access", lambda path, mode: str(path) != closed)
        assert catalogue.data_set(f"path:{tmp_path / 'set'}").key() != before
    assert catalogue.data_set(f"path:{tmp_path / 'set'}").key() == before


def test_a_class_whose_pictures_are_all_bad_is_left_out_with_them(tmp_path):
    folder = write_folders(tmp_path / "photos")
    (folder / "aardvark").mkdir()
    (folder / "aardvark" / "0.png").write_bytes(b"")
    splits = load(folder, "skip")
    assert splits.class_names == ("ant", "bee", "cat")
    assert set(splits.train.labels) == {0, 1, 2}


def test_one_class_is_too_few(tmp_path):
    with pytest.raises(BadRequest, match="training needs two"):
        load(write_folders(tmp_path / "set", classes={"ant": (1, 2, 3)}))


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
            load(f"{folder}{options}")
    assert len(everything(load(folder, "skip"))) == 30


def test_large_images_are_decoded_one_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(decode, "LARGE_PIXELS", 100)

    def decoded_to(side: int) -> tuple[int, ...]:
        path = tmp_path / f"{side}.png"
        picture((1, 2, 3), 4, side, side).save(path)
        with path.open("rb") as stream:
            return decode.decode(stream, path.stat().st_size, 4, 4, 3).shape

    with ThreadPoolExecutor(2) as pool:
        with decode.ONE_LARGE:
            large = pool.submit(decoded_to, 20)
            assert pool.submit(decoded_to, 10).result(30) == (4, 4, 3)
            with pytest.raises(TimeoutError):
                large.result(0.2)
        assert large.result(30) == (4, 4, 3)


def test_more_pixels_than_the_disk_holds_are_refused_before_decoding(tmp_path, monkeypatch):
    folder = write_folders(tmp_path / "photos")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(BadRequest, match=r"choose a smaller size, for example \?size=64x64"):
        load(folder)


def test_photographs_are_held_upright(tmp_path):
    folder = write_folders(tmp_path / "photos")
    exif = Image.Exif()
    exif[0x0112] = 6
    sideways = np.full((8, 6, 3), 250, np.uint8)
    Image.fromarray(sideways).save(folder / "ant" / "turned.jpg", exif=exif)
    splits = load(folder)
    assert splits.input_shape == (6, 8, 3)
    assert splits.notes == ()


@pytest.mark.parametrize(
    ("mode", "channels"), [("1", 1), ("L", 1), ("LA", 1), ("I;16", 1), ("P", 3), ("RGB", 3), ("RGBA", 3)]
)
def test_every_usual_kind_of_pixel_becomes_bytes(tmp_path, mode, channels):
    grey = np.tile(np.arange(0, 256, 32, dtype=np.uint8), (6, 1))
    image = Image.fromarray(grey.astype(np.uint16) * 257) if mode == "I;16" else Image.fromarray(grey).convert(mode)
    image.save(tmp_path / "a.png")
    size = (tmp_path / "a.png").stat().st_size
    with (tmp_path / "a.png").open("rb") as stream:
        assert decode.look(stream, size) == decode.Look(6, 8, channels)
    with (tmp_path / "a.png").open("rb") as stream:
        pixels = decode.decode(stream, size, 6, 8, 3)
    wanted = np.where(grey >= 128, 255, 0) if mode == "1" else grey
    near = 30 if mode in ("P", "1") else 0  # a palette has its own shades, and two shades are dithered
    if mode != "1":
        assert np.abs(pixels[..., 0].astype(int) - wanted).max() <= near
    assert (pixels[..., 0] == pixels[..., 2]).all() or mode == "P"


def test_what_was_decoded_is_used_again_and_made_anew_when_a_file_changes(tmp_path, monkeypatch):
    folder = write_folders(tmp_path / "photos")
    first = load(folder)
    with monkeypatch.context() as patch:
        patch.setattr(decode, "decode_all", None)
        assert np.array_equal(load(folder).train.images, first.train.images)
    picture((9, 9, 9), 77).save(folder / "ant" / "00.png")
    os.utime(folder / "ant" / "00.png", (1, 1))
    assert ("ant", 77) in everything(load(folder))
    kept = list(decoded._home(catalogue.data_set(f"path:{folder}").source).glob("*/images.npy"))
    assert len(kept) == 1


def test_a_damaged_copy_is_found_and_made_anew(tmp_path, velodrome):
    name = f"path:{write_folders(tmp_path / 'photos')}"
    catalogue.prepare(name)
    assert {file.state for file in catalogue.verify(name)} == {"ok"}
    images = next(Path(file.file) for file in catalogue.verify(name) if file.file.endswith("images.npy"))
    data = bytearray(images.read_bytes())
    data[-1] ^= 1
    images.write_bytes(data)
    done = velodrome("data", "verify", name, "--json")
    assert done.code == 1
    assert [file["state"] for file in done.json()["files"]].count("damaged") == 1
    assert velodrome("data", "prepare", name).code == 0
    assert velodrome("data", "verify", name).code == 0


def test_a_half_written_copy_is_never_read(tmp_path):
    name = f"path:{write_folders(tmp_path / 'photos')}"
    catalogue.prepare(name)
    images = next(Path(file.file) for file in catalogue.verify(name) if file.file.endswith("images.npy"))
    images.write_bytes(images.read_bytes()[:-10])
    (images.parent.parent / ".left-by-a-killed-process").mkdir()
    assert len(everything(catalogue.load(name, seed=1, validation=0.1))) == 30
    assert not (images.parent.parent / ".left-by-a-killed-process").exists()


def _decode(name, queue):
    from velodrome.data.images import decode as module

    calls = []
    real = module.decode_all
    module.decode_all = lambda *words: (calls.append(1), real(*words))[1]
    splits = catalogue.load(name, seed=1, validation=0.1)
    queue.put((len(calls), splits.train.images.sum().item()))


@pytest.mark.integration
def test_two_processes_at_once_decode_once(tmp_path):
    name = f"path:{write_folders(tmp_path / 'photos', each=60)}"
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    workers = [context.Process(target=_decode, args=(name, queue)) for _ in range(3)]
    for worker in workers:
        worker.start()
    found = [queue.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join(10)
    assert sum(calls for calls, _ in found) == 1
    assert len({total for _, total in found}) == 1


def test_a_link_to_a_folder_is_a_class_and_a_loop_of_links_ends(tmp_path):
    folder = write_folders(tmp_path / "photos")
    (folder / "dog").symlink_to(folder / "cat")
    (folder / "ant" / "again").symlink_to(folder / "ant")
    splits = load(folder)
    assert splits.class_names == ("ant", "bee", "cat", "dog")
    assert len(everything(splits)) == 40


@pytest.mark.parametrize(
    ("options", "why"),
    [("size=0x3", "write height and width"), ("size=a", "write height and width"), ("channels=4", "1 is grey"),
     ("color=3", "no option 'color'"), ("size", "write options as")],
)
def test_a_wrong_option_is_answered_with_the_right_ones(tmp_path, options, why):
    write_folders(tmp_path / "photos")
    with pytest.raises(BadRequest, match=why):
        load(f"{tmp_path / 'photos'}?{options}")


def test_what_is_not_there_or_unknown_is_refused(tmp_path):
    (tmp_path / "a.exe").write_bytes(b"x")
    (tmp_path / "empty").mkdir()
    for rest, why in (("absent", "no file or folder"), ("a.exe", "give a folder"), ("empty", "has no folders")):
        with pytest.raises(BadRequest, match=why):
            load(tmp_path / rest)


def test_folders_that_look_like_parts_and_are_not_named_so_are_told(tmp_path):
    write_folders(tmp_path / "set" / "train_set")
    write_folders(tmp_path / "set" / "test_set", each=4)
    splits = load(tmp_path / "set")
    assert splits.class_names == ("test_set", "train_set")
    assert any(
        note.startswith("the folders test_set, train_set were taken as classes, although all of them have the folders "
                        "ant, bee, cat: if they are parts, name them train, validation and test")
        for note in splits.notes
    )
