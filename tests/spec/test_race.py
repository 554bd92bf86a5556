"""A race expands to every combination, and all that is impossible in it is told before anything starts."""

from __future__ import annotations

import pytest

from velodrome.cluster.local.launcher import LocalLauncher
from velodrome.errors import BadRequest
from velodrome.run.race import check
from velodrome.spec.race import expand, parse_race, parse_vary

pytestmark = pytest.mark.unit


def test_every_combination_and_repetition_is_one_job() -> None:
    race = parse_race({
        "job": {"dataset": "digits", "seed": 5},
        "vary": {"entry": [{"engine": "torch", "strategy": "ddp"}, {"engine": "tensorflow", "strategy": "mirrored"}],
                 "workers": [1, 2], "batch_size": [32, 64]},
        "repeat": 3,
    })
    entries = expand(race)
    assert len(entries) == 2 * 2 * 2 * 3
    assert len({entry.name for entry in entries}) == len(entries)
    assert {entry.job.seed for entry in entries} == {5, 6, 7}


def test_words_of_the_command_line_become_partial_jobs() -> None:
    assert parse_vary(["entry=tensorflow/parameter-server:2,torch/ddp", "batch-size=32,64"]) == {
        "entry": [{"engine": "tensorflow", "strategy": "parameter-server", "servers": 2},
                  {"engine": "torch", "strategy": "ddp"}],
        "batch_size": ["32", "64"],
    }


@pytest.mark.parametrize("word", ["workers", "workers=", "colour=red", "entry=torch", "entry=torch/ddp:x"])
def test_a_word_that_varies_nothing_is_refused(word: str) -> None:
    with pytest.raises(BadRequest, match="--vary"):
        parse_vary([word])


def test_all_impossible_jobs_are_listed_at_once() -> None:
    strategies = ["ddp", "allreduce", "nonsense"]
    race = parse_race({"job": {"engine": "torch", "servers": 1}, "vary": {"strategy": strategies}})
    with pytest.raises(BadRequest) as refusal:
        expand(race)
    text = str(refusal.value)
    assert "strategy=ddp" in text
    assert "strategy=allreduce" in text
    assert "strategy=nonsense" in text


def test_what_cannot_be_and_what_cannot_run_here_are_listed_together() -> None:
    strategies = ["single", "nonsense"]
    race = parse_race({"job": {"engine": "torch", "batch_size": 5000}, "vary": {"strategy": strategies}})
    with pytest.raises(BadRequest) as refusal:
        check(race, LocalLauncher())
    assert "no strategy 'nonsense'" in str(refusal.value)
    assert "torch-single-1w-5000b-1: --batch-size 5000" in str(refusal.value)


def test_a_field_that_varies_over_nothing_is_refused() -> None:
    with pytest.raises(BadRequest, match="'workers' has no values: name at least one, or leave it out"):
        parse_race({"vary": {"workers": []}})


def test_names_begin_with_what_the_race_says() -> None:
    race = parse_race({"job": {"strategy": "single"}, "prefix": ["model"]})
    assert [entry.name for entry in expand(race)] == ["dense-128-torch-single-1w-128b-1"]
    with pytest.raises(BadRequest, match="prefix"):
        parse_race({"prefix": ["seed"]})


def test_what_is_no_race_is_refused() -> None:
    with pytest.raises(BadRequest, match="repeat"):
        parse_race({"repeat": 0})
    with pytest.raises(BadRequest, match="colour"):
        parse_race({"colour": 1})


def test_two_configurations_that_differ_elsewhere_have_names_of_their_own() -> None:
    race = parse_race({"vary": {"learning_rate": [0.1, 0.2]}, "job": {"engine": "torch", "strategy": "single"}})
    names = [entry.name for entry in expand(race)]
    assert len(set(names)) == 2


def test_names_of_many_configurations_stay_short() -> None:
    race = parse_race({"vary": {"learning_rate": [0.001 * number for number in range(1, 41)]},
                       "job": {"engine": "tensorflow", "strategy": "parameter-server", "workers": 2, "servers": 1}})
    names = [entry.name for entry in expand(race)]
    assert len(set(names)) == 40
    assert max(map(len, names)) < 60
