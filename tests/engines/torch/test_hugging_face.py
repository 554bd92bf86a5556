"""Models of Hugging Face's `transformers` train unmodified on integer sequences, under several strategies."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from driver import Ran, largest_difference, run, write_arrays
from hugging_face import LENGTH, WORDS

from velodrome.job.job import Job

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("mpi4py")
pytestmark = pytest.mark.integration

slow = pytest.mark.slow


@pytest.fixture(scope="module")
def sequences(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Sequences whose first word decides their class; padded ones come with a mask."""
    random = np.random.default_rng(5)
    words = random.integers(1, WORDS, (120, LENGTH)).astype(np.int32)
    labels = (words[:, 0] % 3).astype(np.int64)
    mask = (np.arange(LENGTH) < random.integers(3, LENGTH + 1, 120)[:, None]).astype(np.int64)
    inputs = {"plain": {"x": words}, "masked": {"input_ids": words * mask, "attention_mask": mask}}
    return {name: write_arrays(tmp_path_factory.mktemp(name), each, {"y": labels}) for name, each in inputs.items()}


@pytest.fixture(scope="module")
def train(sequences: dict[str, Path], tmp_path_factory: pytest.TempPathFactory):
    done: dict[str, Ran] = {}

    def call(model: str, strategy: str, data: str = "plain", **changes: Any) -> Ran:
        asked = {"model": f"hugging_face:{model}", "strategy": strategy, "workers": 1 if strategy == "single" else 2,
                 "batch_size": 23, "epochs": 4, "dtype": "float64", "learning_rate": 0.01, **changes}
        key = repr((data, asked))
        if key not in done:
            done[key] = run(Job(**asked), sequences[data], tmp_path_factory.mktemp("run"))
        return done[key]

    return call


TASK = {"task": "hugging_face:NextWord"}
RUNS = [
    pytest.param("bert", "plain", {}, "ddp", id="bert-ddp"),
    pytest.param("bert", "masked", {}, "allreduce", id="bert-with-mask-allreduce", marks=slow),
    pytest.param("bert", "plain", {}, "allreduce", id="bert-allreduce", marks=slow),
    pytest.param("gpt2", "plain", TASK, "allreduce", id="gpt2-allreduce", marks=slow),
    pytest.param("gpt2", "plain", TASK, "ddp", id="gpt2-ddp", marks=slow),
]


@pytest.mark.parametrize(("model", "data", "changes", "strategy"), RUNS)
def test_two_workers_end_with_the_weights_of_one(
    train, model: str, data: str, changes: dict[str, Any], strategy: str
) -> None:
    alone, ran = (train(model, name, data, **changes) for name in ("single", strategy))
    assert largest_difference(ran.state, alone.state, "model.") < 1e-9
    history = ran.result["history"]
    assert history[-1]["train_loss"] < history[0]["train_loss"]
    assert not [event for process in ran.processes for event in process.of_kind("warning")]


def test_a_classifier_counts_as_its_logits_say_and_is_loaded_again(train, monkeypatch: pytest.MonkeyPatch) -> None:
    from velodrome.engines.torch import model_file

    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    ran = train("bert", "ddp")
    loaded = model_file.load(ran.folder / "model", "hugging_face:bert")
    about = json.loads((ran.folder / "model" / "model.json").read_text())
    assert (about["several"], about["outputs"]) == (True, "logits")
    assert loaded.config.num_labels == 3
    assert ran.result["test"]["total"] > 0
    assert ran.result["test"]["correct"] / ran.result["test"]["total"] > 0.4


@pytest.mark.slow
def test_tied_embeddings_stay_tied(train) -> None:
    state = train("gpt2", "allreduce", **TASK).state
    np.testing.assert_array_equal(state["model.lm_head.weight"], state["model.transformer.wte.weight"])


@pytest.mark.slow
def test_dropout_is_outside_the_promise(train) -> None:
    ran = train("bert", "ddp", model_args={"dropout": 0.2})
    (warning,) = [event["message"] for process in ran.processes for event in process.of_kind("warning")]
    assert "random numbers in its forward pass (dropout" in warning
