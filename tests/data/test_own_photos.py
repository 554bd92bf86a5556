"""Photographs in folders and archives: what is read, how it is decoded, and what is kept of it."""

from __future__ import annotations

import multiprocessing
import os
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from pictures import COLOURS, everything, load_photos, picture, write_folders
from PIL import Image

from velodrome.data import cache, catalogue, pictures

pytestmark = pytest.mark.usefixtures("own_cache")


def test_each_folder_is_a_class_and_each_picture_is_in_one_part(tmp_path):
    splits = load_photos(write_folders(tmp_path / "photos"))
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
    splits = load_photos(tmp_path / "set", validation=0.3)
    for part, numbers in ((splits.train, range(8)), (splits.validation, range(8, 10)), (splits.test, range(10, 13))):
        assert {int(image[0, 0, 2]) for image in part.images} == set(numbers)
    assert "--validation 0.3 is not used" in splits.notes[0]


def test_folders_of_images_named_like_parts_can_be_classes(tmp_path):
    splits = load_photos(write_folders(tmp_path / "set", classes={"train": (1, 2, 3), "tram": (200, 2, 3)}))
    assert splits.class_names == ("train", "tram")


@pytest.mark.parametrize("wrapped", ["", "photos/"])
def test_an_archive_is_read_like_the_folder_it_holds(tmp_path, wrapped):
    folder = write_folders(tmp_path / "photos")
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        for file in sorted(folder.rglob("*.png")):
            archive.write(file, wrapped + str(file.relative_to(folder)))
        archive.writestr("__MACOSX/photos/._junk.png", b"junk")
    packed, plain = load_photos(tmp_path / "photos.zip"), load_photos(folder)
    assert np.array_equal(packed.train.images, plain.train.images)
    assert packed.class_names == plain.class_names


def test_an_image_is_resized_as_pillow_does_it(tmp_path):
    folder = write_folders(tmp_path / "photos", each=6)
    splits = load_photos(f"{folder}?size=3x4&channels=3")
    expected = {
        np.asarray(Image.open(file).resize((4, 3), Image.Resampling.BILINEAR)).tobytes()
        for file in folder.rglob("*.png")
    }
    assert {image.tobytes() for image in splits.train.images} <= expected


def test_a_file_that_may_be_read_at_last_is_read(tmp_path, monkeypatch):
    write_folders(tmp_path / "set")
    closed = str(tmp_path / "set" / "ant" / "00.png")
    before = catalogue.data_set(f"path:{tmp_path / 'set'}").key()
    with monkeypatch.context() as patch:  # root may read everything
        patch.setattr(os, "access", lambda path, mode: str(path) != closed)
        assert catalogue.data_set(f"path:{tmp_path / 'set'}").key() != before
    assert catalogue.data_set(f"path:{tmp_path / 'set'}").key() == before


def test_large_images_are_decoded_one_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "LARGE_PIXELS", 100)

    def decoded_to(side: int) -> tuple[int, ...]:
        path = tmp_path / f"{side}.png"
        picture((1, 2, 3), 4, side, side).save(path)
        with path.open("rb") as stream:
            return pictures.decode(stream, path.stat().st_size, 4, 4, 3).shape

    with ThreadPoolExecutor(2) as pool:
        with pictures.ONE_LARGE:
            large = pool.submit(decoded_to, 20)
            assert pool.submit(decoded_to, 10).result(30) == (4, 4, 3)
            with pytest.raises(TimeoutError):
                large.result(0.2)
        assert large.result(30) == (4, 4, 3)


def test_photographs_are_held_upright(tmp_path):
    folder = write_folders(tmp_path / "photos")
    exif = Image.Exif()
    exif[0x0112] = 6
    sideways = np.full((8, 6, 3), 250, np.uint8)
    Image.fromarray(sideways).save(folder / "ant" / "turned.jpg", exif=exif)
    splits = load_photos(folder)
    assert splits.input_shape == (6, 8, 3)
    assert splits.notes == ()


@pytest.mark.parametrize("name", ["a.gif", "a.tif", "a.webp"])
def test_of_an_animation_or_several_pages_the_first_frame_is_used(tmp_path, name):
    frames = [Image.fromarray(np.full((6, 8, 3), shade, np.uint8)) for shade in (50, 150, 250)]
    path = tmp_path / name
    frames[0].save(path, save_all=True, append_images=frames[1:], **({"lossless": True} if name == "a.webp" else {}))
    with Image.open(path) as stored:
        assert stored.n_frames == 3
    with path.open("rb") as stream:
        pixels = pictures.decode(stream, path.stat().st_size, 6, 8, 3)
    assert (pixels == 50).all()


@pytest.mark.parametrize(
    ("mode", "channels"), [("1", 1), ("L", 1), ("LA", 1), ("I;16", 1), ("P", 3), ("RGB", 3), ("RGBA", 3)]
)
def test_every_usual_kind_of_pixel_becomes_bytes(tmp_path, mode, channels):
    grey = np.tile(np.arange(0, 256, 32, dtype=np.uint8), (6, 1))
    image = Image.fromarray(grey.astype(np.uint16) * 257) if mode == "I;16" else Image.fromarray(grey).convert(mode)
    image.save(tmp_path / "a.png")
    size = (tmp_path / "a.png").stat().st_size
    with (tmp_path / "a.png").open("rb") as stream:
        assert pictures.read_header(stream, size) == pictures.Header(6, 8, channels)
    with (tmp_path / "a.png").open("rb") as stream:
        pixels = pictures.decode(stream, size, 6, 8, 3)
    wanted = np.where(grey >= 128, 255, 0) if mode == "1" else grey
    near = 30 if mode in ("P", "1") else 0  # a palette has its own shades, and two shades are dithered
    if mode != "1":
        assert np.abs(pixels[..., 0].astype(int) - wanted).max() <= near
    assert (pixels[..., 0] == pixels[..., 2]).all() or mode == "P"


def test_what_was_decoded_is_used_again_and_made_anew_when_a_file_changes(tmp_path, monkeypatch):
    folder = write_folders(tmp_path / "photos")
    first = load_photos(folder)
    with monkeypatch.context() as patch:
        patch.setattr(pictures, "decode_all", None)
        assert np.array_equal(load_photos(folder).train.images, first.train.images)
    picture((9, 9, 9), 77).save(folder / "ant" / "00.png")
    os.utime(folder / "ant" / "00.png", (1, 1))
    assert ("ant", 77) in everything(load_photos(folder))
    kept = list(cache._home(catalogue.data_set(f"path:{folder}").source).glob("*/input0.npy"))
    assert len(kept) == 1


def test_a_damaged_copy_is_found_and_made_anew(tmp_path, velodrome):
    name = f"path:{write_folders(tmp_path / 'photos')}"
    catalogue.prepare(name)
    assert {file.state for file in catalogue.verify(name)} == {"ok"}
    images = next(Path(file.file) for file in catalogue.verify(name) if file.file.endswith("input0.npy"))
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
    images = next(Path(file.file) for file in catalogue.verify(name) if file.file.endswith("input0.npy"))
    images.write_bytes(images.read_bytes()[:-10])
    (images.parent.parent / ".left-by-a-killed-process").mkdir()
    assert len(everything(catalogue.load(name, seed=1, validation=0.1))) == 30
    assert not (images.parent.parent / ".left-by-a-killed-process").exists()


def test_what_was_left_half_made_of_another_set_is_removed_unless_it_is_being_made(tmp_path, own_cache):
    one, two, three = (write_folders(tmp_path / name) for name in ("one", "two", "three"))
    catalogue.prepare(f"path:{one}")
    (home,) = (own_cache / "decoded").iterdir()
    left = home / ".left-by-a-killed-process"
    left.mkdir()
    (left / "images.npy").write_bytes(b"half")
    with cache.exclusive(home):
        catalogue.prepare(f"path:{two}")
        assert left.exists()
    catalogue.prepare(f"path:{three}")
    assert not left.exists()
    assert {file.state for file in catalogue.verify(f"path:{one}")} == {"ok"}


def _decode(name, queue):
    from velodrome.data import pictures as module

    calls = []
    real = module.decode_all
    module.decode_all = lambda *words: (calls.append(1), real(*words))[1]
    splits = catalogue.load(name, seed=1, validation=0.1)
    queue.put((len(calls), splits.train.images.sum().item()))


@pytest.mark.integration
def test_two_processes_at_once_decode_once(tmp_path):
    name = f"path:{write_folders(tmp_path / 'photos', each=60)}"
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    workers = [context.Process(target=_decode, args=(name, queue)) for _ in range(3)]
    for worker in workers:
        worker.start()
    found = [queue.get(timeout=280) for _ in workers]
    for worker in workers:
        worker.join(10)
    assert sum(calls for calls, _ in found) == 1
    assert len({total for _, total in found}) == 1


def test_a_link_to_a_folder_is_a_class_and_a_loop_of_links_ends(tmp_path):
    folder = write_folders(tmp_path / "photos")
    (folder / "dog").symlink_to(folder / "cat")
    (folder / "ant" / "again").symlink_to(folder / "ant")
    splits = load_photos(folder)
    assert splits.class_names == ("ant", "bee", "cat", "dog")
    assert len(everything(splits)) == 40


def test_folders_that_look_like_parts_and_are_not_named_so_are_told(tmp_path):
    write_folders(tmp_path / "set" / "train_set")
    write_folders(tmp_path / "set" / "test_set", each=4)
    splits = load_photos(tmp_path / "set")
    assert splits.class_names == ("test_set", "train_set")
    assert any(
        note.startswith("the folders test_set, train_set were taken as classes, although all of them have the folders "
                        "ant, bee, cat: if they are parts, name them train, validation and test")
        for note in splits.notes
    )
