"""The loop that all engines share, driven by a learner in plain numpy: logistic regression by hand."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from velodrome.catalog.world import World
from velodrome.errors import BadRequest, FolderGone, RunFailed
from velodrome.events import parse_event
from velodrome.job.job import Job
from velodrome.job.resolve import resolve
from velodrome.tasks.base import Counts
from velodrome.tasks.schedule import Schedule
from velodrome.training import checkpoint, loop
from velodrome.training.context import Context, Emitter
from velodrome.training.learner import Learner, State

pytestmark = pytest.mark.unit


class NumpyLearner(Learner):
    """Multinomial logistic regression with plain gradient descent."""

    def __init__(self, context: Context) -> None:
        self.context, self.data = context, context.data
        self.weights = np.zeros((int(np.prod(self.data.input_shape)), self.data.classes))
        self.parameters = self.weights.size
        self.steps_seen: list[np.ndarray] = []
        self.poison_at: int | None = None

    def begin_epoch(self, schedule: Schedule) -> None:
        self.partition = schedule.partition(0)

    def _count(self, images: np.ndarray, labels: np.ndarray) -> tuple[Counts, np.ndarray, np.ndarray]:
        x = images.reshape(len(labels), -1) * self.data.scale
        logits = x @ self.weights
        p = np.exp(logits - logits.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        loss = -np.log(p[np.arange(len(labels)), labels]).sum()
        return Counts(len(labels), float(loss), {"correct": int((p.argmax(1) == labels).sum())}), x, p

    def train(self, first: int, last: int) -> Counts:
        total = Counts()
        for step in range(first, last):
            mine = self.partition.step(step)
            self.steps_seen.append(mine)
            labels = self.data.train.labels[mine]
            counts, x, p = self._count(self.data.train.images[mine], labels)
            p[np.arange(len(labels)), labels] -= 1
            self.weights -= self.rate * (x.T @ p) / self.partition.batch[step]
            if self.poison_at is not None and len(self.steps_seen) > self.poison_at:
                counts = Counts(counts.total, float("nan"))
            total += counts
        return total

    def set_rate(self, rate: float) -> None:
        self.rate = rate

    def average_statistics(self) -> None:
        pass

    def evaluate(self, part: Any) -> Counts:
        chosen = getattr(self.data, part)
        return self._count(chosen.images, chosen.labels)[0]

    def total(self, counts: Counts) -> Counts:
        return counts

    def state(self) -> State:
        return {"weights": self.weights.copy()}

    def load(self, state: State) -> None:
        self.weights = np.array(state["weights"])

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / "weights.npy", self.weights)


class Heard:
    """Events of a context, read back from the pipe that a controller would read."""

    def __init__(self, folder: Path, resume: bool = False, **fields: Any) -> None:
        self._read, write = os.pipe()
        os.set_blocking(self._read, False)
        folder.mkdir(exist_ok=True)
        job = resolve(Job(engine="torch", strategy="single", optimizer="sgd", **fields))
        self.context = Context(job, World.alone(), folder, Emitter(write, "worker", 0), threads=1, resume=resume)

    def events(self) -> list[dict[str, Any]]:
        data = b""
        try:
            while chunk := os.read(self._read, 1 << 20):
                data += chunk
        except BlockingIOError:
            pass
        return [event.as_json() for line in data.decode().splitlines() if (event := parse_event(line)) is not None]


def test_it_trains_and_says_everything_a_reader_needs(tmp_path: Path) -> None:
    heard = Heard(tmp_path, epochs=6, batch_size=100)
    learner = NumpyLearner(heard.context)
    loop.run(heard.context, learner)
    events = heard.events()
    result = events[-1] if events[-1]["kind"] == "result" else next(e for e in events if e["kind"] == "result")
    assert result["test"]["correct"] / result["test"]["total"] > 0.85
    assert result["test"]["total"] == len(heard.context.data.test)
    assert [e["epoch"] for e in events if e["kind"] == "epoch"] == [1, 2, 3, 4, 5, 6]
    assert result["pace"]["examples"] == 6 * len(heard.context.data.train)
    assert result["steps"] == len(learner.steps_seen)
    begun = [e["phase"] for e in events if e["kind"] == "phase" and e["state"] == "begin"]
    ended = [e["phase"] for e in events if e["kind"] == "phase" and e["state"] == "end"]
    assert sorted(begun) == sorted(ended)
    assert (tmp_path / "model" / "weights.npy").exists()


def test_a_metric_that_is_no_number_is_mentioned_once_for_each_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = Heard(tmp_path, epochs=3, steps=6)
    monkeypatch.setattr(heard.context.task, "measured", lambda counts: {"accuracy": 0.5, "loss": 1.0, "bleu": None})
    loop.run(heard.context, NumpyLearner(heard.context))
    messages = [event["message"] for event in heard.events() if event["kind"] == "warning"]
    ending = "look at its targets, and at what the model returns"
    assert messages == [
        f"bleu of the validation set is not a number in epoch 1: {ending}",
        f"bleu of the test set is not a number: {ending}",
    ]


def test_the_result_reports_the_learners_implementation_or_that_of_the_strategy(tmp_path: Path) -> None:
    for mine in (None, {"kind": "velodrome", "own": ["numpy"], "framework": [], "path": "mpi"}):
        heard = Heard(tmp_path / str(mine is None), epochs=1, steps=1)
        learner = NumpyLearner(heard.context)
        learner.implementation = mine
        loop.run(heard.context, learner)
        result = next(e for e in heard.events() if e["kind"] == "result")
        assert result["implementation"] == (mine or heard.context.strategy.implementation.report("velodrome"))


def test_a_target_ends_training_after_the_epoch_that_reaches_it(tmp_path: Path) -> None:
    heard = Heard(tmp_path, epochs=50, batch_size=100, target="accuracy>=0.8")
    loop.run(heard.context, NumpyLearner(heard.context))
    result = next(e for e in heard.events() if e["kind"] == "result")
    assert result["reached_target"]
    reached = [entry["validation_accuracy"] >= 0.8 for entry in result["history"]]
    assert reached == [False] * (len(reached) - 1) + [True]


def test_a_limit_of_steps_ends_it_within_an_epoch(tmp_path: Path) -> None:
    heard = Heard(tmp_path, epochs=5, batch_size=100, steps=17)
    learner = NumpyLearner(heard.context)
    loop.run(heard.context, learner)
    assert len(learner.steps_seen) == 17


def test_resuming_ends_with_the_weights_of_an_undisturbed_run(tmp_path: Path) -> None:
    whole = Heard(tmp_path / "whole", epochs=6, batch_size=64)
    undisturbed = NumpyLearner(whole.context)
    loop.run(whole.context, undisturbed)

    first = Heard(tmp_path / "broken", epochs=6, batch_size=64)
    broken = NumpyLearner(first.context)
    broken.poison_at = 50
    with pytest.raises(RunFailed, match="loss became nan"):
        loop.run(first.context, broken)

    second = Heard(tmp_path / "broken", epochs=6, batch_size=64, resume=True)
    resumed = NumpyLearner(second.context)
    loop.run(second.context, resumed)
    assert np.array_equal(resumed.weights, undisturbed.weights)
    result = next(e for e in second.events() if e["kind"] == "result")
    assert [entry["epoch"] for entry in result["history"]] == [1, 2, 3, 4, 5, 6]
    assert result["steps"] == len(undisturbed.steps_seen)


class Drawing(NumpyLearner):
    """Draws in every call."""

    def train(self, first: int, last: int) -> Counts:
        self.weights += [random.random() + np.random.rand() for _ in range(first, last)][-1]
        return super().train(first, last)


@pytest.mark.parametrize("earlier", [False, True])
def test_a_resumed_run_draws_what_an_undisturbed_one_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, earlier: bool
) -> None:
    """And a checkpoint of an earlier version, which has no states of generators, is resumed without them."""
    monkeypatch.setattr(loop, "CHUNK_SECONDS", 1e-9)  # one step a call
    whole = Drawing(Heard(tmp_path / "whole", epochs=3).context)
    random.seed(1)
    np.random.seed(1)
    loop.run(whole.context, whole)
    if earlier:
        monkeypatch.setattr(Drawing, "gather", lambda self, data: [])
    first = Drawing(Heard(tmp_path / "parts", epochs=2).context)
    random.seed(1)
    np.random.seed(1)
    loop.run(first.context, first)
    random.seed(2)
    np.random.seed(2)
    parts = Drawing(Heard(tmp_path / "parts", epochs=3, resume=True).context)
    loop.run(parts.context, parts)
    assert np.array_equal(parts.weights, whole.weights) is not earlier


def test_a_resume_after_the_target_was_reached_trains_no_further(tmp_path: Path) -> None:
    first = Heard(tmp_path, epochs=50, batch_size=100, target="accuracy>=0.8")
    done = NumpyLearner(first.context)
    loop.run(first.context, done)
    second = Heard(tmp_path, epochs=50, batch_size=100, target="accuracy>=0.8", resume=True)
    resumed = NumpyLearner(second.context)
    loop.run(second.context, resumed)
    assert resumed.steps_seen == []
    assert np.array_equal(resumed.weights, done.weights)
    result = next(e for e in second.events() if e["kind"] == "result")
    assert result["reached_target"]


def epochs_of(count: int) -> list[dict[str, Any]]:
    return [{"epoch": epoch, "seconds": 1.0, "evaluate_seconds": 0.5} for epoch in range(1, count + 1)]


def test_the_newest_checkpoints_are_kept_however_many_digits_their_epochs_have(tmp_path: Path) -> None:
    for epoch in (9_998, 9_999, 10_000):
        checkpoint.write(tmp_path, epoch, {"w": np.zeros(1)}, epochs_of(epoch), steps=epoch)
    assert {file.stem for file in (tmp_path / "checkpoints").iterdir()} == {"epoch-9999", "epoch-10000"}
    saved = checkpoint.latest(tmp_path)
    assert saved is not None
    assert saved.steps == 10_000


def test_a_half_written_checkpoint_is_passed_over_for_the_one_before(tmp_path: Path) -> None:
    for epoch in (1, 2, 3):
        checkpoint.write(tmp_path, epoch, {"w": np.full(3, float(epoch))}, epochs_of(epoch), steps=epoch * 10)
    files = sorted((tmp_path / "checkpoints").iterdir())
    assert [file.name for file in files] == ["epoch-0002.safetensors", "epoch-0003.safetensors"]
    files[-1].write_bytes(files[-1].read_bytes()[:40])
    saved = checkpoint.latest(tmp_path)
    assert saved is not None
    assert saved.steps == 20
    assert np.array_equal(saved.state["w"], np.full(3, 2.0))


@pytest.mark.parametrize("gone", ["checkpoints", "run"])
def test_a_checkpoint_is_written_where_its_folder_was_removed_and_not_where_the_run_was(
    tmp_path: Path, gone: str
) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    checkpoint.write(folder, 1, {"w": np.zeros(1)}, [{"epoch": 1}], steps=1)
    shutil.rmtree(folder if gone == "run" else folder / "checkpoints")
    if gone == "run":
        with pytest.raises(FileNotFoundError):
            checkpoint.write(folder, 2, {"w": np.zeros(1)}, [{"epoch": 2}], steps=2)
        assert not folder.exists()
    else:
        assert checkpoint.write(folder, 2, {"w": np.zeros(1)}, [{"epoch": 2}], steps=2).is_file()


@pytest.mark.parametrize("checkpoints", [True, False])
def test_a_process_that_would_save_into_a_folder_that_is_gone_says_so(tmp_path: Path, checkpoints: bool) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    heard = Heard(folder, epochs=1, batch_size=100, checkpoints=checkpoints)
    learner = NumpyLearner(heard.context)
    shutil.rmtree(folder)
    with pytest.raises(FolderGone, match="run 'a' ended because its folder"):
        loop.run(heard.context, learner)
    assert not folder.exists()


def test_without_a_checkpoint_a_resume_begins_at_the_beginning(tmp_path: Path) -> None:
    assert checkpoint.latest(tmp_path) is None


DAMAGES = {
    "no history": {"history": "null"}, "a history that is a number": {"history": "3"}, "half": {"history": "[{"},
    "a history that is an object": {"history": '{"a": 1}'}, "rows that are numbers": {"history": "[1, 2]"},
    "rows without fields": {"history": "[{}, {}]"}, "a row that is missing": {"history": json.dumps(epochs_of(1))},
    "far too many rows": {"history": json.dumps(epochs_of(1_000))}, "deep rows": {"history": "[" * 100_000},
    "rows in another order": {"history": json.dumps(epochs_of(2)[::-1])},
    "seconds of 400 digits": {"history": json.dumps(epochs_of(2)).replace("1.0", "1" + "0" * 400)},
    "negative steps": {"steps": "-5"}, "steps of 400 digits": {"steps": "1" + "0" * 400}, "no steps": {"steps": "x"},
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_checkpoint_with_a_damaged_history_is_passed_over_with_a_warning_or_refused(
    tmp_path: Path, damage: dict[str, str]
) -> None:
    for epoch in (1, 2):
        checkpoint.write(tmp_path, epoch, {"w": np.zeros(3)}, epochs_of(epoch), steps=10 * epoch)
    whole = {"history": json.dumps(epochs_of(2)), "steps": "20"}
    first, newest = sorted((tmp_path / "checkpoints").iterdir())
    save_file({"w": np.zeros(3)}, newest, metadata=whole | damage)
    warnings: list[str] = []
    saved = checkpoint.to_resume(tmp_path, warnings.append)
    assert saved is not None
    assert (saved.steps, len(saved.history)) == (10, 1)
    (warning,) = warnings
    assert "epoch-0002.safetensors: " in warning
    assert "resumes from that of epoch 1" in warning
    first.write_bytes(b"nothing")
    with pytest.raises(BadRequest, match=r"no checkpoint in .* can be read \(epoch-0002.* remove them all") as refused:
        checkpoint.to_resume(tmp_path, warnings.append)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("state", "generators"), [
    ({}, []), (None, [b"junk"]), (None, [b"[1]"]), (None, [b'{"numpy": 3}']),
    (None, [b'{"python": [3, {"array": "", "dtype": "<u4"}, null]}']),
    (None, [b'{"python": {"array": 3, "dtype": 4}}']),
])
def test_a_checkpoint_that_does_not_fit_is_refused_in_a_sentence(
    tmp_path: Path, state: dict[str, np.ndarray] | None, generators: list[bytes]
) -> None:
    first = Heard(tmp_path, epochs=1, batch_size=100)
    learner = NumpyLearner(first.context)
    loop.run(first.context, learner)
    checkpoint.write(tmp_path, 2, learner.state() if state is None else state, epochs_of(2), 20, generators)
    second = Heard(tmp_path, epochs=3, batch_size=100, resume=True)
    with pytest.raises(BadRequest, match="the checkpoint of epoch 2 does not fit this job"):
        loop.run(second.context, NumpyLearner(second.context))
