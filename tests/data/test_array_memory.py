"""Arrays are converted a window of bytes at a time: a file may be larger than memory, however large its images are."""

from __future__ import annotations

import subprocess
import sys
import zipfile

import numpy as np
import pytest

from velodrome import machine
from velodrome.data import catalogue, pixels
from velodrome.data.sources import functions, npz
from velodrome.errors import BadRequest

pytestmark = pytest.mark.usefixtures("own_cache")

#: Prepares a data set within so many bytes more than the process has taken so far.
LIMITED = """
import resource, sys
import numpy, psutil
from velodrome.data import catalogue
from velodrome.data import pixels
from velodrome.data.sources import npz
taken = psutil.Process().memory_info().vms
resource.setrlimit(resource.RLIMIT_AS, (taken + int(sys.argv[2]),) * 2)
catalogue.prepare(sys.argv[1])
print(catalogue.describe(sys.argv[1]).train)
"""


def within(name: str, limit: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", LIMITED, name, str(limit)], capture_output=True, text=True, timeout=280, check=False
    )


@pytest.mark.quick("uint8")
@pytest.mark.integration
@pytest.mark.parametrize("kind", ["float64", "float32", "uint8"])
def test_a_file_of_more_bytes_than_memory_is_converted(tmp_path, kind):
    """Before, one of 200 MB took more than a gigabyte: a window was 4,096 images, however large."""
    side = 224
    count = (200 << 20) // (side * side * np.dtype(kind).itemsize)
    images = np.zeros((count, side, side), kind)
    images[:, 0, 0] = 1  # black and white
    np.savez_compressed(tmp_path / "set.npz", x_train=images, y_train=np.arange(count) % 2)
    done = within(f"path:{tmp_path / 'set.npz'}", 150 << 20)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0


@pytest.mark.integration
def test_what_cannot_be_converted_in_the_memory_that_is_free_is_refused_in_one_sentence(tmp_path):
    by_columns = np.asfortranarray(np.zeros((800, 224, 224), np.float32))
    np.savez_compressed(tmp_path / "set.npz", x_train=by_columns, y_train=np.arange(800) % 2)
    done = within(f"path:{tmp_path / 'set.npz'}", 150 << 20)
    assert "BadRequest" in done.stderr
    assert "its array 'x_train' is stored by columns and takes 612.5 MiB of memory to be read" in done.stderr
    assert "MemoryError" not in done.stderr


def given(kind: str, count: int = 50) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (count, 4, 5, 3)).astype(kind)
    images = images / 255 if kind == "float64" else images
    labels = np.arange(count) % 3
    return {"x_train": images[10:], "y_train": labels[10:], "x_test": images[:10], "y_test": labels[:10]}


def load(tmp_path, arrays, bad_data="fail"):
    np.savez(tmp_path / "set.npz", **arrays)
    return catalogue.load(f"path:{tmp_path / 'set.npz'}", seed=1, validation=0.1, bad_data=bad_data)


def pixels_of(splits) -> list[bytes]:
    return sorted(image.tobytes() for image in [*splits.train.images, *splits.validation.images])


@pytest.mark.parametrize("kind", ["float64", "float32", "int16", ">u2", "uint8"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("window", [1, 7 * 60, 10**6])
def test_every_window_and_order_gives_the_same_bytes(tmp_path, monkeypatch, kind, order, window):
    monkeypatch.setattr(pixels, "WINDOW_PIXELS", window)
    arrays = given(kind)
    expected = np.rint(arrays["x_train"] * (255 if kind == "float64" else 1)).astype(np.uint8)
    arrays["x_train"] = np.asarray(arrays["x_train"], order=order)
    splits = load(tmp_path, arrays)
    assert pixels_of(splits) == sorted(image.tobytes() for image in expected)


def test_bad_examples_are_named_by_their_places_in_the_whole_array(tmp_path, monkeypatch):
    monkeypatch.setattr(pixels, "WINDOW_PIXELS", 7 * 60)
    arrays = given("float64")
    arrays["x_train"][[3, 7, 30], 0, 0, 0] = np.nan
    arrays["x_test"][9, 1, 1, 1] = np.inf
    with pytest.raises(BadRequest, match=r"4 \(x_train\[3\], x_train\[7\], x_train\[30\], x_test\[9\]\)"):
        load(tmp_path, arrays)
    splits = load(tmp_path, arrays, "skip")
    assert (len(splits.train) + len(splits.validation), len(splits.test)) == (37, 9)
    expected = np.rint(np.delete(arrays["x_train"], [3, 7, 30], 0) * 255).astype(np.uint8)
    assert pixels_of(splits) == sorted(image.tobytes() for image in expected)


def test_one_black_and_white_window_does_not_decide_for_the_others(tmp_path, monkeypatch):
    """The first rows are zeros and ones, and only the last shows that pixels reach 255."""
    monkeypatch.setattr(pixels, "WINDOW_PIXELS", 60)
    arrays = given("uint8")
    arrays["x_train"] = arrays["x_train"] % 2
    arrays["x_test"][-1, 0, 0, 0] = 255
    assert set(np.unique(load(tmp_path, arrays).train.images)) == {0, 1}


def test_labels_that_do_not_fit_into_memory_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(npz, "process_memory", lambda: 1000)
    with pytest.raises(BadRequest, match=r"array 'y_train' takes 1.2 KiB of memory to be read, but only 1000 bytes"):
        load(tmp_path, given("uint8"))


def test_images_of_which_not_one_can_be_converted_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(pixels, "process_memory", lambda: 1 << 20)
    with pytest.raises(BadRequest, match=r"to convert images of 4×5×3 takes .* but only 1.0 MiB are free: make them"):
        load(tmp_path, given("float64"))


def test_an_array_that_ends_too_early_is_refused(tmp_path):
    np.savez(tmp_path / "whole.npz", **given("uint8"))
    with zipfile.ZipFile(tmp_path / "whole.npz") as whole, zipfile.ZipFile(tmp_path / "set.npz", "w") as cut:
        for name in whole.namelist():
            data = whole.read(name)
            cut.writestr(name, data[:-100] if name == "x_train.npy" else data)
    with pytest.raises(BadRequest, match="its array 'x_train' ends too early"):
        catalogue.load(f"path:{tmp_path / 'set.npz'}", seed=1, validation=0.1)


def test_a_function_whose_images_would_not_fit_as_bytes_is_refused(monkeypatch):
    arrays = given("uint8")
    monkeypatch.setattr(functions, "users_function", lambda option, name: lambda: arrays)
    monkeypatch.setattr(functions, "process_memory", lambda: 2 * 50 * 60 - 1)
    with pytest.raises(BadRequest, match=r"50 images take 5.9 KiB of memory in addition to what the function returned"):
        catalogue.load("mine:load", seed=1, validation=0.1)
    monkeypatch.setattr(functions, "process_memory", machine.process_memory)
    assert len(catalogue.load("mine:load", seed=1, validation=0.1).test) == 10
