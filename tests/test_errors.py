"""What is suggested in place of a name that does not exist."""

from __future__ import annotations

import pytest

from velodrome.catalog.models import zoo_model
from velodrome.catalog.registry import engine, strategy_of
from velodrome.data.catalogue import data_set
from velodrome.errors import BadRequest, similar_names, which_name
from velodrome.job.job import Job, make_job
from velodrome.job.race import parse_race, parse_vary


@pytest.mark.parametrize(("ask", "sentence"), [
    (lambda: engine("pytorch"), "no engine 'pytorch': did you mean 'torch'? `velodrome engines` lists all"),
    (lambda: engine("tf"), "no engine 'tf': did you mean 'tensorflow'? `velodrome engines` lists all"),
    (lambda: strategy_of(Job(engine="torch", strategy="ddpp")),
     "engine torch has no strategy 'ddpp': did you mean 'ddp'? `velodrome engines` lists all"),
    (lambda: strategy_of(Job(engine="torch", strategy="horovodrun")),
     "engine torch has no strategy 'horovodrun': did you mean --engine horovod? `velodrome engines` lists all"),
    (lambda: strategy_of(Job(engine="tensorflow", strategy="MultiWorkerMirroredStrategy")),
     "did you mean 'multi-worker-mirrored'"),
    (lambda: strategy_of(Job(engine="torch", strategy="dpp")), "no strategy 'dpp': did you mean 'ddp'?"),
    (lambda: strategy_of(Job(engine="torch", strategy="centralstorage")),
     "did you mean --engine tensorflow --strategy central-storage? `velodrome engines` lists all"),
    (lambda: strategy_of(Job(engine="torch", strategy="mirored")), "mean --engine tensorflow --strategy mirror"),
    (lambda: zoo_model("lenet"), "no model 'lenet': did you mean 'lenet5'? `velodrome train --help` lists all"),
    (lambda: data_set("cifar10"), "no data set 'cifar10': did you mean 'cifar-10'? `velodrome data list` lists all"),
    (lambda: data_set("mnist-fashion"), "no data set 'mnist-fashion': did you mean 'fashion-mnist'?"),
    (lambda: data_set("fashion"), "did you mean 'fashion-mnist' or 'fashion-products'?"),
    (lambda: make_job({"worker": 2}), "no field 'worker': did you mean 'workers'? `velodrome train --help` lists all"),
    (lambda: make_job({"lr": 2}), "no field 'lr': did you mean 'learning_rate'?"),
    (lambda: parse_vary(["worker=1,2"]), "--vary 'worker=1,2': no field 'worker'; did you mean 'workers'?"),
    (lambda: parse_race({"varies": {}}), "no field 'varies': did you mean 'vary'?"),
])
def test_an_unknown_name_is_answered_with_the_likeliest(ask, sentence: str) -> None:
    with pytest.raises(BadRequest) as refused:
        ask()
    assert sentence in str(refused.value)
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(("words", "sentence"), [
    (["trian"], "No such command 'trian'; did you mean 'train'? `velodrome --help` lists all"),
    (["horovodrun"], "No such command 'horovodrun'; did you mean 'train'?"),
    (["download", "mnist"], "No such command 'download'; did you mean 'data'?"),
    (["results"], "No such command 'results'; did you mean 'runs' or 'report'?"),
    (["compare", "a", "b"], "No such command 'compare'; did you mean 'runs' or 'recommend'?"),
    (["data", "fetch", "mnist"], "No such command 'fetch'; did you mean 'prepare'? `velodrome data --help` lists all"),
    (["runs", "delete", "x"], "No such command 'delete'; did you mean 'rm'?"),
    (["train", "--worker", "2"], "No such option: --worker; did you mean '--workers'? `velodrome train --help` lists"),
    (["train", "--lr", "2"], "No such option: --lr; did you mean '--learning-rate'?"),
    (["runs", "list", "--jsn"], "No such option: --jsn; did you mean '--json'?"),
])
def test_an_unknown_command_or_option_is_answered_with_the_likeliest(velodrome, words: list[str], sentence) -> None:
    done = velodrome(*words)
    assert done.code == 2
    assert sentence in " ".join(done.text.replace("│", " ").split())


def test_a_name_like_no_other_is_answered_with_all_if_they_are_few() -> None:
    assert which_name("nonsense", ["a", "b"], "velodrome x") == "choose one of a, b"
    many = [f"name-{number}" for number in range(50)]
    assert which_name("nonsense", many, "velodrome x") == "`velodrome x` lists all"
    assert similar_names("n", ["name-1", "name-2", "name-3", "name-4"]) == []
    assert len(similar_names("name", ["name-1", "name-2", "name-3", "name-4"])) == 3
