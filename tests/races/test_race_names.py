"""The names of a race's runs say what varies, and stay what they are when the race is continued."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from velodrome.clusters import environments
from velodrome.job.names import check_name, expand
from velodrome.job.race import Race, parse_race
from velodrome.races.folder import RaceFolder

pytestmark = pytest.mark.unit


def race(repeat: int = 1, job: dict[str, Any] | None = None, **vary: list[Any]) -> Race:
    return parse_race({"job": {"strategy": "single", **(job or {})}, "vary": vary, "repeat": repeat})


def names(folder: RaceFolder, asked: Race) -> list[str]:
    return [entry.name for entry in expand(folder.stamped(asked))]


@pytest.mark.parametrize(("vary", "told"), [
    ({"epochs": [1, 2]}, ["1e", "2e"]),
    ({"optimizer": ["sgd", "adam"], "epochs": [1, 2]}, ["sgd-1e", "sgd-2e", "adam-1e", "adam-2e"]),
    ({"learning_rate": [0.1, 1e-05]}, ["lr0.1", "lr1e-05"]),
    ({"seed": [7, 8]}, ["seed7", "seed8"]),
    ({"steps": [100, None]}, ["100steps", ""]),
    ({"checkpoints": [True, False]}, ["checkpoints", "no-checkpoints"]),
    ({"target": ["accuracy>=0.9", "loss<=0.1"]}, ["target-accuracy-0.9", "target-loss-0.1"]),
    ({"entry": [{"model_args": {"width": 64, "deep": True}}, {}]}, ["width-64-deep-true", ""]),
    ({"decay_after": [1, 2], "decay": [0.5, 0.5]}, None),
])
def test_every_field_that_varies_is_in_the_names(runs: Path, vary: dict[str, Any], told: list[str] | None) -> None:
    found = names(RaceFolder(runs, "first"), race(2, **vary))
    assert len(set(found)) == len(found)
    if told is not None:
        words = [f"-{one}" if one else "" for one in told]
        assert found == [f"torch-single-1w-128b{word}-{number}" for word in words for number in (1, 2)]
    else:  # the same job twice is told apart by nothing
        assert found[0] == "torch-single-1w-128b-decay-after-1-1"
        assert found[2] == "torch-single-1w-128b-decay-after-1-1-again"


def test_a_field_that_does_not_vary_is_in_no_name(runs: Path) -> None:
    asked = race(entry=[{"strategy": "ddp", "epochs": 3}, {"strategy": "single", "epochs": 3}])
    assert names(RaceFolder(runs, "first"), asked) == ["torch-ddp-1w-128b-1", "torch-single-1w-128b-1"]
    asked = race(entry=[{"dataset": "digits", "epochs": 3}, {"dataset": "mnist", "epochs": 5}])
    assert names(RaceFolder(runs, "first"), asked) == ["digits-torch-single-1w-128b-1", "mnist-torch-single-1w-128b-1"]


def test_names_of_long_values_are_short_and_differ(runs: Path) -> None:
    long = "x" * 200
    asked = race(entry=[{"dataset": f"path:/{long}{number}", "model_args": {"text": long + str(number)}}
                        for number in range(3)])
    found = names(RaceFolder(runs, "first"), asked)
    assert len(set(found)) == 3
    assert [check_name(name) for name in found] == found


def test_a_race_that_earlier_versions_began_keeps_its_names(runs: Path) -> None:
    asked = race(epochs=[1, 2, 3])
    folder = RaceFolder(runs, "first")
    folder.path.mkdir(parents=True)
    (folder.path / "race.yaml").write_text(yaml.safe_dump(asked.model_dump(exclude_defaults=True)))
    assert names(folder, asked) == [
        "torch-single-1w-128b-1", "torch-single-1w-128b-1-again", "torch-single-1w-128b-1-again-2",
    ]
    folder.begin(folder.stamped(asked))


def test_a_race_that_is_continued_is_the_one_that_was_begun(runs: Path) -> None:
    asked, folder = race(epochs=[1, 2]), RaceFolder(runs, "first")
    begun = folder.stamped(asked)
    folder.begin(begun)
    again = RaceFolder(runs, "first").stamped(asked)
    assert again == begun
    RaceFolder(runs, "first").begin(again)
    assert folder.written() == begun


def test_a_race_keeps_the_engine_that_it_began_with(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, folder = race(), RaceFolder(runs, "first")
    monkeypatch.setattr(environments, "default_engine", lambda *_: "tensorflow")
    assert names(folder, asked) == ["tensorflow-single-1w-128b-1"]
    folder.begin(folder.stamped(asked))
    monkeypatch.setattr(environments, "default_engine", lambda *_: "torch")
    assert names(folder, asked) == ["tensorflow-single-1w-128b-1"]
    folder.begin(folder.stamped(asked))
    assert names(RaceFolder(runs, "second"), asked) == ["torch-single-1w-128b-1"]


def test_an_engine_that_jobs_name_themselves_is_not_recorded(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "default_engine", lambda *_: "tensorflow")
    asked = race(entry=[{"engine": "torch", "strategy": "ddp"}])
    assert RaceFolder(runs, "first").stamped(asked) == asked
