"""Names by the published scheme say what runs and parse back; a race keeps them when it is gone on with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "data"))
from pictures import write_folders

from velodrome.catalog.registry import engines
from velodrome.data import catalogue
from velodrome.errors import BadRequest
from velodrome.job.job import Job
from velodrome.job.names import (
    PublishedName,
    abbreviations,
    check_name,
    expand,
    label_of,
    local_type,
    parse,
    published_names,
    sizes_of,
)
from velodrome.job.race import parse_race
from velodrome.job.resolve import resolve
from velodrome.races.folder import RaceFolder

pytestmark = pytest.mark.unit

EXAMPLE = "MWM001-33000d-artType-2i-128b-m5-4xlarge-10e-230713-102652"
STAMP = "261116-101500"


def test_the_published_example_says_what_it_said_and_is_made_again() -> None:
    told = parse(EXAMPLE)
    assert told == PublishedName(
        "tensorflow", "multi-worker-mirrored", 1, 33000, "artType", 2, 128, "m5-4xlarge", 10, "230713-102652"
    )
    assert str(told) == EXAMPLE


@pytest.mark.parametrize("name", [
    "", "MWM001", EXAMPLE.lower(), EXAMPLE.replace("MWM", "QQQQ"), EXAMPLE.replace("33000d", "33000"),
    EXAMPLE.replace("001", "1"), EXAMPLE + "0", EXAMPLE.replace("-2i", "-i"), EXAMPLE.replace("artType", "art Type"),
])
def test_a_name_that_does_not_follow_the_scheme_is_refused_with_an_example(name: str) -> None:
    with pytest.raises(BadRequest, match="MWM001-33000d"):
        parse(name)


def test_every_strategy_has_letters_of_its_own() -> None:
    strategies = {(engine.name, strategy.name) for engine in engines() for strategy in engine.strategies}
    assert abbreviations().keys() == strategies
    assert len(set(abbreviations().values())) == len(strategies)
    for engine, strategy in strategies:
        name = PublishedName(engine, strategy, 12, 5, "x", 1, 2, "local-2c", 3, STAMP)
        assert parse(str(name)) == name


def test_names_count_processes_as_instances_and_tell_likes_apart_by_their_group() -> None:
    servers = resolve(Job(engine="tensorflow", strategy="parameter-server", workers=2, servers=1, batch_size=32))
    ddp = resolve(Job(strategy="ddp", workers=2))
    names = published_names([servers, ddp, ddp.model_copy(update={"seed": 2})], STAMP)
    assert names == [
        f"PSS001-1294d-digits-4i-32b-{local_type()}-5e-{STAMP}",
        f"DDP001-1294d-digits-2i-128b-{local_type()}-5e-{STAMP}",
        f"DDP002-1294d-digits-2i-128b-{local_type()}-5e-{STAMP}",
    ]
    assert [check_name(name) for name in names] == names


@pytest.mark.parametrize(("dataset", "label"), [
    ("fashion-mnist", "fashionMnist"), ("fashion-products", "artType"), ("fashion-products:gender", "gender"),
    ("path:/data/my photos/", "myPhotos"), ("shards:hdfs://host:9000/data/mnist", "mnist"), ("my.data:load", "load"),
])
def test_the_label_is_what_is_told_apart(dataset: str, label: str) -> None:
    assert label_of(dataset) == label


def test_a_race_named_so_keeps_the_time_of_its_first_begin(runs) -> None:
    race = parse_race({"job": {"dataset": "digits"}, "vary": {"workers": [1]}, "repeat": 2, "naming": "published"})
    folder = RaceFolder(runs, "first")
    begun = folder.stamped(race)
    folder.begin(begun.model_copy(update={"stamp": STAMP}))
    again = folder.stamped(race)
    assert again.stamp == STAMP
    folder.begin(again)
    assert [entry.name for entry in expand(again)] == [
        f"PTS00{number}-1294d-digits-1i-128b-{local_type()}-5e-{STAMP}" for number in (1, 2)
    ]


@pytest.mark.parametrize("kind", ["photos", "words"])
def test_a_race_keeps_its_names_when_reading_its_data_tells_another_size(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("VELODROME_CACHE", str(tmp_path / "cache"))
    if kind == "photos":
        folder = write_folders(tmp_path / "photos")
        for number in range(9):
            (folder / "ant" / f"bad-{number}.png").write_bytes(b"")
        job = {"dataset": f"path:{folder}", "bad_data": "skip"}
    else:
        (tmp_path / "book.txt").write_text("to be or not to be\n" * 40)
        job = {"dataset": f"text:{tmp_path / 'book.txt'}", "model": "lstm-small"}
    race = parse_race({"job": job, "repeat": 2, "naming": "published", "stamp": STAMP})
    begun = RaceFolder(runs, "first").stamped(race)
    RaceFolder(runs, "first").begin(begun)
    before = [entry.name for entry in expand(begun)]
    catalogue.prepare(job["dataset"], bad_data=job.get("bad_data", "fail"))
    again = RaceFolder(runs, "first").stamped(race)
    assert [entry.name for entry in expand(again)] == before
    RaceFolder(runs, "first").begin(again)
    size = catalogue.describe(job["dataset"], bad_data=job.get("bad_data", "fail")).train
    if kind == "photos":
        assert size == 22 < parse(before[0]).size
    else:
        assert size == 252 == parse(before[0]).size


def test_a_race_keeps_its_names_on_a_machine_with_other_cores(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    race = parse_race({"job": {"dataset": "digits"}, "naming": "published", "stamp": STAMP})
    begun = RaceFolder(runs, "first").stamped(race)
    RaceFolder(runs, "first").begin(begun)
    before = [entry.name for entry in expand(begun)]
    monkeypatch.setattr("os.cpu_count", lambda: 77)
    again = RaceFolder(runs, "first").stamped(race)
    assert [entry.name for entry in expand(again)] == before
    RaceFolder(runs, "first").begin(again)
    assert "local-77c" in expand(RaceFolder(runs, "second").stamped(race))[0].name


def test_data_of_another_share_or_care_has_a_size_of_its_own() -> None:
    job = resolve(Job())
    names = published_names([job, job.model_copy(update={"validation": 0.5})], STAMP)
    assert [parse(name).size for name in names] == [1294, 719]
    assert published_names([job], STAMP, sizes=sizes_of([job], {})) == names[:1]


def test_a_race_is_run_under_published_names_and_resumed(velodrome, runs) -> None:
    words = ["race", "--dataset", "digits", "--strategy", "single", "--epochs", 1, "--name", "r", "--runs", runs]
    told = velodrome(*words, "--naming", "published", "--dry-run", "--json").json()
    assert parse(told["jobs"][0]["run"]).size == 1294
    assert velodrome(*words, "--naming", "odd", "--dry-run").code == 2
