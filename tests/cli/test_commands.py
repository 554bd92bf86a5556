"""The commands that start nothing: what they show, and what they refuse."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typer

from velodrome.cli.main import COMMANDS, loaded


def test_engines_are_listed_with_what_they_need(velodrome) -> None:
    engines = {engine["name"]: engine for engine in velodrome("engines", "--json").json()}
    names = {strategy["name"] for strategy in engines["tensorflow"]["strategies"]}
    assert {"single", "mirrored", "multi-worker-mirrored", "parameter-server", "central-storage", "allreduce"} <= names
    tpu = next(s for s in engines["tensorflow"]["strategies"] if s["name"] == "tpu")
    assert not tpu["available"]
    assert tpu["missing"] == ["needs a TPU"]
    server = next(s for s in engines["tensorflow"]["strategies"] if s["name"] == "parameter-server")
    assert server["consistency"] == "asp"
    assert set(server["roles"]) == {"server", "worker", "chief"}
    assert "multi-worker-mirrored" in velodrome("engines").out


def test_engines_are_listed_with_whose_parts_train(velodrome) -> None:
    engines = {engine["name"]: engine for engine in velodrome("engines", "--json").json()}
    ddp = next(s for s in engines["torch"]["strategies"] if s["name"] == "ddp")["implementation"]
    assert any("DistributedDataParallel" in part for part in ddp["framework"])
    assert any("fused kernels" in part for part in ddp["own"])
    shown = " ".join(velodrome("engines").out.replace("│", " ").split())
    assert "Velodrome's own: batches gathered from bytes" in shown


def test_data_sets_are_listed(velodrome) -> None:
    listed = {about["name"]: about for about in velodrome("data", "list", "--json").json()}
    assert {"digits", "mnist", "fashion-mnist", "kmnist"} <= set(listed)
    assert (listed["mnist"]["train"], listed["mnist"]["validation"], listed["mnist"]["test"]) == (54000, 6000, 10000)
    assert "digits" in velodrome("data", "list").out
    assert velodrome("data", "prepare", "digits").code == 0
    assert velodrome("data", "prepare", "digits", "--json").json()["ready"]


BASE = ["--dataset", "digits", "--model", "dense-128", "--engine", "torch", "--strategy", "single"]


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--workers", "0"], "0"),
        (["--strategy", "nonsense"], "nonsense"),
        (["--engine", "nonsense"], "nonsense"),
        (["--dataset", "nonsense"], "nonsense"),
        (["--model", "nonsense"], "nonsense"),
        (["--model", "lenet5"], "8×8"),
        (["--model", "no_such_module:build"], "no_such_module"),
        (["--model", "no-such-module:build"], "module:function"),
        (["--model-arg", "width=3"], "takes no arguments"),
        (["--model-arg", "width"], "key=value"),
        (["--model-arg", "width=["], "cannot be read"),
        (["--batch-size", "1000000"], "1000000"),
        (["--name", "../../etc/evil"], "evil"),
        (["--name", ".hidden"], ".hidden"),
        (["--name", "größe-日"], "has the letters A to Z and a to z, digits, '.', '_' and '-', and not 'ö', 'ß', '日'"),
        (["--epochs", "ten"], "ten"),
        (["--engine", "tensorflow", "--strategy", "tpu"], "a TPU"),
        (["absent.yaml"], "absent.yaml"),
        (["--strategy", "ddp", "--workers", "4000", "--batch-size", "4000", "--batch-scope", "per-worker"], "4000"),
    ],
)
def test_a_bad_request_is_one_sentence_and_exit_code_2(velodrome, runs, words: list[str], shown: str) -> None:
    done = velodrome("train", *BASE, *words, "--runs", runs)
    assert done.code == 2
    assert shown in done.text
    assert "Traceback" not in done.text
    assert not runs.exists()


def test_too_many_processes_for_the_memory_are_refused_with_the_numbers(velodrome, runs) -> None:
    many = ["--strategy", "multi-worker-mirrored", "--workers", "1000", "--batch-size", "1000"]
    done = velodrome("train", "--dataset", "digits", "--engine", "tensorflow", *many, "--runs", runs)
    assert done.code == 2
    assert "1000 tensorflow processes need about" in done.text
    assert "GiB are free" in done.text


def test_a_race_with_impossible_jobs_starts_none(velodrome, runs) -> None:
    varied = ["--vary", "strategy=ddp,nonsense", "--vary", "workers=1,0"]
    done = velodrome("race", "--engine", "torch", *varied, "--runs", runs)
    assert done.code == 2
    assert "nonsense" in done.text
    assert "workers=0" in done.text
    assert not runs.exists()


@pytest.mark.integration
def test_checking_a_job_imports_no_framework() -> None:
    """A controller that imports one takes seconds for every command, and may hold another version of it."""
    program = (
        "import sys; from velodrome.clusters import preflight; from velodrome.job.resolve import resolve\n"
        "from velodrome.job.job import make_job\n"
        "preflight.check_job(resolve(make_job({'engine': sys.argv[1]})))\n"
        "print([name for name in ('torch', 'tensorflow', 'keras', 'jax', 'mxnet') if name in sys.modules])"
    )
    for engine in ("torch", "tensorflow"):
        done = subprocess.run([sys.executable, "-c", program, engine], capture_output=True, text=True, timeout=120)
        assert done.stdout.strip() == "[]", (engine, done.stdout, done.stderr)


@pytest.mark.integration
def test_help_and_version_need_no_framework() -> None:
    code = (
        "import sys; from velodrome.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print([m for m in ('tensorflow', 'torch', 'keras', 'matplotlib', 'sklearn') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=280)
    assert done.stdout.strip().endswith("[]")
    assert "train" in done.stdout


def test_the_version_is_told(velodrome) -> None:
    assert velodrome("--version").out.startswith("velodrome ")


@pytest.mark.integration
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_completion_is_there(shell: str) -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("velodrome")], capture_output=True, text=True, timeout=280,
        env={"_VELODROME_COMPLETE": f"source_{shell}", "PATH": "/usr/bin"},
    )
    assert "velodrome" in done.stdout


def test_what_lists_a_command_is_how_its_own_help_begins() -> None:
    for name, sentence in COMMANDS.items():
        command = typer.main.get_command(loaded(name))
        assert (command.help or "").split("\n\n")[0].replace("\n", " ").startswith(sentence), name


@pytest.mark.integration
def test_help_loads_no_command_and_a_misspelled_one_is_told_the_right_name(velodrome) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "velodrome", "--help"], capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0
    assert "pydantic" not in done.stderr
    assert all(name in done.stdout for name in COMMANDS)
    wrong = velodrome("trian")
    assert wrong.code == 2
    assert "train" in wrong.err


def test_every_field_of_a_job_belongs_to_one_group_of_the_help() -> None:
    from velodrome.job.job import job_fields, job_groups

    grouped = [name for names in job_groups().values() for name in names]
    assert sorted(grouped) == sorted(job_fields())


@pytest.mark.parametrize(("command", "own"), [("train", []), ("race", ["Race"]), ("plan", ["Hosts"])])
def test_help_groups_the_options_of_a_job(velodrome, command: str, own: list[str]) -> None:
    lines = velodrome(command, "--help").out.splitlines()
    panels = [line.split()[1] for line in lines if line.startswith("╭─")]
    assert panels == ["Arguments", *own, "Data", "Model", "Script", "Distribution", "Optimization", "Limits", "Output"]
    output = lines.index(next(line for line in lines if line.startswith("╭─ Output")))
    assert all(any(option in line for line in lines[output:]) for option in ("--runs", "--json", "--help"))
