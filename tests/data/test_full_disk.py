"""A disk that fills up while data is written ends the command with a sentence, and leaves nothing half written."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from pictures import write_folders

pytestmark = [
    pytest.mark.integration, pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system"),
]

#: The command, on a disk that seems large until it is full: as if another program filled it meanwhile.
_COMMAND = """
import shutil, sys
usage = shutil.disk_usage
shutil.disk_usage = lambda path: usage(path)._replace(free=2**40)
from velodrome.cli.main import main
main(sys.argv[1:])
"""


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of 300 KiB."""
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "velodrome-test", place], check=True)
    yield place
    subprocess.run(["umount", place], check=True)


def run(*words: object, cache: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "VELODROME_CACHE": str(cache)}
    return subprocess.run(
        [sys.executable, "-c", _COMMAND, *map(str, words)], env=environment, capture_output=True, text=True, timeout=280
    )


def sentence_of(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    (sentence,) = [line for line in done.stderr.splitlines() if line.startswith("velodrome:")]
    assert "No space left on device" in sentence
    assert "free some space, or " in sentence
    return sentence


@pytest.mark.parametrize(
    "kind", ["photos", "table", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("arrays", "images", "text"))]
)
def test_decoded_data(tmp_path: Path, small: Path, kind: str) -> None:
    """Some of it is written to a mapped file, where a full disk ends a process without a word."""
    values = np.random.default_rng(1).normal(size=(100, 2000)).astype(np.float32)
    place = f"path:{tmp_path / 'numbers.npz'}"
    match kind:
        case "photos":
            place = f"path:{write_folders(tmp_path / 'photos')}?size=100x100"
        case "arrays":
            np.savez(tmp_path / "numbers.npz", x_train=values, y_train=values[:, 0], x_test=values, y_test=values[:, 0])
        case "images":
            pixels, labels = np.zeros((10, 200, 200), np.uint8), np.arange(10) % 2
            np.savez(tmp_path / "numbers.npz", x_train=pixels, y_train=labels, x_test=pixels + 1, y_test=labels)
        case "table":
            numbers = [','.join(f'{number:.3f}' for number in row[:20]) for row in values]
            rows = [f"{place % 3},{numbers[place % 100]}" for place in range(5000)]
            heads = ",".join(["kind", *(f"c{number}" for number in range(20))])
            (tmp_path / "table.csv").write_text("\n".join([heads, *rows]))
            place = f"path:{tmp_path / 'table.csv'}?target=kind"
        case "text":
            (tmp_path / "text.txt").write_text("\n".join(f"word{number % 50} " * 100 for number in range(2000)))
            place = f"text:{tmp_path / 'text.txt'}"
    sentence = sentence_of(run("data", "prepare", place, cache=small / "cache"))
    assert f"decoded data cannot be stored in {small}/cache/" in sentence
    left = [path.name for path in (small / "cache").rglob("*") if path.is_file()]
    assert set(left) <= {".lock"}


def test_a_data_set_of_a_publisher(small: Path) -> None:
    mirror = os.environ.get("VELODROME_DATA_MIRROR", "")
    if not (Path(mirror) / "mnist").is_dir():
        pytest.skip("no mirror holds MNIST")
    sentence = sentence_of(run("data", "prepare", "mnist", cache=small / "cache"))
    assert f"data set 'mnist' cannot be stored in {small}/cache/mnist" in sentence
    assert [path.name for path in (small / "cache" / "mnist").iterdir()] == [".lock"]


def test_shards(tmp_path: Path, small: Path) -> None:
    (small / "ballast").write_bytes(os.urandom(200_000))
    sentence = sentence_of(run("data", "shard", "digits", "--encoding", "raw", "--to", small / "set",
                               cache=tmp_path / "cache"))
    assert f"{small}/set/digits-train-0000" in sentence
    assert not (small / "set").exists()
