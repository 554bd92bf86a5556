"""Run folders and files that somebody sent: no command runs code that only they name."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import velodrome as api
from velodrome.errors import BadRequest

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("warm_module")]
pytest.importorskip("torch")

#: Of an installed package: it runs a command.
INSTALLED = "torch.utils.collect_env:run"
NETS = """
from pathlib import Path

from torch import nn


def build(input_shape, classes, width=8):
    Path("built").touch()
    return nn.Sequential(nn.Flatten(), nn.Linear(input_shape[0] * input_shape[1] * input_shape[2], width),
                         nn.Linear(width, classes))
"""
EVIL = """
from pathlib import Path

Path({marker!r}).touch()


def build(input_shape, classes):
    raise SystemExit
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, warm_module: None) -> Path:
    """A project with a run of the zoo and one of the user's own model, both trained here."""
    place = tmp_path_factory.mktemp("project")
    (place / "sent_nets.py").write_text(NETS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        for name, model in (("zoo", "dense-128"), ("own", "sent_nets:build")):
            api.train(api.Job(model=model, engine="torch", epochs=1, steps=2), name=name)
    return place


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of somebody else, on a machine where nothing was trained."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


Send = Callable[..., Path]


@pytest.fixture
def send(place: Path, here: Path) -> Send:
    """A copy of a run, with other fields in its job and in the description of its model."""

    def made(name: str, job: dict[str, Any] | None = None, model: dict[str, Any] | None = None) -> Path:
        run = here / "runs" / "sent"
        shutil.copytree(place / "runs" / name, run)
        for file in ("serving.json", "model.onnx"):
            (run / "model" / file).unlink(missing_ok=True)
        change(run / "job.yaml", job or {}, yaml.safe_load, yaml.safe_dump)
        change(run / "model" / "model.json", model or {}, json.loads, json.dumps)
        return run

    return made


def change(file: Path, fields: dict[str, Any], read: Callable[[str], Any], write: Callable[[Any], str]) -> None:
    file.write_text(write({**read(file.read_text()), **fields}))


def digits(place: Path) -> Path:
    from PIL import Image

    Image.new("L", (8, 8)).save(place / "black.png")
    return place / "black.png"


def unfinished(run: Path) -> None:
    (run / "result.json").unlink()


#: Commands on the run `sent`, each of which builds its model.
COMMANDS: dict[str, tuple[str, ...]] = {
    "predict": ("predict", "sent", "black.png"), "export": ("export", "sent"), "verify": ("runs", "verify", "sent"),
    "serve": ("serve", "sent", "--no-browser", "--port", "0"),
}


def running(marker: Path) -> dict[str, Any]:
    return {"command": f"touch {marker}"}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_description_of_a_model_chooses_no_code(velodrome, here, send, command):
    digits(here)
    arguments = {**running(here / "ran"), "input_shape": [1, 8, 8], "classes": 10}
    about = {"model": INSTALLED, "model_args": running(here / "ran"), "arguments": arguments, "kind": "arrays",
             "returns": 10, "inputs": {}, "images": [], "lazy": False}
    send("zoo", model=about)
    done = velodrome(*COMMANDS[command])
    assert not (here / "ran").exists()
    assert done.code == 2, done.text
    assert f"model.json' describes model {INSTALLED!r}, and the job names 'dense-128'" in done.err


def test_the_check_of_a_run_reports_the_mismatch(velodrome, here, send):
    send("zoo", model={"model": INSTALLED})
    done = velodrome("runs", "check", "sent")
    assert done.code == 1
    assert f"describes model {INSTALLED!r}, and the job names 'dense-128'" in done.text


@pytest.mark.parametrize(("command", "field"), [
    *((command, field) for command in (*COMMANDS, "resume") for field in ("model", "dataset")),
    ("verify", "task"), ("verify", "optimizer"), ("verify", "transform"),
])
def test_a_job_of_a_run_chooses_no_code_of_a_library(velodrome, here, send, command, field):
    digits(here)
    named = "torch.utils.collect_env:run" if field != "task" else "torch.utils.collect_env:SystemEnv"
    job = {field: named, "learning_rate": None}
    if field == "model":
        job["model_args"] = running(here / "ran")
    run = send("zoo", job=job, model={"model": named} if field == "model" else {})
    if command == "resume":
        unfinished(run)
    done = velodrome(*COMMANDS.get(command, ("resume", "sent")))
    assert not (here / "ran").exists()
    assert done.code == 2, done.text
    assert f"run 'sent' names code that you have not named or confirmed on this machine: {field} {named!r}" in done.err
    assert f"add --trust-code {named}" in done.err


@pytest.mark.parametrize("command", [*COMMANDS, "resume"])
def test_code_beside_a_run_does_not_run_until_it_is_named(velodrome, here, send, command, monkeypatch):
    digits(here)
    (here / "evil.py").write_text(EVIL.format(marker=str(here / "ran")))
    run = send("zoo", job={"model": "evil:build"}, model={"model": "evil:build"})
    if command == "resume":
        unfinished(run)
    words = COMMANDS.get(command, ("resume", "sent"))
    done = velodrome(*words)
    assert not (here / "ran").exists()
    assert done.code == 2, done.text
    assert f"model 'evil:build' ({here / 'evil.py'})" in done.err
    assert done.err.rstrip().endswith("add --trust-code evil:build")


def test_a_script_of_a_stored_run_does_not_run(velodrome, here, send):
    (here / "evil.py").write_text(EVIL.format(marker=str(here / "ran")))
    run = send("zoo")
    (run / "job.yaml").write_text("{script: evil.py, engine: torch}\n")
    unfinished(run)
    done = velodrome("resume", "sent")
    assert (done.code, (here / "ran").exists()) == (2, False)
    assert "script 'evil.py'" in done.err
    assert "--trust-code evil.py" in done.err


@pytest.mark.quick("libraries-resume", "velodrome-race")
@pytest.mark.parametrize("command", ["verify", "resume", "race"])
@pytest.mark.parametrize(
    "shadows", [("numpy", "safetensors", "yaml", "psutil"), ("velodrome",)], ids=["libraries", "velodrome"]
)
def test_files_in_the_folder_of_a_run_take_the_place_of_no_module(here, send, command, shadows):
    """The command is started by its name and by `python -m`, in the folder that was sent."""
    run = send("zoo")
    for shadow in shadows:
        (run / f"{shadow}.py").write_text(EVIL.format(marker=str(here / "ran")))
    if command == "resume":
        unfinished(run)
    (run / "race.yaml").write_text("{job: {epochs: 1, steps: 1, engine: torch}, vary: {seed: [1]}, baseline: false}\n")
    words = {"verify": ["runs", "verify", str(run)], "resume": ["resume", "sent", "--runs", str(run.parent)],
             "race": ["race", "race.yaml"]}[command]
    starts = [[str(Path(sys.executable).with_name("velodrome"))]]
    starts += [[sys.executable, "-m", "velodrome"]] if shadows != ("velodrome",) else []
    for start in starts:
        done = subprocess.run([*start, *words], cwd=run, capture_output=True, text=True, timeout=280, check=False)
        assert not (here / "ran").exists(), done.stderr
        assert done.returncode == 0, done.stderr
        if command == "resume":
            unfinished(run)


def test_a_run_of_the_zoo_works_wherever_it_is(velodrome, here, send):
    run = send("zoo")
    elsewhere = run.rename(here / "moved")
    assert velodrome("runs", "verify", elsewhere).code == 0
    assert velodrome("export", elsewhere).code == 0
    assert velodrome("predict", elsewhere, digits(here)).code == 0
    assert velodrome("runs", "check", elsewhere).code == 0


def test_what_was_trained_here_goes_on_without_a_question(velodrome, place, monkeypatch):
    monkeypatch.chdir(place)
    assert velodrome("runs", "verify", "own").code == 0
    assert velodrome("export", "own").code == 0
    assert velodrome("predict", "own", digits(place)).code == 0
    shutil.copytree("runs/own", "runs/again")
    unfinished(place / "runs" / "again")
    done = velodrome("resume", "again")
    assert done.code == 0
    assert f"run 'again' names code: model 'sent_nets:build' ({place / 'sent_nets.py'})" in done.err


def test_other_content_or_other_arguments_are_other_code(velodrome, here, place, send, monkeypatch):
    shutil.copy(place / "sent_nets.py", here)
    send("own")
    refused = velodrome("runs", "verify", "sent")
    assert (refused.code, (here / "built").exists()) == (2, False)
    assert velodrome("runs", "verify", "sent", "--trust-code", "sent_nets:build").code == 0
    assert velodrome("runs", "verify", "sent").code == 0
    change(here / "runs/sent/job.yaml", {"model_args": {"width": 9}}, yaml.safe_load, yaml.safe_dump)
    assert velodrome("runs", "verify", "sent").code == 2
    change(here / "runs/sent/job.yaml", {"model_args": {}}, yaml.safe_load, yaml.safe_dump)
    assert velodrome("runs", "verify", "sent").code == 0
    (here / "sent_nets.py").write_text(NETS + "\n")
    assert velodrome("runs", "verify", "sent").code == 2


def test_from_python_code_is_named_too(here, place, send, monkeypatch):
    shutil.copy(place / "sent_nets.py", here)
    send("own")
    with pytest.raises(BadRequest, match="--trust-code sent_nets:build"):
        api.runs.verify("sent")
    assert api.runs.verify("sent", trust_code=["sent_nets:build"])["ok"]


@pytest.mark.quick("train", "race", "check")
@pytest.mark.parametrize("command", ["train", "check", "plan", "race", "doctor"])
def test_a_file_names_only_code_beside_it_or_in_the_current_folder(velodrome, here, command):
    (here / "file.yaml").write_text(_file(command, model=INSTALLED, model_args=running(here / "ran"), engine="torch"))
    done = velodrome(command, "file.yaml")
    assert (done.code, (here / "ran").exists()) == (2, False), done.text
    refused = "names code that lies neither beside it nor in the current folder"
    assert f"'file.yaml' {refused}: model {INSTALLED!r}" in done.err
    (here / "inside").mkdir()
    (here / "evil.py").write_text(EVIL.format(marker=str(here / "ran")))
    (here / "inside" / "file.yaml").write_text(_file(command, script="../evil.py"))
    done = subprocess.run([str(Path(sys.executable).with_name("velodrome")), command, "file.yaml"],
                          cwd=here / "inside", capture_output=True, text=True, timeout=280, check=False)
    assert (done.returncode, (here / "ran").exists()) == (2, False), done.stderr
    assert f"{refused}: script '../evil.py'" in done.stderr


def _file(command: str, **job: Any) -> str:
    return yaml.safe_dump({"job": job, "vary": {"workers": [1]}} if command == "race" else job)


def test_a_file_says_which_code_it_names_before_it_starts(velodrome, here):
    (here / "sent_nets.py").write_text(NETS)
    job = {"model": "sent_nets:build", "engine": "torch", "epochs": 1, "steps": 1}
    (here / "job.yaml").write_text(yaml.safe_dump(job))
    (here / "race.yaml").write_text(yaml.safe_dump({"job": job, "vary": {"seed": [1]}, "baseline": False}))
    said = f"names code: model 'sent_nets:build' ({here / 'sent_nets.py'})"
    done = velodrome("train", "job.yaml", "--name", "first")
    assert (done.code, done.err.index(said)) == (0, len("job.yaml "))
    done = velodrome("race", "race.yaml", "--dry-run")
    assert (done.code, done.err.index(said)) == (0, len("race.yaml "))
    assert velodrome("runs", "verify", "first").code == 0


def test_a_race_that_was_sent_goes_on_only_with_code_that_is_known(velodrome, here):
    folder = here / "runs" / "sent"
    folder.mkdir(parents=True)
    (here / "evil.py").write_text(EVIL.format(marker=str(here / "ran")))
    (folder / "race.yaml").write_text(_file("race", model="evil:build", engine="torch"))
    done = velodrome("race", folder / "race.yaml", "--name", "sent")
    assert (done.code, (here / "ran").exists()) == (2, False)
    assert "race 'sent' names code that you have not named or confirmed on this machine: model 'evil:build'" in done.err


@pytest.mark.quick("train")
@pytest.mark.parametrize("command", ["train", "check", "race"])
def test_a_file_chooses_no_other_machine_unless_it_is_replaced(velodrome, here, command):
    (here / "file.yaml").write_text(_file(command, on="slurm:python=/tmp/evil", engine="torch", epochs=1, steps=1))
    done = velodrome(command, "file.yaml")
    assert done.code == 2
    assert "on 'slurm:python=/tmp/evil'" in done.err
    assert "--trust-code slurm:python=/tmp/evil" in done.err
    assert velodrome(command, "file.yaml", "--on", "local").code == 0
