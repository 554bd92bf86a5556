"""A race expands to every combination, and all that is impossible in it is told before anything starts."""

from __future__ import annotations

from typing import Any

import pytest

from racing import here
from velodrome.errors import BadRequest
from velodrome.job.names import expand
from velodrome.job.race import Race, combinations, parse_race, parse_vary
from velodrome.races.check import check_race

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
        check_race(race, here())
    assert "no strategy 'nonsense'" in str(refusal.value)
    assert "torch-single-1w-5000b-1: --batch-size 5000" in str(refusal.value)


def sizes(race: Race) -> list[tuple[str, int]]:
    return [(f"{entry.job.engine}/{entry.job.strategy}", entry.job.workers) for entry in expand(race)]


@pytest.mark.parametrize("workers", [["1", "2"], ["2", "1"], ["2", "4"]])
def test_a_baseline_of_one_process_takes_part_once_with_one_worker(workers: list[str]) -> None:
    race = parse_race({"vary": {**parse_vary(["entry=torch/single,torch/ddp"]), "workers": workers}})
    assert sizes(race) == [("torch/single", 1), *(("torch/ddp", int(count)) for count in workers)]
    assert combinations(race).adapted == {"torch/single": 1}
    shared = parse_race({"job": {"workers": 2}, "vary": {"strategy": ["single", "ddp"]}, "repeat": 2})
    assert sizes(shared) == [("torch/single", 1), ("torch/single", 1), ("torch/ddp", 2), ("torch/ddp", 2)]


@pytest.mark.parametrize("content", [
    {"job": {"strategy": "single"}, "vary": {"workers": [1, 2]}},
    {"vary": {"entry": [{"engine": "torch", "strategy": "single", "workers": 2}]}},
])
def test_one_process_with_several_workers_is_refused_if_nothing_else_was_asked_for(content: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="--workers 2: strategy torch/single is one process"):
        expand(parse_race(content))


@pytest.mark.parametrize(("content", "told"), [
    ({"vary": {"entry": [{"engine": "torch", "strategy": "nonsense", "servers": 1, "epochs": 2}]}},
     "entry=torch/nonsense:1, epochs=2: engine torch has no strategy 'nonsense'"),
    ({"vary": {"entry": [{"model_args": {"width": 3}, "keep_going": True}]}},
     "entry=model_args=width=3, keep_going=true: --keep-going"),
    ({"vary": {"workers": {"a": 1}}}, "vary.workers 'a=1': must be a valid list"),
    ({"job": {"dataset": {"a": 1}}}, "--dataset 'a=1': must be a valid string"),
    ({"job": {"model_args": [1, 2]}}, "--model-args '1, 2': must be fields by name"),
    ({"vary": {"entry": ["torch"]}}, "'torch' is not an entry; write engine/strategy"),
    ({"epochs": 3}, "no field 'epochs': put it under 'job'"),
    ({"colour": {"a": 1}}, "no field 'colour': choose one of job, vary"),
])
def test_a_refusal_quotes_what_was_asked_for_as_it_would_be_typed(content: dict[str, Any], told: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        expand(parse_race(content))
    assert told in str(refusal.value)
    assert not set("{}[]") & set(str(refusal.value))


def test_a_file_may_name_entries_as_the_command_line_does() -> None:
    race = parse_race({"vary": {"entry": ["torch/ddp", "tensorflow/parameter-server:2"]}})
    assert [(job.engine, job.strategy, job.servers) for job in (entry.job for entry in expand(race))] == [
        ("torch", "ddp", 0), ("tensorflow", "parameter-server", 2),
    ]


def test_jobs_without_an_engine_have_that_of_the_race() -> None:
    race = parse_race({"vary": {"strategy": ["single", "ddp"]}, "engine": "tensorflow"})
    assert sizes(race) == [("tensorflow/single", 1), ("torch/ddp", 1)]


def test_schedules_of_a_pipeline_vary_under_their_own_name() -> None:
    race = parse_race({"job": {"strategy": "pipeline", "workers": 2}, "vary": {"schedule": ["gpipe", "1f1b"]}})
    assert race.vary == {"pipeline_schedule": ["gpipe", "1f1b"]}
    jobs = [entry.job for entry in combinations(race).entries if not entry.baseline]
    assert {job.pipeline_schedule for job in jobs} == {"gpipe", "1f1b"}
    assert parse_race({"vary": {"schedule": ["cosine", "linear"]}}).vary == {"schedule": ["cosine", "linear"]}


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


def test_the_range_of_pixels_may_be_varied() -> None:
    vary = parse_vary(["pixels=unit,byte,standardize"])
    race = parse_race({"vary": vary, "job": {"engine": "torch", "strategy": "single"}})
    jobs = [entry.job for entry in expand(race)]
    assert [job.pixels for job in jobs] == ["unit", "byte", "standardize"]
    with pytest.raises(BadRequest, match=r"--pixels 'grey': must be 'auto', 'unit', 'byte' or 'standardize'"):
        expand(parse_race({"vary": {"pixels": ["grey"]}}))


def test_names_of_many_configurations_stay_short() -> None:
    race = parse_race({"vary": {"learning_rate": [0.001 * number for number in range(1, 41)]},
                       "job": {"engine": "tensorflow", "strategy": "parameter-server", "workers": 2, "servers": 1}})
    names = [entry.name for entry in expand(race)]
    assert len(set(names)) == 40
    assert max(map(len, names)) < 60
