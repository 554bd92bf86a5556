"""A trained Keras model can be loaded as the recipe beside it says; which form is possible is tried before training."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from keras_numbers import numbers
from tiny import tiny_splits

from velodrome.errors import BadRequest
from velodrome.job.job import Job
from velodrome.job.resolve import resolve

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

WHOLE = {
    "plain": {}, "compiled": {}, "code": {},
    "custom": {"Scaled": "keras_saving:Scaled"},
    "registered": {"tests>Registered": "keras_saving:Registered"},
    "function": {"half": "keras_saving:half"},
    "named": {"Named": "keras_saving:Named"},
}
WEIGHTS = {
    "written": "must override `get_config()`",
    "forgetful": "it computes something else after loading",
    "local": "'Local' cannot be imported from module 'keras_saving'",
}


@pytest.fixture(autouse=True)
def _nets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def saved(model: str, folder: Path, **changes: Any) -> tuple[Any, tuple[str, ...]]:
    """A network that was tried and saved with other weights than it had; what the trial said."""
    from velodrome.engines.tensorflow.network import Network
    from velodrome.tasks.supervised import Classification

    asked = {"engine": "tensorflow", "model": f"keras_saving:{model}", "batch_size": 16, **changes}
    network = Network(resolve(Job(**asked)), Classification(), tiny_splits())
    before = [np.asarray(variable).copy() for variable in network.model.variables]
    notes = network.check_saving(folder)
    assert list(folder.iterdir()) == []
    for variable, value in zip(network.model.variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)
    trained = network.weights() + np.asarray(0.125, network.job.dtype)
    statistics = [value + (np.asarray(0.5, value.dtype) if value.dtype.kind == "f" else 0)
                  for value in network.initial_statistics(0)]
    network.save(folder / "model", trained, statistics)
    return network, notes


def sample() -> Any:
    return tiny_splits().test.images / 255.0


def described(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "model" / "model.json").read_text())


@pytest.mark.unit
@pytest.mark.parametrize("model", WHOLE)
def test_a_model_that_keras_can_load_is_saved_whole_with_the_places_of_the_users_classes(
    model: str, tmp_path: Path
) -> None:
    from velodrome.engines.tensorflow.model_file import load

    network, notes = saved(model, tmp_path)
    assert notes == ()
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["README.md", "model.json", "model.keras"]
    about = described(tmp_path)
    assert (about["file"], about["custom_objects"]) == ("model.keras", WHOLE[model])
    assert about["safe_mode"] is (model != "code")
    loaded = load(tmp_path / "model", f"keras_saving:{model}")
    np.testing.assert_allclose(loaded(sample()), network.model(sample()), rtol=1e-5)


@pytest.mark.unit
@pytest.mark.parametrize("model", WEIGHTS)
def test_of_one_that_keras_cannot_load_the_weights_are_saved_and_that_is_said_before_training(
    model: str, tmp_path: Path
) -> None:
    from velodrome.engines.tensorflow.model_file import load

    network, (note,) = saved(model, tmp_path, dtype="float64")
    assert f"cannot save and load model 'keras_saving:{model}' as a whole (" in note
    assert WEIGHTS[model] in note
    assert "its weights will be written to model/model.weights.h5, and model/README.md explains how to load" in note
    files = sorted(path.name for path in (tmp_path / "model").iterdir())
    assert files == ["README.md", "model.json", "model.weights.h5"]
    with numbers("float32"):
        loaded = load(tmp_path / "model", f"keras_saving:{model}")
        assert (keras.config.floatx(), keras.config.dtype_policy().name) == ("float32", "float32")
    np.testing.assert_allclose(loaded(sample()), network.model(sample()), rtol=1e-12)


def lambda_model(marker: Path) -> Any:
    """A model that creates a file when it is loaded: its code is in the file, compiled."""
    code = f"lambda x: (__import__('pathlib').Path({str(marker)!r}).touch(), x)[1]"
    return keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Lambda(eval(code)), keras.layers.Flatten()])


@pytest.mark.unit
@pytest.mark.parametrize("model", ["dense-128", "keras_saving:plain"])
def test_code_inside_a_saved_model_does_not_run_whatever_its_description_says(model: str, tmp_path: Path) -> None:
    from velodrome.engines.tensorflow.model_file import load

    saved("plain", tmp_path)
    folder, marker = tmp_path / "model", tmp_path / "ran"
    lambda_model(marker).save(folder / "model.keras")
    marker.unlink(missing_ok=True)
    objects = {"x": "torch.utils.collect_env:run"}
    about = {**described(tmp_path), "model": model, "safe_mode": False, "custom_objects": objects}
    (folder / "model.json").write_text(json.dumps(about))
    with suppress(ValueError):  # of Keras: other weights
        load(folder, model)(sample())
    assert not marker.exists()


@pytest.mark.unit
def test_a_saved_model_names_no_code_itself(tmp_path: Path) -> None:
    from velodrome.engines.tensorflow.model_file import load

    saved("plain", tmp_path)
    with pytest.raises(BadRequest, match=r"names code, 'keras_saving:plain'.*load\(folder, 'keras_saving:plain'\)"):
        load(tmp_path / "model")
    with pytest.raises(BadRequest, match=r"describes model 'keras_saving:plain', and the job names 'dense-128'"):
        load(tmp_path / "model", "dense-128")


@pytest.mark.unit
def test_a_model_that_cannot_be_loaded_at_all_is_said_to_be_so_before_training(tmp_path: Path) -> None:
    _, (note,) = saved("changing", tmp_path)
    assert "could not be loaded after saving it, neither as a whole (" in note
    assert (tmp_path / "model" / "model.weights.h5").exists()


@pytest.mark.unit
def test_models_that_return_an_object_are_compared_by_the_tensors_in_it(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    _, (note,) = saved("answering", tmp_path / "one")
    assert "its weights will be written to model/model.weights.h5, and model/README.md explains how to load" in note
    (tmp_path / "other").mkdir()
    _, (note,) = saved("drifting", tmp_path / "other")
    assert "nor into a model that your function built again (it computes something else after loading)" in note


RECIPES = """
import json, os, re, sys
import numpy as np
import keras

images = np.load(sys.argv[1])
for folder in sys.argv[2:]:
    if (child := os.fork()) == 0:  # each in a process that has loaded nothing before
        (block,) = re.findall("```python\\n(.*?)```", open(folder + "/README.md").read(), re.DOTALL)
        scope = {}
        exec(block, scope)
        scale = json.load(open(folder + "/model.json"))["scale"]
        np.save(folder + "/outputs.npy", scope["model"](images * scale))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, folder
"""


@pytest.mark.integration
def test_the_recipe_in_the_run_folder_loads_the_model_in_a_new_process(tmp_path: Path) -> None:
    models = [*WHOLE, *WEIGHTS]
    networks = {}
    for model in models:
        (tmp_path / model).mkdir()
        arguments = {"factor": 5.0} if model == "custom" else {}
        networks[model], _ = saved(model, tmp_path / model, model_args=arguments)
    np.save(tmp_path / "images.npy", tiny_splits().test.images)
    done = subprocess.run(
        [sys.executable, "-c", RECIPES, tmp_path / "images.npy", *(tmp_path / model / "model" for model in models)],
        cwd=Path(__file__).parent, capture_output=True, text=True, timeout=280, check=False,
    )
    assert done.returncode == 0, done.stderr
    for model, network in networks.items():
        outputs = np.load(tmp_path / model / "model" / "outputs.npy")
        np.testing.assert_allclose(outputs, network.model(sample()), rtol=1e-4, err_msg=model)
