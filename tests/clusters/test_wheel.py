"""The training side is installed and trains in an environment whose packages are older than the controller's."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import grimp
import pytest

from velodrome.catalog import registry
from velodrome.clusters import environments
from velodrome.clusters.environments import REQUIREMENTS, TRAINING_SIDE, WIDER, training_wheel
from velodrome.clusters.plan import arguments, environment, make_plan
from velodrome.events import parse_event
from velodrome.events.models import HelloEvent, ResultEvent
from velodrome.job.job import Job
from velodrome.job.resolve import resolve

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "docs"), str(ROOT / "tests" / "servers")]
import environment as old_environment  # noqa: E402
from samples import blocks  # noqa: E402

#: Modules of other names than the packages that bring them.
MODULES = {"PIL": "pillow", "google": "protobuf", "google_crc32c": "google-crc32c", "pydantic_core": "pydantic"}
#: Loaded only where an engine, a transport or a storage asks for it; each is an extra.
ON_DEMAND = {
    "accelerate", "deepspeed", "lightning_fabric", "h5py", "horovod", "jax", "jaxlib", "mxnet", "optax", "pyarrow",
    "tensorflow", "tf2onnx", "keras", "torch", "mpi4py", "hdfs_native", "requests", "s3fs",
}
#: Of the controller's packages, none may be loaded by a training process.
CONTROLLERS = {"yaml", "rich", "typer", "click", "jinja2", "matplotlib", "sklearn", "scipy", "tensorboard", "py_spy"}


def _pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.mark.unit
def test_the_training_side_is_what_the_layers_say() -> None:
    contracts = _pyproject()["tool"]["importlinter"]["contracts"]
    layers = contracts[0]["layers"]
    below = layers[layers.index("velodrome.engines") :]
    names = {name.strip().removeprefix("velodrome.") for layer in below for name in layer.split("|")}
    assert names == set(TRAINING_SIDE)
    slim = next(contract for contract in contracts if "yaml" in contract.get("forbidden_modules", ()))
    assert {name.removeprefix("velodrome.") for name in slim["source_modules"]} == set(TRAINING_SIDE)


@pytest.mark.unit
def test_everything_that_the_training_side_imports_is_required() -> None:
    graph = grimp.build_graph("velodrome", include_external_packages=True)
    imported = {
        name.partition(".")[0]
        for module in graph.modules
        if module.startswith("velodrome.") and module.split(".")[1] in TRAINING_SIDE
        for name in graph.find_modules_directly_imported_by(module)
    }
    others = imported - sys.stdlib_module_names - {"velodrome"} - ON_DEMAND
    assert {MODULES.get(name, name) for name in others} == set(REQUIREMENTS)
    assert not others & CONTROLLERS
    declared = {line.partition(">")[0] for line in _pyproject()["project"]["dependencies"]}
    assert set(REQUIREMENTS) <= declared


@pytest.mark.unit
def test_the_wheel_holds_the_training_side_with_its_data_and_nothing_else(tmp_path: Path) -> None:
    with zipfile.ZipFile(training_wheel(tmp_path)) as wheel:
        names = wheel.namelist()
        described = wheel.read(next(name for name in names if name.endswith("METADATA"))).decode()
    tops = {name.split("/")[1].removesuffix(".py") for name in names if name.startswith("velodrome/")}
    assert tops == {*TRAINING_SIDE, "__init__", "py.typed"}
    assert any(name.startswith("velodrome/data/sources/digits.") and not name.endswith(".py") for name in names)
    assert not [name for name in names if name.endswith(".pyc")]
    required = [line.removeprefix("Requires-Dist: ") for line in described.splitlines() if line.startswith("Requires")]
    assert WIDER["numpy"] in required
    assert not [line for line in required if line.startswith(("matplotlib", "rich", "typer", "torch", "tensorflow"))]


@pytest.fixture(scope="module")
def old_packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with numpy 1.23.5 and the training side, in which the engine of adding-an-engine.md is known."""
    if reason := old_environment.unavailable():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("environments") / "plain"
    old_environment.create(folder)
    package = next(folder.glob("lib/python*/site-packages/velodrome"))
    for block in blocks(ROOT / "docs" / "adding-an-engine.md"):
        if block.file:
            path = package / block.file.removeprefix("src/velodrome/")
            path.parent.mkdir(exist_ok=True)
            path.write_text(block.text)
    names = package / "catalog" / "registry.py"
    ours = names.read_text()
    assert '        "torch":' in ours
    plain = '        "plain": "velodrome.catalog.engines.plain:ENGINE",\n'
    names.write_text(ours.replace('        "torch":', plain + '        "torch":', 1))
    return folder


@pytest.fixture
def plain(old_packages: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The interpreter of that environment, with the engine known to the controller too."""
    (description,) = old_packages.glob("lib/python*/site-packages/velodrome/catalog/engines/plain.py")
    spec = spec_from_file_location("velodrome.catalog.engines.plain", description)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "velodrome.catalog.engines.plain", module)
    ours = {**registry.ENGINES.ours, "plain": "velodrome.catalog.engines.plain:ENGINE"}
    monkeypatch.setattr(registry, "ENGINES", replace(registry.ENGINES, ours=ours))
    monkeypatch.setenv(environments.FOLDER, str(old_packages.parent))
    return old_packages / "bin" / "python"


@pytest.mark.integration
def test_a_job_trains_in_an_environment_with_numpy_1_23_and_nothing_of_the_controller(
    plain: Path, tmp_path: Path
) -> None:
    job = resolve(Job(engine="plain", strategy="single", model="linear", optimizer="sgd", dataset="digits", epochs=2))
    python = environments.interpreter_of(job.engine)
    assert python == plain
    plan = make_plan("slim", job)
    process = plan.processes[0]
    loaded = tmp_path / "loaded.txt"
    # Records, when the process is done, which modules it has loaded.
    script = (
        "import os, sys\nfrom pathlib import Path\nfrom velodrome.training import __main__ as main\nleave = os._exit\n"
        f"def record(code):\n    Path({str(loaded)!r}).write_text(' '.join(sys.modules))\n    leave(code)\n"
        "os._exit = record\nmain.main(sys.argv[1:])"
    )
    done = subprocess.run(
        [str(python), "-c", script, *arguments(plan, process, tmp_path)], capture_output=True, text=True, timeout=280,
        cwd=tmp_path, env={**os.environ, **environment(plan, process)},
    )
    assert done.returncode == 0, done.stderr
    events = [event for line in done.stdout.splitlines() if (event := parse_event(line)) is not None]
    hello = events[0]
    assert isinstance(hello, HelloEvent)
    assert hello.versions["numpy"] == "1.23.5"
    assert hello.versions["velodrome"]
    assert hello.interpreter == str(plain)
    (result,) = [event for event in events if isinstance(event, ResultEvent)]
    counted = result.test.model_dump()
    assert counted["correct"] / counted["total"] > 0.8
    modules = {name.partition(".")[0] for name in loaded.read_text().split()}
    assert {"numpy", "velodrome"} <= modules
    assert not modules & CONTROLLERS


@pytest.mark.integration
def test_the_environment_is_probed_and_listed(plain: Path, velodrome: Any) -> None:
    listed = {engine["name"]: engine for engine in velodrome("engines", "--json").json()}["plain"]
    assert (listed["interpreter"], listed["versions"]) == (str(plain), {"numpy": "1.23.5"})
    missing = {strategy["name"]: strategy["missing"] for strategy in listed["strategies"]}
    assert missing["single"] == []
    assert "mpi4py" in missing["allreduce"][0]


@pytest.mark.integration
def test_a_run_of_the_controller_trains_in_that_environment(plain: Path, runs: Path, velodrome: Any) -> None:
    words = ["--model", "linear", "--optimizer", "sgd", "--epochs", "1", "--runs", runs, "--name", "slim", "--json"]
    done = velodrome("train", "--engine", "plain", "--strategy", "single", *words)
    assert done.code == 0, done.text
    assert done.json()["versions"]["numpy"] == "1.23.5"
    assert [host["interpreter"] for host in done.json()["hosts"]] == [str(plain)]
    assert str(plain) in velodrome("runs", "show", "slim", "--runs", runs).out.replace("\n", "")
