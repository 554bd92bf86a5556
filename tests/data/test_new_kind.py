"""A kind of data that another package adds: one module, named by an entry point, and no change to Velodrome."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from velodrome.catalog import registry
from velodrome.data import catalogue
from velodrome.errors import BadRequest

pytestmark = pytest.mark.usefixtures("own_cache")

MODULE = """
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from velodrome.data.examples import image_part, image_set
from velodrome.data.source import CachedSource, Description, PathFormat, file_key, notes_of
from velodrome.data.split import divide, sizes_of
from velodrome.errors import BadRequest


@dataclass(frozen=True)
class Rows(CachedSource):
    path: Path

    @property
    def source(self):
        return f"rows {self.path}"

    def key(self):
        return file_key(self.path, "rows")

    def describe(self, validation):
        about = self.decoded().about
        train, validated, test = sizes_of((about["count"], 0, 0), validation)
        return Description(self.name, "rows", "none", "", train, validated, test, (1, 4, 1), 2, notes=notes_of(about))

    def make(self, folder, faults, progress):
        rows = []
        for number, line in enumerate(self.path.read_text().split(), 1):
            cells = line.split(",")
            if len(cells) == 5:
                rows.append([int(cell) for cell in cells])
            else:
                faults.add("lines without five numbers", f"line {number}")
        np.save(folder / "rows.npy", np.array(rows, np.uint8))
        return {"count": len(rows)}

    def load(self, seed, validation):
        kept = self.decoded()
        rows = np.asarray(kept.array("rows"))
        labels = rows[:, 4].astype(np.int64)
        parts = divide(labels, np.zeros(len(rows), np.int8), seed, validation)
        train, validated, test = (
            image_part(rows[places, :4].reshape(-1, 1, 4, 1), labels[places]) for places in parts
        )
        return image_set(self.name, train, validated, test, classes=2, notes=notes_of(kept.about))


SCHEMES = {"rows": lambda place, bad_data: Rows(f"rows:{place}", bad_data, Path(place))}
FORMATS = (
    PathFormat(lambda path, options: path.suffix == ".rows", (),
               lambda name, path, options, bad_data: Rows(name, bad_data, path)),
)
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch):
    """An installed package with a module of sources."""
    site = tmp_path / "site"
    about = site / "added_rows-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: added-rows\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[velodrome.sources]\nrows = added_rows\n")
    (site / "added_rows.py").write_text(MODULE)
    monkeypatch.syspath_prepend(site)
    caches = (registry._registered, registry.Plugins.broken, catalogue._added)
    for each in caches:
        each.cache_clear()
    yield
    sys.modules.pop("added_rows", None)
    for each in caches:
        each.cache_clear()


def written(path: Path, bad: str = "") -> Path:
    path.write_text(bad + "".join(f"{row},{row + 1},{row + 2},{row + 3},{row % 2}\n" for row in range(40)))
    return path


@pytest.mark.parametrize("name", ["rows:{}", "path:{}"])
def test_data_of_an_added_kind_is_kept_checked_and_loaded(package, tmp_path, name) -> None:
    file = written(tmp_path / "some.rows")
    name = name.format(file)
    assert not catalogue.is_here(name)
    assert (catalogue.describe(name).train, catalogue.describe(name).test) == (29, 8)
    assert catalogue.is_here(name)
    images = catalogue.load(name, seed=1, validation=0.1)
    every = np.concatenate([part.images[:, 0, 0, 0] for part in images.parts])
    assert sorted(every.tolist()) == list(range(40))
    (array,) = [Path(checked.file) for checked in catalogue.verify(name)]
    array.write_bytes(b"x" * array.stat().st_size)
    assert [checked.state for checked in catalogue.verify(name)] == ["damaged"]
    catalogue.data_set(name).forget_damaged()
    assert not catalogue.is_here(name)


def test_what_is_wrong_with_data_of_an_added_kind_follows_the_policy(package, tmp_path) -> None:
    file = written(tmp_path / "some.rows", bad="1,2\n")
    with pytest.raises(BadRequest, match=r"lines without five numbers: 1 \(line 1\)\. Repair it, or give --bad-data"):
        catalogue.load(f"path:{file}", seed=1, validation=0.1)
    notes = catalogue.load(f"path:{file}", seed=1, validation=0.1, bad_data="skip").notes
    assert notes == ("lines without five numbers: 1 (line 1): left out",)


def test_a_scheme_that_nobody_adds_is_refused(tmp_path) -> None:
    with pytest.raises(BadRequest, match="name your own as path:PLACE, text:PLACE, shards:PLACE or module:function"):
        catalogue.data_set(f"rows:{tmp_path / 'some.rows'}")
