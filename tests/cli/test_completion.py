"""After TAB, the shell offers the values of options and the names of what is stored, whichever shell it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from synthetic_races import repeated, result, typed, write_race
from velodrome.job.job import Job, job_fields
from velodrome.run.store import Store

pytestmark = pytest.mark.unit


@pytest.fixture
def offered(velodrome, monkeypatch: pytest.MonkeyPatch):
    """What fish offers for a command line; other shells ask in the same way."""

    def ask(line: str) -> list[str]:
        monkeypatch.setenv("_VELODROME_COMPLETE", "complete_fish")
        monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
        monkeypatch.setenv("_TYPER_COMPLETE_ARGS", f"velodrome {line}")
        return [word.partition("\t")[0] for word in velodrome().out.splitlines() if word]

    return ask


@pytest.mark.parametrize(("line", "words"), [
    ("report first --format ", ["html", "markdown", "csv", "latex"]),
    ("runs export first --format t", ["tar.gz"]),
    ("report first --objective t", ["time-to-accuracy", "throughput"]),
    ("recommend first --objective c", ["cost"]),
    ("recommend first --price-of h", ["host"]),
    ("runs list --status i", ["interrupted", "incomplete"]),
    ("race --naming ", ["plain", "published"]),
    ("race --on d", ["debug"]),
    ("train --optimizer ", ["sgd", "momentum", "adam", "adamw"]),
    ("train --engine torch --strategy ", [
        "allreduce", "ddp", "diloco", "fsdp", "local-sgd", "parameter-server", "pipeline", "single", "tensor",
        "zero1"]),
    ("train --engine tensorflow --strategy m", ["mirrored", "multi-worker-mirrored"]),
    ("train --strategy d", ["data-parallel", "ddp", "diloco"]),
    ("study show k", ["kouskouras-2022"]),
    ("study run aws-2023 --scale sm", ["smoke", "small"]),
    ("data show mn", ["mnist"]),
    ("data shard mnist --encoding p", ["png"]),
])
def test_values_are_offered(offered, line: str, words: list[str]) -> None:
    assert offered(line) == words


@pytest.mark.parametrize(("word", "words"), [
    ("ep", ["epochs=1", "epochs=1,5"]),
    ("batch", ["batch_size=", "batch_scope="]),
    ("optimizer=", ["optimizer=sgd", "optimizer=momentum", "optimizer=adam", "optimizer=adamw"]),
    ("optimizer=sgd,", ["optimizer=sgd,momentum", "optimizer=sgd,adam", "optimizer=sgd,adamw"]),
    ("batch-size=3", ["batch-size=32,64", "batch-size=32,64,128"]),
    ("entry=torch/dd", ["entry=torch/ddp"]),
    ("entry=torch/ddp,tensorflow/p", ["entry=torch/ddp,tensorflow/parameter-server:1"]),
    ("checkpoints=", ["checkpoints=true", "checkpoints=false"]),
    ("colour=", []),
])
def test_what_may_vary_is_offered_with_its_values(offered, word: str, words: list[str]) -> None:
    assert offered(f"race --vary {word}") == words


def test_every_field_may_vary(offered) -> None:
    assert {f"{name}=" for name in job_fields()} - {"model_args="} <= set(offered("race --vary "))
    assert offered("race --engine torch --vary strategy=s") == ["strategy=single"]


def test_names_of_what_is_stored_are_offered(offered, runs: Path) -> None:
    write_race(runs, repeated([1000, 1010]), "first")
    for name, ends in (("alone", True), ("apart", False)):
        run = Store(runs).create(name, Job())
        if ends:
            run.finish(typed(result()))
        run.close()
    option = f"--runs {runs} "
    assert offered(f"runs show {option}a") == ["alone", "apart"]
    assert offered(f"runs show {option}f") == ["first"]
    assert offered(f"runs compare {option}alone ap") == ["apart"]
    assert offered(f"runs rm {option}first/") == ["first/torch-ddp-1w-64b-1-0", "first/torch-ddp-1w-64b-2-1"]
    assert offered(f"resume {option}") == ["apart"]
    assert offered(f"report {option}") == offered(f"recommend {option}") == ["first"]


@pytest.mark.parametrize(("words", "told"), [
    (["--vary", "entry", "=", "torch/dd"], ["torch/ddp"]),
    (["--vary", "optimizer", "="], ["sgd", "momentum", "adam", "adamw"]),
    (["--vary", "entry", "=", "tensorflow/parameter-server", ":"], ["1"]),
    (["--vary", "optimizer", "=", "sgd", "--naming", "pl"], ["plain"]),
    (["--naming", ""], ["plain", "published"]),
])
def test_bash_divides_words_and_gets_the_rest_of_the_last_one(
    velodrome, monkeypatch: pytest.MonkeyPatch, words: list[str], told: list[str]
) -> None:
    monkeypatch.setenv("_VELODROME_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "\n".join(["velodrome", "race", *words]))
    monkeypatch.setenv("COMP_CWORD", str(1 + len(words)))
    assert velodrome().out.splitlines() == told
