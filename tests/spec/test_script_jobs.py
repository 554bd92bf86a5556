"""Jobs with a script: labels in place of what the script decides, and refusals of what it would ignore."""

from __future__ import annotations

from typing import Any

import pytest

from velodrome.errors import BadRequest
from velodrome.spec.job import Job
from velodrome.spec.race import Race, parse_vary
from velodrome.spec.race_names import expand
from velodrome.spec.resolve import resolve
from velodrome.spec.script import words_of


def test_what_a_script_decides_itself_is_a_label() -> None:
    job = resolve(Job(script="nets/train.py", workers=2), "torch")
    assert (job.engine, job.strategy, job.dataset, job.model) == ("torch", "script", "script", "nets/train.py")
    assert resolve(job) == job, "a stored job resolves to itself"


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        pytest.param({"epochs": 3}, "--epochs: a script decides that itself", id="epochs"),
        pytest.param({"batch_size": 8}, "--batch-size: a script decides that itself", id="batch"),
        pytest.param({"dataset": "mnist"}, "--dataset: a script decides that itself", id="dataset"),
        pytest.param({"strategy": "ddp"}, "--strategy 'ddp': a script brings its own distribution", id="strategy"),
        pytest.param({"script_args": "--name 'x"}, "cannot be split into words: No closing quotation", id="quote"),
        pytest.param({"read": ["loss ("]}, "--read 'loss (' is not a regular expression", id="pattern"),
        pytest.param({"read": ["loss (.*)"]}, r"has no named group: write one such as 'loss: (?P<loss>", id="group"),
        pytest.param({"read": ["(?P<a>b)" * 500]}, "a pattern has at most 1,000 characters", id="long"),
    ],
)
def test_a_script_refuses_what_it_would_ignore(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadRequest) as refused:
        resolve(Job(script="train.py", **fields))
    assert sentence in str(refused.value)


@pytest.mark.parametrize("fields", [{"script_args": "--lr 1"}, {"read": ["(?P<loss>x)"]}, {"strategy": "script"}])
def test_what_is_for_scripts_is_refused_without_one(fields: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="is for a script of your own: name it with --script"):
        resolve(Job(**fields))


def test_arguments_are_split_as_in_a_shell_and_know_seed_and_workers() -> None:
    job = Job(script="a.py", script_args="--seed {seed} --name 'two words' -n{workers}", seed=7, workers=3)
    assert words_of(job) == ["--seed", "7", "--name", "two words", "-n3"]


def test_a_race_varies_arguments_workers_and_engine_and_has_no_baseline_of_another_model() -> None:
    vary = parse_vary(["script_args=--lr 0.1,--lr 0.01", "workers=1,2", "engine=torch"])
    race = Race(job={"script": "train.py"}, vary=vary, baseline=True, named_by=["script_args"], repeat=2)
    entries = expand(race)
    assert [entry.name for entry in entries if entry.repetition == 2] == [
        "torch-script-1w-lr-0.1-2", "torch-script-2w-lr-0.1-2", "torch-script-1w-lr-0.01-2",
        "torch-script-2w-lr-0.01-2"]
    assert {(entry.job.seed, entry.repetition) for entry in entries} == {(1, 1), (2, 2)}


def test_quotes_hold_a_value_with_commas_together() -> None:
    assert parse_vary(['script_args="--sizes 1,2","--sizes 3"'])["script_args"] == ["--sizes 1,2", "--sizes 3"]
    with pytest.raises(BadRequest, match="a double quote has no end"):
        parse_vary(['script_args="--sizes 1,2'])
