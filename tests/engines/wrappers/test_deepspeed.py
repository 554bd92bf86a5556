"""DeepSpeed's ZeRO stages train what one process of PyTorch trains, and keep only parts of the training state."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from driver import Ran, finish, largest_difference, run, start, write_arrays, write_text

from velodrome.job.job import Job

pytest.importorskip("deepspeed")
STAGES = ("zero1", "zero2", "zero3")
Alone = Callable[[Job], Ran]
pytestmark = pytest.mark.integration


def job(**changes: Any) -> Job:
    """90 examples in batches of 22: the last holds 2, fewer than 3 workers have, and no batch divides by 3. DeepSpeed
    has float32 weights only, so both are compared in float32."""
    base = {"engine": "torch", "model": "dense-128", "optimizer": "momentum", "batch_size": 22}
    return Job(**(base | {"steps": 20, "epochs": 9} | changes))


def distributed(wanted: Job, stage: str, workers: int) -> Job:
    return wanted.model_copy(update={"engine": "deepspeed", "strategy": stage, "workers": workers})


def bar(wanted: Job) -> float:
    """Adam divides by the size of a gradient, which makes much of rounding where a gradient is nearly zero."""
    return 2e-4 if wanted.optimizer in ("adam", "adamw") else 5e-6


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(("optimizer", "workers"), [
    ("momentum", 2),
    *(pytest.param(*each, marks=pytest.mark.slow) for each in [
        ("sgd", 1), ("sgd", 2), ("sgd", 3), ("adam", 1), ("adam", 2), ("adam", 3), ("adamw", 2), ("momentum", 3),
    ]),
])
def test_workers_together_end_with_the_weights_of_one_process_of_pytorch(
    alone: Alone, data: Path, tmp_path: Path, stage: str, optimizer: str, workers: int
) -> None:
    wanted = job(optimizer=optimizer)
    one, ran = alone(wanted), run(distributed(wanted, stage, workers), data, tmp_path)
    assert largest_difference(ran.state, one.state, "model.") < bar(wanted)
    assert ran.result["test_answers"] == one.result["test_answers"]
    assert ran.result["steps"] == 20
    assert "ZeRO stage" in ran.result["implementation"]["framework"][-1]


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("changes", [
    {"accumulate": 3}, {"clip_norm": 0.1}, {"implementation": "stock"}, {"schedule": "cosine"},
    {"model": "vgg-small"}, {"label_smoothing": 0.1},
], ids=lambda changes: "-".join(map(str, changes.values())))
def test_options_mean_what_they_mean_to_pytorch(
    alone: Alone, data: Path, tmp_path: Path, stage: str, changes: dict[str, Any]
) -> None:
    wanted = job(**changes)
    ran = run(distributed(wanted, stage, 2), data, tmp_path)
    assert largest_difference(ran.state, alone(wanted).state, "model.") < bar(wanted)


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("model", ["lstm-small", "gpt-mini"])
def test_a_language_model_trains_as_under_pytorch(tmp_path: Path, stage: str, model: str) -> None:
    text = write_text(tmp_path / "text.npz")
    wanted = job(model=model, optimizer="sgd", batch_size=5, unroll=7, steps=6)
    one = run(wanted, text, tmp_path / "one")
    two = run(distributed(wanted, stage, 2), text, tmp_path / "two")
    assert largest_difference(two.state, one.state, "model.") < 5e-6


RANDOM = np.random.default_rng(3)
FEATURES = RANDOM.normal(size=(84, 5)).astype(np.float32)
PRICES = (FEATURES @ RANDOM.normal(size=5)).astype(np.float32)
WORDS = RANDOM.integers(0, 20, (84, 4)).astype(np.int32)


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(("task", "model", "inputs", "targets"), [
    ("regression", "small", {"x": FEATURES}, {"y": PRICES}),
    ("binary", "small", {"x": FEATURES}, {"y": (PRICES > 0).astype(np.uint8)}),
    ("multi-label", "small", {"x": FEATURES}, {"y": (FEATURES[:, :3] > 0.3).astype(np.uint8)}),
    ("classification", "small", {"x": FEATURES}, {"y": (PRICES > 0).astype(np.int64) + (PRICES > 1)}),
    ("array_nets:TwoTargets", "both", {"words": WORDS, "numbers": FEATURES},
     {"price": PRICES, "kind": (PRICES > 0).astype(np.int64)}),
], ids=lambda one: one if isinstance(one, str) else "")
def test_every_task_trains_a_model_of_ones_own_as_under_pytorch(
    tmp_path: Path, stage: str, task: str, model: str, inputs: dict[str, Any], targets: dict[str, Any]
) -> None:
    """30 examples in batches of 7 and 3 workers: the last step leaves a worker without examples."""
    data = write_arrays(tmp_path, inputs, targets)
    wanted = Job(dataset="driven", task=task, model=f"array_nets:{model}", engine="torch", optimizer="momentum",
                 learning_rate=0.002, batch_size=7, epochs=2)
    one = run(wanted, data, tmp_path / "one")
    ran = run(distributed(wanted, stage, 3), data, tmp_path / "several")
    assert largest_difference(ran.state, one.state, "model.") < 1e-5
    assert ran.result["test"]["loss_sum"] == pytest.approx(one.result["test"]["loss_sum"], rel=1e-4)
    assert ran.result["test"]["total"] == 31


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_a_resumed_run_ends_like_an_undisturbed_one(data: Path, tmp_path: Path, stage: str, optimizer: str) -> None:
    wanted = distributed(job(optimizer=optimizer, steps=None, epochs=4), stage, 3)
    whole = run(wanted, data, tmp_path / "whole")
    run(wanted.model_copy(update={"epochs": 2}), data, tmp_path / "part")
    resumed = run(wanted, data, tmp_path / "part", resume=True)
    assert largest_difference(resumed.state, whole.state, "model.") < 1e-6
    assert largest_difference(resumed.state, whole.state, "optimizer.") < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_a_process_that_loses_another_one_reports_a_lost_peer(data: Path, tmp_path: Path, stage: str) -> None:
    started = start(distributed(job(steps=None, epochs=100000), stage, 2), data, tmp_path)
    started[0].wait_for('"epoch"')
    started[1].kill()
    ran = finish(started, tmp_path, seconds=120)
    (error,) = ran.processes[0].of_kind("error")
    assert error["cause"] == "peer"
    assert error["message"].startswith("lost another worker")


@pytest.mark.unit
def test_a_backward_pass_of_a_batch_that_is_added_up_is_marked_as_waiting() -> None:
    from contextlib import contextmanager
    from types import SimpleNamespace

    from velodrome.engines.deepspeed import ZeroLearner

    class Marking:
        is_waiting = False

        @contextmanager
        def waiting(self):
            self.is_waiting = True
            yield
            self.is_waiting = False

    learner, marking, marked = ZeroLearner.__new__(ZeroLearner), Marking(), []
    engine = SimpleNamespace(backward=lambda loss, **_: marked.append(marking.is_waiting),
                             set_gradient_accumulation_boundary=lambda last: None)
    learner._context, learner._engine, learner._trained = marking, engine, []
    learner._accumulate, learner._added = 2, 0
    assert learner._add("loss")
    assert marked == [True]
