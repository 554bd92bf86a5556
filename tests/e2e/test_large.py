"""A data set of 4 GiB trains in processes that never hold 1.5."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from velodrome.data.examples import image_part, image_set
from velodrome.data.shards.write import write_shards
from velodrome.data.source import Description
from velodrome.data.storage.store import open_store

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1500), pytest.mark.usefixtures("no_strays")]

COUNT, SHAPE = 1 << 20, (64, 64, 1)


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> str:
    """A million images, almost all of them black, in 8 files."""
    folder: Path = tmp_path_factory.mktemp("large")
    with (folder / "pixels").open("wb") as stream:
        stream.truncate(COUNT * 64 * 64)
    pixels = np.memmap(folder / "pixels", np.uint8, "r+", shape=(COUNT, *SHAPE))
    labels = np.random.default_rng(0).integers(0, 10, COUNT)
    pixels[np.arange(COUNT), labels, 0, 0] = 255
    some = image_part(np.asarray(pixels[:1000]), labels[:1000])
    splits = image_set("large", image_part(np.asarray(pixels), labels), some, some, classes=10, scale=1 / 255)
    about = Description("large", "Large", "none", "", COUNT, 1000, 1000, SHAPE, 10)
    write_shards(splits, about, open_store(str(folder / "set")), shards=8, encoding="raw", seed=1, validation=0.1)
    (folder / "pixels").unlink()
    return f"shards:{folder / 'set'}"


@pytest.mark.parametrize(
    ("engine", "strategy", "workers"),
    [("torch", "single", 1), ("torch", "allreduce", 2), ("tensorflow", "single", 1)],
)
def test_resident_memory_stays_within_one_and_a_half_gib(
    velodrome, runs, large, monkeypatch, engine, strategy, workers
):
    monkeypatch.setenv("VELODROME_CACHE", large.removeprefix("shards:") + "-cache")
    monkeypatch.setenv("VELODROME_DATA_MEMORY", str(256 << 20))
    done = velodrome(
        "train", "--dataset", large, "--model", "linear", "--engine", engine, "--strategy", strategy,
        "--workers", workers, "--batch-size", 512, "--epochs", 1, "--runs", runs, "--json",
    )
    assert done.code == 0, done.text
    result = done.json()
    assert result["test"]["accuracy"] > 0.9
    assert result["steps"] == COUNT // 512
    for node in result["nodes"]:
        assert node["memory_bytes"]["max"] < 1536 << 20, json.dumps(node)
