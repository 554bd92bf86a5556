"""Every example of every help text is valid: it runs, or it gets as far as it can without other machines."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "data"))
import pictures
import tiny_idx

from velodrome.cli.main import COMMANDS, loaded
from velodrome.clusters.local.launcher import LocalLauncher
from velodrome.data import catalogue
from velodrome.errors import VelodromeError

FIRST = ["--dataset", "digits", "--model", "linear", "--engine", "torch", "--epochs", "1"]


def _commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[Any]:
    yield command
    for name, one in getattr(command, "commands", {}).items():
        yield from _commands(one, (*words, name))


def _examples() -> list[str]:
    found = []
    for name in COMMANDS:
        for command in _commands(typer.main.get_command(loaded(name))):
            about = getattr(command.callback, "__doc__", None) or command.help or ""
            found += re.findall(r"`(velodrome [^`]*)`", about[about.find("Example"):] if "Example" in about else "")
    return list(dict.fromkeys(found))


#: Examples that need other machines or change this one: their words are parsed, and nothing else.
PARSED = {
    "velodrome attach": "a job of Slurm", "velodrome clusters prepare": "hosts", "velodrome engines install": "wheels",
    "velodrome engines remove": "an environment to remove", "velodrome data shard mnist": "HDFS",
    "velodrome study run kouskouras-2022": "HDFS", "velodrome serve": "a server and a browser",
    "velodrome ui": "a server and a browser",
}
#: Examples that end where the first process would start.
STARTS = ("velodrome train",)
DRY = ("velodrome race", "velodrome study run")


class _Started(VelodromeError):
    """Raised where a process would be started."""


def runs_examples(test: Any) -> Any:
    """Mark a test that runs examples."""
    for mark in (pytest.mark.integration, pytest.mark.xdist_group("help_examples"),
                 pytest.mark.usefixtures("warm_module")):
        test = mark(test)
    return test


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, warm_module: None) -> Path:
    """A folder with the files, runs and races that the examples name."""
    from velodrome.cli.main import main

    folder = tmp_path_factory.mktemp("examples")
    runs = folder / "runs"

    def command(*words: object, code: int = 0) -> None:
        with pytest.raises(SystemExit) as end:
            main([str(word) for word in words])
        assert (end.value.code or 0) == code, words

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        command("race", *FIRST, "--vary", "entry=torch/single,torch/ddp", "--vary", "workers=1,2", "--name", "first")
        for name in ("old-race", "other-race"):
            shutil.copytree(runs / "first", runs / name)
        command("train", *FIRST, "--name", "my-run")
        for name in ("monday", "tuesday"):
            shutil.copytree(runs / "my-run", runs / name)
        shutil.copytree(runs / "my-run", folder / "unpacked" / "their-run")
        shutil.copytree(runs / "my-run", folder / "experiments" / "my-run")
        command("train", *FIRST, "--strategy", "ddp", "--workers", "2", "--fault", "kill worker1 at 0s", "--name",
                "torch-ddp-2w-digits-dense-128-128b-261116-101500", code=1)
        pictures.write_folders(folder / "photos", each=80)
        pictures.write_folders(folder / "data" / "photos")
        pictures.truncated(folder / "data" / "photos" / "ant" / "broken.png")
        for name, colour in pictures.COLOURS.items():
            (folder / "data" / "products" / name).mkdir(parents=True)
            for number in range(80):
                made = pictures.picture(colour, number, 28, 28)
                made.save(folder / "data" / "products" / name / f"{number}.png")
        command("train", "--dataset", "path:photos", "--model", "linear", "--epochs", "1", "--name", "fruits")
        for name in ("apple.jpg", "kiwi.jpg"):
            pictures.picture((200, 30, 30), 1).save(folder / name)
        command("train", "--dataset", "diabetes", "--model", "mlp", "--epochs", "1", "--name", "diabetes")
        from sklearn.datasets import load_diabetes
        given = load_diabetes()
        np.savetxt(folder / "patients.csv", given.data[:3], delimiter=",", header=",".join(given.feature_names),
                   comments="")
        (folder / "houses.csv").write_text("rooms,price\n" + "".join(f"{n},{n * 1000}\n" for n in range(1, 40)))
        (folder / "job.yaml").write_text("dataset: digits\nmodel: linear\nepochs: 1\n")
        (folder / "race.yaml").write_text(
            "job: {dataset: digits, model: linear, engine: torch, epochs: 1}\nvary: {strategy: [single, ddp]}\n"
        )
        (folder / "train.py").write_text(
            "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--lr', type=float)\n"
            "parser.add_argument('--batch-size', type=int)\nprint('loss:', parser.parse_args().lr)\n"
        )
        (folder / "my_nets.py").write_text(
            "from torch import nn\n\n\ndef build(input_shape, classes):\n"
            "    height, width, channels = input_shape\n"
            "    return nn.Sequential(nn.Flatten(), nn.Linear(height * width * channels, classes))\n"
        )
        command("examples", "copy", "examples")
        command("study", "new", "my-study.yaml")
        mirror = folder / "data" / "mirror"
        patch.setenv("VELODROME_CACHE", str(folder / "cache"))
        patch.setenv("VELODROME_DATA_MIRROR", str(mirror))
        for name in ("mnist", "fashion-mnist"):
            made = tiny_idx.data_set(name=name, examples=400, side=28, classes=10)
            patch.setitem(catalogue._ours().data_sets, name, made)
            tiny_idx.write_mirror(mirror, made)
            catalogue.prepare(name)
    return folder


#: Folders of many files that no example changes: copies of the prepared folder have links to them.
PICTURES = ("photos", "data/photos", "data/products")


@pytest.fixture
def place(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the prepared folder, as the current one; 400 images of noise stand for MNIST and Fashion-MNIST."""
    folder = tmp_path / "here"
    linked = {prepared / name for name in PICTURES}
    shutil.copytree(prepared, folder, symlinks=True, ignore=lambda directory, names: [
        name for name in names if Path(directory, name) in linked
    ])
    for name in PICTURES:
        (folder / name).symlink_to(prepared / name)
    monkeypatch.setenv("VELODROME_DATA_MIRROR", str(folder / "data" / "mirror"))
    monkeypatch.setenv("VELODROME_CACHE", str(folder / "cache"))
    for name in ("mnist", "fashion-mnist"):
        made = tiny_idx.data_set(name=name, examples=400, side=28, classes=10)
        monkeypatch.setitem(catalogue._ours().data_sets, name, made)
    monkeypatch.chdir(folder)
    return folder


def _words(example: str, place: Path) -> list[str]:
    here = example.replace("/data/", f"{place}/data/").replace("/tmp/unpacked/", f"{place}/unpacked/")
    return shlex.split(here)[1:]


@pytest.mark.parametrize("example", _examples())
def test_an_example_of_a_help_text_has_a_command_and_options_that_exist(example: str, tmp_path: Path) -> None:
    assert _parses(_words(example, tmp_path))


@runs_examples
@pytest.mark.samples
@pytest.mark.parametrize("example", _examples())
def test_an_example_of_a_help_text_is_valid(
    velodrome, place: Path, monkeypatch: pytest.MonkeyPatch, example: str
) -> None:
    words = _words(example, place)
    if example.startswith(tuple(PARSED)):
        assert _parses(words)
        return
    if example.startswith(DRY):
        words.append("--dry-run")
    if "--name" in words:
        shutil.rmtree(place / "runs" / words[words.index("--name") + 1], ignore_errors=True)
    if example.startswith("velodrome study new"):
        (place / words[-1]).unlink()
    if example.startswith("velodrome runs rm") and "--yes" not in words:
        words.append("--yes")  # in place of the answer on a terminal
    if example.startswith(STARTS):
        monkeypatch.setattr(LocalLauncher, "start_process", _refuse_to_start)
    done = velodrome(*words)
    if example.startswith(STARTS):
        assert "as far as the start" in done.text
    else:
        assert done.code == 0, done.text


def _refuse_to_start(*_: object, **__: object) -> None:
    raise _Started("as far as the start")


def _parses(words: list[str]) -> bool:
    command = typer.main.get_command(loaded(words[0]))
    rest = words[1:]
    while hasattr(command, "commands") and not rest[0].startswith("-"):
        command, rest = command.commands[rest[0]], rest[1:]
    return command.make_context(words[0], rest) is not None


@runs_examples
@pytest.mark.slow
@pytest.mark.parametrize("example", [
    one for one in _examples()
    if one.startswith(("velodrome train", "velodrome race race.yaml", "velodrome race examples"))
    and "mnist" not in one  # which is another data set here
])
def test_an_example_that_trains_runs_to_its_end(velodrome, place: Path, idle: None, example: str) -> None:
    shutil.rmtree(place / "runs")
    done = velodrome(*_words(example, place))
    assert done.code == 0, done.text
