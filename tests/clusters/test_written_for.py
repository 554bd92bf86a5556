"""A model or script of one's own is taken to be for the framework that it imports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from velodrome.clusters.environments import default_engine
from velodrome.clusters.preflight import complete
from velodrome.job.read import make_job

pytestmark = pytest.mark.unit

BOTH = """
def build_keras():
    from keras import layers
    return layers

def build_torch():
    import torch.nn as nn
    return nn

def either():
    return None
"""


@pytest.mark.parametrize(("code", "engine"), [
    ("import keras\n", "tensorflow"), ("from tensorflow.keras import layers\n", "tensorflow"),
    ("import tensorflow as tf, numpy\n", "tensorflow"), ("import numpy\nfrom torch import nn\n", "torch"),
    ("try:\n    import tf_keras as keras\nexcept ImportError:\n    keras = None\n", "tensorflow"),
    ("import torch\nimport keras\n", "torch"), ("import json\n", "torch"), ("from .torch import x\n", "torch"),
    ("def broken(:\n    import keras\n", "torch"),
])
def test_a_model_without_an_engine_is_trained_by_the_framework_that_its_file_imports(
    code: str, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(code)
    assert complete(make_job({"model": "mine:build"})).engine == engine
    assert complete(make_job({"script": "mine.py"})).engine == engine
    assert complete(make_job({"model": "mine:build", "engine": "jax"})).engine == "jax", "what was asked for counts"


@pytest.mark.parametrize(("name", "engine"), [
    ("both:build_keras", "tensorflow"), ("both:build_torch", "torch"), ("both:either", "torch"),
    ("elsewhere:build_keras", "torch"), ("pack.nets:build", "tensorflow"), ("pack:build", "tensorflow"),
])
def test_of_a_file_for_several_frameworks_the_function_that_builds_the_model_decides(
    name: str, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("both.py").write_text(BOTH)
    Path("pack").mkdir()
    for file in ("__init__.py", "nets.py"):
        Path("pack", file).write_text("import keras\n")
    assert default_engine(name) == engine


def test_a_race_of_a_keras_model_without_an_engine_races_strategies_of_tensorflow(
    velodrome: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("import keras\n\ndef build(input_shape, classes):\n    return keras.Sequential()\n")
    asked = velodrome("race", "--model", "mine:build", "--no-measure", "--dry-run", "--runs", tmp_path / "runs")
    assert asked.code == 0, asked.text
    assert "tensorflow-single-1w" in asked.err
    assert "torch-" not in asked.err
    asked = velodrome("race", "--model", "mine:build", "--vary", "batch-size=32,64", "--no-measure", "--dry-run",
                      "--runs", tmp_path / "runs")
    assert "tensorflow-single-1w-64b-1" in asked.err, asked.text
