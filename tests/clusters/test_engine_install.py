"""Environments of engines are made, repaired and removed; nothing half-made is ever used."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from velodrome.api.engines import _installation, install_engine, list_engines, remove_engine
from velodrome.catalog import registry
from velodrome.clusters import environments
from velodrome.clusters.environments import install, requirements, training_wheel
from velodrome.errors import BadRequest, VelodromeError
from velodrome.files import FileLock
from velodrome.variables import TOKEN

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "servers")]
import environment as old_environment  # noqa: E402


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where environments are made: that of MXNet gets small packages, from files that were downloaded before."""
    engine = registry.engine("mxnet")
    assert engine.own_environment is not None
    small = replace(engine, own_environment=replace(engine.own_environment, modules=("numpy",)))
    monkeypatch.setattr(environments, "pinned_packages", lambda own: [old_environment.NUMPY, *requirements()])
    forms = registry.forms
    for module in (install, registry):
        monkeypatch.setattr(module, "forms", lambda name: (small,) if name == "mxnet" else forms(name))
    monkeypatch.setenv(environments.FOLDER, str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(old_environment._wheels()))
    yield tmp_path / "mxnet"
    environments.forget()


@pytest.fixture
def packages(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The packages of an environment that is complete without pip: it sees ours, and has a copy of the training side.
    Making it anew is left out."""
    monkeypatch.setattr(install, "_make", lambda *_: None)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], timeout=280, check=True)
    (found,) = home.glob("lib/python3*/site-packages")
    (found / "ours.pth").write_text(f"{Path(psutil.__file__).parents[1]}\n")
    with zipfile.ZipFile(training_wheel(home)) as wheel:
        wheel.extractall(found)
    write_record(home)
    return found


def write_record(home: Path, **other: str) -> None:
    record = {**environments.record_of(registry.engine("mxnet")), **other}
    (home / environments.RECORD).write_text(json.dumps(record))


def eventually(holds: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.05)


needs_packages = pytest.mark.skipif(bool(old_environment.unavailable()), reason=old_environment.unavailable() or "here")


@pytest.mark.integration
@needs_packages
def test_an_environment_is_made_kept_repaired_and_removed(home: Path) -> None:
    said: list[str] = []
    first = install_engine("mxnet", said.append)
    assert first["changed"] is True
    assert first["interpreter"] == str(home / "bin" / "python")
    assert said[0] == "creating the environment"
    assert said[-1] == "checking that it can be imported"
    assert install_engine("mxnet")["changed"] is False

    shutil.rmtree(next(home.glob("lib/python3*/site-packages/numpy")))
    assert install_engine("mxnet")["changed"] is True
    python = str(environments.interpreter_of("mxnet"))
    subprocess.run([python, "-c", "import numpy, velodrome.training.probe"], check=True, timeout=60, cwd="/")

    # Of a damaged training side, only that is installed again.
    next(home.glob("lib/python3*/site-packages/velodrome/engines/mxnet/worker.py")).unlink()
    said.clear()
    assert install_engine("mxnet", said.append)["changed"] is True
    assert said[0] == "updating the training side of Velodrome"

    # Interrupted: without its record it is not used, and made anew.
    (home / environments.RECORD).unlink()
    assert environments.interpreter_of("mxnet") == Path(sys.executable)

    assert remove_engine("mxnet") is True
    assert not home.exists()
    assert remove_engine("mxnet") is False


@pytest.mark.integration
@pytest.mark.parametrize(
    "damaged",
    [
        pytest.param("psutil.py", id="imported at the start"),
        pytest.param("safetensors.py", id="imported when a model is saved"),
        pytest.param("velodrome/engines/mxnet/worker.py", id="engine"),
        pytest.param("velodrome/models/own.py", id="training process"),
    ],
)
def test_everything_that_a_training_process_imports_must_be_intact(
    packages: Path, damaged: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert install_engine("mxnet")["changed"] is False
    digest = install.training_side_digest()
    monkeypatch.setattr(install, "training_side_digest", lambda root: digest)  # nothing but imports decides
    (packages / damaged).write_text("raise ImportError('damaged')\n")
    assert install_engine("mxnet")["changed"] is True


@pytest.mark.integration
def test_a_file_of_the_training_side_that_is_imported_later_must_be_intact(packages: Path) -> None:
    (packages / "velodrome" / "training" / "actions.py").unlink()
    assert install_engine("mxnet")["changed"] is True


@pytest.mark.integration
def test_packages_of_another_environment_do_not_hide_that_some_are_missing(
    packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", (packages / "ours.pth").read_text().strip())
    (packages / "ours.pth").unlink()
    assert install_engine("mxnet")["changed"] is True


@pytest.mark.integration
@pytest.mark.parametrize(
    "script",
    [
        pytest.param("exec sleep 60", id="silent"),
        pytest.param("exec sleep 60 > /dev/null 2>&1", id="closes its output"),
        pytest.param("while :; do echo still busy; sleep 0.05; done", id="prints"),
    ],
)
def test_a_step_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    monkeypatch.setattr(install, "STEP_SECONDS", 0.6)
    steps = install.Steps(install._token(tmp_path), lambda phrase: None)
    began = time.monotonic()
    with pytest.raises(VelodromeError, match=r"a step took more than 0\.01 minutes: sh -c"):
        steps.run(["sh", "-c", script])
    while install.cleaning.of_run(steps.token):  # a killed process takes a moment to be gone
        assert time.monotonic() - began < 30
        time.sleep(0.05)


@pytest.mark.integration
def test_the_last_lines_of_a_step_that_fails_are_the_reason(tmp_path: Path) -> None:
    said: list[str] = []
    steps = install.Steps(install._token(tmp_path), said.append)
    with pytest.raises(VelodromeError, match=r"ended with code 3:\n(line \d+\n){13}line 20\nno end$"):
        steps.run(["sh", "-c", "echo Downloading a.whl; seq -f 'line %g' 20; printf 'no end'; exit 3"])
    assert said == ["downloading a.whl"]


@pytest.mark.integration
def test_steps_end_with_the_command_that_is_killed(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from velodrome.clusters.environments import install\n"
        f"with install.guarded(Path({str(tmp_path)!r}), print) as steps:\n"
        "    steps.run(['sh', '-c', 'setsid sleep 300 & sleep 300'])"
    )
    marked = install.cleaning.of_run
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        eventually(lambda: len(marked(install._token(tmp_path))) == 3)
    finally:
        process.kill()
        process.wait()
    eventually(lambda: not marked(install._token(tmp_path)))


@pytest.fixture
def interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where MXNet's environment has its interpreter; there is none yet."""
    monkeypatch.setenv(environments.FOLDER, str(tmp_path))
    python = tmp_path / "mxnet" / "bin" / "python"
    python.parent.mkdir(parents=True)
    return python


@pytest.mark.integration
def test_the_next_command_ends_what_a_killed_one_left_before_it_touches_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environments.FOLDER, str(tmp_path))
    (tmp_path / "mxnet").mkdir()
    left = subprocess.Popen(["sleep", "300"], env={**os.environ, TOKEN: install._token(tmp_path / "mxnet")})
    try:
        assert remove_engine("mxnet") is True
        assert left.wait(1) == -9
    finally:
        left.kill()
        left.wait()


@pytest.mark.integration
def test_an_environment_in_which_something_trains_is_left_alone(interpreter: Path) -> None:
    interpreter.symlink_to(sys.executable)
    words = [str(interpreter), "-c", "import time; time.sleep(300)", "-m", "velodrome.training"]
    training = subprocess.Popen(words)
    try:
        for change in (install_engine, remove_engine):
            with pytest.raises(VelodromeError, match=rf"'mxnet' is training now \(process {training.pid}\)"):
                change("mxnet")
        assert interpreter.exists()
        assert training.poll() is None
    finally:
        training.kill()
        training.wait()
    assert remove_engine("mxnet") is True


@pytest.mark.unit
def test_the_second_of_two_removers_says_that_it_waits_and_finds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environments.FOLDER, str(tmp_path))
    (tmp_path / "mxnet").mkdir()
    first, said = FileLock(tmp_path / ".mxnet.lock"), []
    assert first.acquire()
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(remove_engine, "mxnet", said.append)
        try:
            eventually(lambda: said)
            shutil.rmtree(tmp_path / "mxnet")
        finally:
            first.release()
        assert second.result(30) is False
    assert said == ["waiting for another command that installs or removes it"]


@pytest.mark.unit
def test_an_environment_counts_as_installed_if_it_is_current_and_has_its_interpreter(
    interpreter: Path, tmp_path: Path
) -> None:

    def installed() -> bool:
        return bool(_installation(registry.engine("mxnet"))["installed"])

    write_record(tmp_path / "mxnet")
    assert not installed()
    interpreter.symlink_to(sys.executable)
    assert installed()
    write_record(tmp_path / "mxnet", training_side="another")
    assert not installed()


@pytest.mark.slow
@pytest.mark.integration
@needs_packages
def test_two_commands_at_once_make_one_environment(home: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: install_engine("mxnet"), range(2)))
    assert sorted(one["changed"] for one in both) == [False, True]


@pytest.mark.slow
@pytest.mark.integration
@needs_packages
def test_another_version_of_the_training_side_is_refused_until_it_is_updated(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_engine("mxnet")
    monkeypatch.setattr(environments, "training_side_digest", lambda: "another")
    engine = registry.engine("mxnet")
    assert environments.missing(engine, engine.strategies[0]) == [
        "its environment was made by another version of Velodrome: velodrome engines install mxnet"
    ]
    said: list[str] = []
    assert install_engine("mxnet", said.append)["changed"] is True
    assert said[0] == "updating the training side of Velodrome"


@pytest.mark.integration
@needs_packages
def test_a_package_that_cannot_be_had_is_named_and_nothing_is_taken_for_installed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "pinned_packages", lambda own: ["there-is-no-such-package==1.0"])
    with pytest.raises(VelodromeError, match="there-is-no-such-package"):
        install_engine("mxnet")
    assert environments.interpreter_of("mxnet") == Path(sys.executable)


def test_a_folder_that_cannot_be_made_is_named_with_its_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(environments.FOLDER, str(tmp_path / "file"))
    with pytest.raises(BadRequest, match=r"/file', and that folder cannot be made: File exists; set \$VELODROME_ENV"):
        install_engine("mxnet")


def test_an_engine_that_shares_our_environment_has_none_to_install() -> None:
    with pytest.raises(BadRequest, match=r"'torch' trains in the environment of Velodrome itself.*those that do are"):
        install_engine("torch")
    with pytest.raises(BadRequest, match="no engine 'caffe'"):
        remove_engine("caffe")


@pytest.mark.integration
def test_engines_are_listed_with_what_an_installation_takes() -> None:
    found = {(engine["name"], engine["framework"]): engine for engine in list_engines()}
    assert found["torch", None]["install"] is None
    assert found["torch", None]["upstream"] == "maintained"
    assert found["mxnet", None]["upstream"] == "retired"
    assert found["mxnet", None]["install"]["command"] == "velodrome engines install mxnet"
    assert found["mxnet", None]["install"]["disk_mb"] > 100
    for framework in ("torch", "tensorflow"):
        horovod = found["horovod", framework]
        assert horovod["upstream"] == "dormant"
        assert horovod["install"]["command"] == f"velodrome engines install horovod --framework {framework}"
        assert horovod["install"]["minutes"] > 1


@pytest.mark.integration
def test_the_listing_names_what_became_of_each_framework(
    velodrome: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environments.FOLDER, str(tmp_path))
    lines = velodrome("engines").out.splitlines()
    assert "torch: PyTorch (upstream: maintained)" in lines
    assert any(line.startswith("mxnet: ") and line.endswith("(upstream: retired)") for line in lines)
    horovod = next(line for line in lines if line.startswith("horovod --framework torch: "))
    assert horovod.endswith("(upstream: dormant)")
    assert any("velodrome engines install jax (150 MB" in line and line.endswith("about 1 minute)") for line in lines)


@pytest.mark.integration
def test_a_compiler_is_called_with_old_options_replaced(tmp_path: Path) -> None:
    compiler = install._compiler(tmp_path, {"-std=c++14": "-std=c++17"})
    source = tmp_path / "a file.cc"
    source.write_text("standard __cplusplus\n")
    done = subprocess.run([compiler, "-std=c++14", "-E", "-P", str(source)], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "standard 201703L"
