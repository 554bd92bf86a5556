"""The form of a new race has every option of the command, and stands for that command."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import typer

from velodrome.cli.main import loaded
from velodrome.job.job import job_fields
from velodrome.web import form

#: Options of the command that are none of the race, or that the page decides.
NOT_IN_FORM = {"file", "runs", "artifacts", "naming", "dry_run", "measure", "warm", "mirror", "trust_code", "json"}


def options() -> dict[str, str]:
    """The options of `velodrome race` by the name of their parameter."""
    command = typer.main.get_command(loaded("race"))
    return {parameter.name or "": parameter.opts[0] for parameter in command.params}


def test_the_form_has_a_field_for_every_option_of_the_command() -> None:
    fields = {field.name for group in form.groups() for field in group.fields}
    assert fields == options().keys() - NOT_IN_FORM - {"help"}
    assert set(job_fields()) <= fields


def test_a_form_stands_for_a_command_that_can_be_pasted() -> None:
    checked = form.check({
        "name": "first", "dataset": "digits", "vary": "workers=1,2\nstrategy=single,ddp", "epochs": "2",
        "until_sure": "true", "baseline": "false", "model_args": "a=1\nb=x y", "engine": "torch",
    }, Path("my runs"))
    assert not checked.errors
    assert checked.command == (
        "velodrome race --name=first --dataset=digits --vary=workers=1,2 --vary=strategy=single,ddp --epochs=2 "
        "--until-sure --no-baseline --model-arg=a=1 '--model-arg=b=x y' --engine=torch '--runs=my runs'"
    )
    command = typer.main.get_command(loaded("race"))
    context = command.make_context("race", shlex.split(checked.command)[2:])
    assert context.params["vary"] == ["workers=1,2", "strategy=single,ddp"]
    assert context.params["until_sure"] is True
    assert context.params["baseline"] is False
    assert checked.name == "first"


def test_a_page_starts_no_code_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link can fill in the form."""
    monkeypatch.chdir(tmp_path)
    Path("my_nets.py").touch()
    for given in ({"model": "torch.utils.collect_env:run"}, {"model": "dense-128", "vary": "transform=os.path:join"},
                  {"script": "/usr/lib/python3/x.py"}):
        checked = form.check(given, Path("runs"))
        assert checked.name is None
        assert "is not in the folder that this page was started in" in " ".join(checked.errors.values())
    assert not form.check({"model": "my_nets:build"}, Path("runs")).errors


@pytest.mark.parametrize(("fields", "at", "part"), [
    ({"epochs": "0"}, "epochs", "'0'"),
    ({"epochs": "many"}, "epochs", "'many'"),
    ({"batch_size": "-3"}, "batch_size", "'-3'"),
    ({"learning_rate": "nan"}, "learning_rate", "nan"),
    ({"target": "accuracy>>1"}, "target", "accuracy>>1"),
    ({"vary": "workers"}, "vary", "workers=1,2"),
    ({"vary": "colour=red"}, "vary", "'colour'"),
    ({"name": "../../etc"}, "name", "'../../etc'"),
    ({"budget": "soon"}, "budget", "soon"),
    ({"budget": "20"}, "budget", "has no unit"),
    ({"repeat": "0"}, "repeat", "'0'"),
    ({"objective": "beauty"}, "objective", "beauty"),
    ({"sharding": "both"}, "sharding", "both"),
    ({"parallel": "all"}, "parallel", "from 1 to 999"),
    ({"colour": "red"}, "", "colour"),
    ({"epochs": 3}, "epochs", "text"),
    ({"name": "a" * 5000}, "name", "2000"),
    ({"dataset": "a\0b"}, "dataset", "text"),
])
def test_a_mistake_is_reported_at_its_field(fields: dict[str, str], at: str, part: str) -> None:
    checked = form.check(fields, Path("runs"))
    assert list(checked.errors) == [at]
    assert part in checked.errors[at]
    assert checked.name is None


def test_all_mistakes_are_reported_at_once() -> None:
    checked = form.check({
        "epochs": "none", "dataset": "cifar10", "model": "lenet", "name": "a/b", "vary": "worker=1,2", "parallel": "x",
        "budget": "soon", "place": "a" * 5000, "on": "slrum", "task": "poetry",
    }, Path("runs"))
    assert checked.errors.keys() == {
        "epochs", "dataset", "model", "name", "vary", "parallel", "budget", "place", "on", "task",
    }
    assert "did you mean 'cifar-10'" in checked.errors["dataset"]
    assert checked.name is None
    together = form.check({"epochs": "none", "vary": "strategy=single,ddp", "schedule": "step"}, Path("runs"))
    assert together.errors.keys() == {"epochs", "schedule"}
    assert "needs --milestones" in together.errors["schedule"]


def test_the_mistakes_of_a_race_are_shown_each_at_its_field() -> None:
    found = form.errors_of("this race cannot run:\n  a: --dataset 'x' is wrong\n  b: --model 'y' is wrong")
    assert found == {"dataset": "A: --dataset 'x' is wrong.", "model": "B: --model 'y' is wrong."}


def test_no_value_can_become_an_option() -> None:
    checked = form.check({"dataset": "--mirror=/etc", "vary": "--runs=/tmp\nworkers=1"}, Path("runs"))
    assert "--dataset=--mirror=/etc" in checked.words
    assert all(word == "race" or word.startswith(("--dataset=", "--vary=", "--runs=runs")) for word in checked.words)


@pytest.mark.parametrize(("sentence", "at"), [
    ("--dataset 'nothing' is unknown", "dataset"), ("--no-baseline makes no sense", "baseline"),
    ("no run: try --out", ""), ("something else", ""),
])
def test_a_sentence_of_the_command_is_shown_at_the_field_it_names(sentence: str, at: str) -> None:
    assert list(form.errors_of(sentence)) == [at]
